//! Lists the Python probe's files, which are embedded in the program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let package =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../../python/memfit");
    let mut list = String::from("&[");
    // The levers and the parallel plans need only torch, so they are embedded under names of their own.
    for (folder, name) in [("_probe", ""), ("_levers", "memfit_levers"), ("_parallel", "memfit_parallel")] {
        let root = package.join(folder);
        println!("cargo::rerun-if-changed={}", root.display());
        let mut files = Vec::new();
        if root.is_dir() {
            python_files(&root, &mut files)?;
        }
        files.sort();
        for file in &files {
            println!("cargo::rerun-if-changed={}", file.display());
            let path = Path::new(name).join(file.strip_prefix(&root).map_err(io::Error::other)?);
            let _ = write!(
                list,
                "({:?}, include_str!({:?})), ",
                path.display().to_string(),
                file.display().to_string()
            );
        }
    }
    list.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("probe.rs"), list)
}

fn python_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            python_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "py") {
            files.push(path);
        }
    }
    Ok(())
}
