//! What the user's command means: which program, which interpreter, which script.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::script;
use crate::{Home, RunError};

/// A command that can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// The interpreter that will import torch, where that can be told.
    pub python: Option<PathBuf>,
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

/// Finds what the words mean. A path is taken as it is; a name is looked up in the activated environment,
/// then beside memfit, then on `PATH`. A Python file that cannot be executed is given to `python`.
pub fn resolve(words: &[OsString], home: &Home) -> Result<Command, RunError> {
    let (first, rest) = words.split_first().ok_or_else(|| not_found(OsStr::new(""), Vec::new()))?;
    let path = Path::new(first);
    let is_file_of_python = path.extension().is_some_and(|extension| extension == "py");
    if is_file_of_python && !is_executable(path) {
        let words: Vec<_> = std::iter::once("python".into()).chain(words.iter().cloned()).collect();
        return resolve(&words, home);
    }
    let program = if first.as_bytes().contains(&b'/') {
        if !is_executable(path) {
            return Err(not_found(first, vec![path.to_owned()]));
        }
        path.to_owned()
    } else {
        look_up(first, &folders(home))?
    };
    let args = rest.to_vec();
    let python = if is_python(&program) {
        if let Some(script) = script::of_interpreter(&args).filter(|script| !script.exists()) {
            return Err(RunError::ScriptNotFound { path: script });
        }
        Some(program.clone())
    } else {
        interpreter_of(&program, home)
    };
    Ok(Command { program, args, python })
}

fn not_found(name: &OsStr, looked: Vec<PathBuf>) -> RunError {
    RunError::CommandNotFound { name: name.to_string_lossy().into_owned(), looked }
}

/// Where programs are looked for, in order.
fn folders(home: &Home) -> Vec<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .iter()
        .filter_map(|name| set(name))
        .map(|path| path.join("bin"))
        .collect();
    // What memfit is installed beside: an environment's interpreter, whose own folder holds its other
    // programs.
    folders.extend(home.python.as_deref().and_then(Path::parent).map(Path::to_owned));
    folders.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    // A stand-alone memfit that is on no path can still run itself.
    folders.extend(std::env::current_exe().ok().as_deref().and_then(Path::parent).map(Path::to_owned));
    folders
}

fn look_up(name: &OsStr, folders: &[PathBuf]) -> Result<PathBuf, RunError> {
    folders
        .iter()
        .map(|folder| folder.join(name))
        .find(|path| is_executable(path))
        .ok_or_else(|| not_found(name, folders.to_vec()))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Whether a program's name is an interpreter's: `python`, `python3`, `python3.14`, `python3.14t`.
fn is_python(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix("python").is_some_and(|version| {
        version.trim_end_matches('t').bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    })
}

/// The interpreter of a program written in Python (`torchrun`, `accelerate`): the one its first line names,
/// else the one that stands beside it.
fn interpreter_of(program: &Path, home: &Home) -> Option<PathBuf> {
    let named = first_line(program).and_then(|line| interpreter_in_shebang(&line));
    if let Some(named) = named {
        let path =
            if named.is_absolute() { named } else { look_up(named.as_os_str(), &folders(home)).ok()? };
        return is_python(&path).then_some(path);
    }
    let beside = program.with_file_name("python");
    is_executable(&beside).then_some(beside)
}

fn first_line(program: &Path) -> Option<Vec<u8>> {
    // The kernel itself reads no more than this of a first line.
    let mut head = Vec::new();
    std::fs::File::open(program).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.split(|byte| *byte == b'\n').next()?;
    line.strip_prefix(b"#!").map(<[u8]>::to_vec)
}

/// `/usr/bin/python3 -E`, `/usr/bin/env python3`, `/usr/bin/env -S python3 -u`.
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
    fn the_interpreter_memfit_is_installed_beside_comes_before_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("python");
        std::fs::write(&python, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        let home = Home { python: Some(python.clone()), ..Home::default() };
        if std::env::var_os("VIRTUAL_ENV").is_none() && std::env::var_os("CONDA_PREFIX").is_none() {
            assert_eq!(resolve(&["python".into()], &home).unwrap().program, python);
        }
        let script = resolve(&["python".into(), "no-such-script.py".into()], &home);
        assert!(matches!(script, Err(RunError::ScriptNotFound { .. })));
    }
}
