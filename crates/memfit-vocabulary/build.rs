//! Lists the levers: each file in `src/levers` declares one, and `Lever` has a variant for each.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = rust_files(&root.join("src/levers"))?;
    // A lever that exists in one test only. It shows that a new lever needs only one file.
    if env::var_os("CARGO_FEATURE_SAMPLE").is_some() {
        files.extend(rust_files(&root.join("sample"))?);
    }
    files.sort_by_key(|file| file.file_stem().map(ToOwned::to_owned));
    let levers = files.iter().map(|file| Listed::read(file)).collect::<io::Result<Vec<_>>>()?;
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("levers.rs"), listing(&levers))
}

/// A file that declares a lever.
struct Listed {
    path: String,
    module: String,
    variant: String,
    /// The first paragraph of the file's header.
    summary: String,
}

impl Listed {
    fn read(file: &Path) -> io::Result<Self> {
        println!("cargo::rerun-if-changed={}", file.display());
        let module = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(file)?;
        let header = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
        let summary = header.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        let variant = module.split('_').map(capitalized).collect();
        Ok(Self { path: file.display().to_string(), module, variant, summary })
    }
}

fn capitalized(word: &str) -> String {
    let (first, rest) = word.split_at(word.len().min(1));
    first.to_uppercase() + rest
}

fn listing(levers: &[Listed]) -> String {
    let mut modules = String::new();
    let mut variants = String::new();
    let mut all = String::new();
    let mut declarations = String::new();
    for Listed { path, module, variant, summary } in levers {
        let _ = writeln!(modules, "#[path = {path:?}]\nmod {module};");
        let _ = writeln!(variants, "    #[doc = {summary:?}]\n    {variant},");
        let _ = writeln!(all, "        Self::{variant},");
        let _ = writeln!(declarations, "            Self::{variant} => &{module}::LEVER,");
    }
    format!(
        "{modules}
/// A change that makes training take less memory or time: one variant for each file in `levers/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lever {{
{variants}}}

impl Lever {{
    /// All levers, in the order of their files.
    pub const ALL: &[Self] = &[
{all}    ];

    /// The declaration of the lever.
    pub const fn declaration(self) -> &'static Declaration {{
        match self {{
{declarations}        }}
    }}
}}
"
    )
}

fn rust_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        if is_rust && path.file_stem().is_some_and(|stem| stem != "tests") {
            files.push(path);
        }
    }
    Ok(files)
}
