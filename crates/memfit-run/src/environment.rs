//! Resolves the user's command: its program, its interpreter, its script.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::{Home, RunError, preflight, script};

/// A command that is ready to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments.
    pub args: Vec<OsString>,
    /// Interpreter that will import torch, if it can be determined.
    pub python: Option<PathBuf>,
    /// Program of the same name on `PATH` that was skipped because it has no torch.
    pub skipped: Option<PathBuf>,
}

impl Command {
    /// The command as text.
    pub fn words(&self) -> Vec<String> {
        let program = self.program.as_os_str();
        std::iter::once(program)
            .chain(self.args.iter().map(OsString::as_os_str))
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }
}

/// Resolves the words of a command. A path is used unchanged. A name is looked up in the activated
/// environment; then on `PATH`, except for Python programs without torch; then next to memfit. A Python file
/// that is not executable is passed to `python`.
pub fn resolve(words: &[OsString], home: &Home) -> Result<Command, RunError> {
    let has_torch = |python: &Path| preflight::interpreter(python).is_ok_and(|found| found.has_torch());
    resolve_in(words, &Folders::find(home), &has_torch)
}

fn resolve_in(
    words: &[OsString],
    folders: &Folders,
    has_torch: &dyn Fn(&Path) -> bool,
) -> Result<Command, RunError> {
    let (first, rest) = words.split_first().ok_or_else(|| not_found(OsStr::new(""), Vec::new()))?;
    let path = Path::new(first);
    let is_file_of_python = path.extension().is_some_and(|extension| extension == "py");
    if is_file_of_python && !is_executable(path) {
        let words: Vec<_> = std::iter::once("python".into()).chain(words.iter().cloned()).collect();
        return resolve_in(&words, folders, has_torch);
    }
    let mut skipped = None;
    let program = if first.as_bytes().contains(&b'/') {
        if !is_executable(path) {
            return Err(not_found(first, vec![path.to_owned()]));
        }
        path.to_owned()
    } else {
        folders.choose(first, has_torch, &mut skipped)?
    };
    let args = rest.to_vec();
    let python = if is_python(&program) {
        if let Some(script) = script::from_interpreter_args(&args).filter(|script| !script.exists()) {
            return Err(RunError::ScriptNotFound { path: script });
        }
        Some(program.clone())
    } else {
        program_interpreter(&program, folders)
    };
    Ok(Command { program, args, python, skipped })
}

fn not_found(name: &OsStr, looked: Vec<PathBuf>) -> RunError {
    RunError::CommandNotFound { name: name.to_string_lossy().into_owned(), looked }
}

/// Folders that are searched for programs.
#[derive(Clone, Debug, Default)]
struct Folders {
    /// Folders of an activated environment.
    activated: Vec<PathBuf>,
    /// Folders on `PATH`.
    path: Vec<PathBuf>,
    /// Folders of memfit itself, and of the interpreter in whose environment it is installed.
    beside: Vec<PathBuf>,
}

impl Folders {
    fn find(home: &Home) -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let installed = home.python.as_deref().and_then(Path::parent).map(Path::to_owned);
        // A stand-alone memfit that is not on `PATH` can still run itself.
        let own = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
        Self {
            activated: ["VIRTUAL_ENV", "CONDA_PREFIX"]
                .iter()
                .filter_map(|name| set(name))
                .map(|path| path.join("bin"))
                .collect(),
            path: std::env::var_os("PATH").iter().flat_map(std::env::split_paths).collect(),
            beside: installed.into_iter().chain(own).collect(),
        }
    }

    /// All of them, in order.
    fn in_order(&self) -> Vec<PathBuf> {
        [&self.activated, &self.path, &self.beside].into_iter().flatten().cloned().collect()
    }

    /// Finds a program by name. A Python program on `PATH` without torch is passed over (`skipped`) if there
    /// is one next to memfit.
    fn choose(
        &self,
        name: &OsStr,
        has_torch: &dyn Fn(&Path) -> bool,
        skipped: &mut Option<PathBuf>,
    ) -> Result<PathBuf, RunError> {
        if let Some(program) = find(name, &self.activated) {
            return Ok(program);
        }
        let (on_path, beside) = (find(name, &self.path), find(name, &self.beside));
        let Some(on_path) = on_path else { return beside.ok_or_else(|| not_found(name, self.in_order())) };
        let Some(beside) = beside.filter(|beside| *beside != on_path) else { return Ok(on_path) };
        let python =
            if is_python(&on_path) { Some(on_path.clone()) } else { program_interpreter(&on_path, self) };
        if python.is_none_or(|python| has_torch(&python)) {
            return Ok(on_path);
        }
        *skipped = Some(on_path);
        Ok(beside)
    }
}

