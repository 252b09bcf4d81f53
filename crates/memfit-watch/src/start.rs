//! Start of a process: makes sure that `PYTHONPATH`, which scripts may replace, leads to the probe.
//!
//! `PYTHONPATH=. python train.py` in a shell script, or `env` in the command, would remove the probe from the
//! path, and a run without it neither knows its steps nor ends after them. So the probe's folder is prepended
//! again before the interpreter reads the variable.

#![allow(unsafe_code, reason = "runs before the program's own code, by the linker's table")]

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
};

use memfit_channel::RunDir;

const PYTHONPATH: &str = "PYTHONPATH";

/// Called by the dynamic linker when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

extern "C" fn at_start() {
    let Some(run_dir) = RunDir::from_env() else { return };
    if let Some(path) = with_probe(run_dir.probe().as_os_str(), env::var_os(PYTHONPATH).as_deref()) {
        // SAFETY: the process has no other thread yet: the linker loads preloaded libraries before `main`.
        unsafe { env::set_var(PYTHONPATH, path) };
    }
}

/// Search path with the probe in front; `None` if it already contains the probe.
fn with_probe(probe: &OsStr, path: Option<&OsStr>) -> Option<OsString> {
    let Some(path) = path.filter(|path| !path.is_empty()) else { return Some(probe.to_owned()) };
    if path.as_bytes().split(|byte| *byte == b':').any(|folder| folder == probe.as_bytes()) {
        return None;
    }
    let mut whole = probe.to_owned();
    whole.push(":");
    whole.push(path);
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_is_put_in_front_where_it_is_missing() {
        let with = |path: Option<&str>| with_probe(OsStr::new("/run/probe"), path.map(OsStr::new));
        assert_eq!(with(None), Some("/run/probe".into()));
        assert_eq!(with(Some("")), Some("/run/probe".into()));
        assert_eq!(with(Some(".:src")), Some("/run/probe:.:src".into()));
        assert_eq!(with(Some("src:/run/probe")), None);
    }
}
