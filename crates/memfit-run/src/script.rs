//! Finds the script in an interpreter's arguments.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Finds the script among Python's arguments; `None` for `-c`, `-m` and standard input.
pub(crate) fn from_interpreter_args(args: &[OsString]) -> Option<PathBuf> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let bytes = arg.as_bytes();
        if bytes == b"-" || bytes == b"--help" || bytes == b"--version" {
            return None;
        }
        if bytes == b"--check-hash-based-pycs" {
            args.next();
            continue;
        }
        let Some(flags) = bytes.strip_prefix(b"-").filter(|flags| !flags.is_empty()) else {
            return Some(PathBuf::from(arg));
        };
        if flags.starts_with(b"-") {
            continue;
        }
        // Short options may be combined: `-um package`, `-W ignore`, `-Wignore`.
        for (at, flag) in flags.iter().enumerate() {
            match flag {
                b'c' | b'm' | b'V' | b'h' | b'?' => return None,
                b'W' | b'X' => {
                    if at + 1 == flags.len() {
                        args.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_found_behind_the_interpreters_options() {
        let check = |args: &str, wanted: Option<&str>| {
            let words: Vec<OsString> = args.split_whitespace().map(OsString::from).collect();
            assert_eq!(from_interpreter_args(&words), wanted.map(PathBuf::from), "python {args}");
        };
        check("train.py --epochs 3", Some("train.py"));
        check("-u train.py -m x", Some("train.py"));
        check("-W ignore train.py", Some("train.py"));
        check("-Wignore -X dev -O train.py", Some("train.py"));
        check("-uW ignore train.py", Some("train.py"));
        check("--check-hash-based-pycs never train.py", Some("train.py"));
        check("-m package.train train.py", None);
        check("-um package", None);
        check("-c pass train.py", None);
        check("- train.py", None);
        check("--version", None);
        check("", None);
    }
}