fn find(name: &OsStr, folders: &[PathBuf]) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Returns `true` for an interpreter's name: `python`, `python3`, `python3.14`, `python3.14t`.
fn is_python(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix("python").is_some_and(|version| {
        version.trim_end_matches('t').bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    })
}

/// Interpreter of a program written in Python (`torchrun`, `accelerate`): the one in its shebang line,
/// otherwise the one next to it.
fn program_interpreter(program: &Path, folders: &Folders) -> Option<PathBuf> {
    let named = first_line(program).and_then(|line| interpreter_in_shebang(&line));
    if let Some(named) = named {
        let path = if named.is_absolute() { named } else { find(named.as_os_str(), &folders.in_order())? };
        return is_python(&path).then_some(path);
    }
    let beside = program.with_file_name("python");
    is_executable(&beside).then_some(beside)
}

fn first_line(program: &Path) -> Option<Vec<u8>> {
    // The kernel reads no more than this of the first line.
    let mut head = Vec::new();
    std::fs::File::open(program).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.split(|byte| *byte == b'\n').next()?;
    line.strip_prefix(b"#!").map(<[u8]>::to_vec)
}

/// Parses `/usr/bin/python3 -E`, `/usr/bin/env python3`, `/usr/bin/env -S python3 -u`.
fn interpreter_in_shebang(line: &[u8]) -> Option<PathBuf> {
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map(|word| PathBuf::from(OsString::from_vec(word.to_vec())));
    let first = words.next()?;
    if first.file_name().is_some_and(|name| name == "env") {
        return words.find(|word| !word.as_os_str().as_bytes().starts_with(b"-"));
    }
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_known_by_name() {
        for name in ["python", "python3", "python3.14", "python3.14t", "/opt/x/bin/python3"] {
            assert!(is_python(Path::new(name)), "{name}");
        }
        for name in ["pythonista", "ipython", "torchrun", "python-config", ""] {
            assert!(!is_python(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn first_lines_name_interpreters() {
        let check = |line: &str, wanted: Option<&str>| {
            assert_eq!(interpreter_in_shebang(line.as_bytes()), wanted.map(PathBuf::from), "{line}");
        };
        check("/usr/bin/python3", Some("/usr/bin/python3"));
        check(" /usr/bin/python3 -E", Some("/usr/bin/python3"));
        check("/usr/bin/env python3", Some("python3"));
        check("/usr/bin/env -S python3 -u", Some("python3"));
        check("", None);
    }

    #[test]
    fn a_path_is_taken_as_it_is_and_must_be_there() {
        let home = Home::default();
        let command = resolve(&["/bin/sh".into(), "-c".into(), "true".into()], &home).unwrap();
        assert_eq!(command.program, Path::new("/bin/sh"));
        assert_eq!(command.args, ["-c", "true"]);
        let missing = resolve(&["./no-such-program".into()], &home);
        assert!(matches!(missing, Err(RunError::CommandNotFound { .. })));
    }

    #[test]
    fn python_is_the_environments_then_the_paths_then_the_one_beside_memfit() {
        let root = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let folder = root.path().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            for program in ["python", "torchrun"] {
                let text = format!("#!{}\n", folder.join("python").display());
                std::fs::write(folder.join(program), text).unwrap();
                let mode = std::fs::Permissions::from_mode(0o755);
                std::fs::set_permissions(folder.join(program), mode).unwrap();
            }
            folder
        };
        let (active, path, beside) = (folder("active"), folder("path"), folder("beside"));
        let check = |activated: bool, torch_on_path: bool, wanted: &Path, skips: bool| {
            let folders = Folders {
                activated: activated.then(|| active.clone()).into_iter().collect(),
                path: vec![path.clone()],
                beside: vec![beside.clone()],
            };
            let has_torch = |python: &Path| !python.starts_with(&path) || torch_on_path;
            for program in ["python", "torchrun"] {
                let command = resolve_in(&[program.into()], &folders, &has_torch).unwrap();
                assert_eq!(command.program, wanted.join(program));
                assert_eq!(command.python, Some(wanted.join("python")));
                assert_eq!(command.skipped, skips.then(|| path.join(program)));
            }
        };
        check(true, true, &active, false);
        check(false, true, &path, false);
        check(false, false, &beside, true);
        let alone = Folders { path: vec![path.clone()], ..Folders::default() };
        let command = resolve_in(&["python".into()], &alone, &|_| false).unwrap();
        assert_eq!((command.program, command.skipped), (path.join("python"), None));
        let script = resolve_in(&["python".into(), "no-such-script.py".into()], &alone, &|_| true);
        assert!(matches!(script, Err(RunError::ScriptNotFound { .. })));
    }
}
