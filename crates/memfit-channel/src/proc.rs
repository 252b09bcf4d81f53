//! Facts about processes from `/proc`. Any process may have ended, or belong to another user, at any time.

#![allow(unsafe_code, reason = "memory and locks are shared with other processes")]

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::ffi::OsStrExt as _,
};

/// State of a process, from `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Process id of its parent.
    pub parent: u32,
    /// `true` for a zombie: ended, and waiting to be reaped.
    pub ended: bool,
    /// CPU time used, in clock ticks.
    pub ticks: u64,
    /// Start time in clock ticks since boot.
    pub start: u64,
}

impl Stat {
    /// Reads the state of a process.
    pub fn read(pid: u32) -> io::Result<Self> {
        Self::read_file(&format!("/proc/{pid}/stat"))
    }

    /// Reads the state of a process's first thread, which started when the process did; `ticks` are its own.
    ///
    /// All processes see the same start time here: the emulator of qemu's user mode makes up the
    /// `/proc/PID/stat` that a process reads of itself, with another time than the kernel's.
    pub(crate) fn read_first_thread(pid: u32) -> io::Result<Self> {
        Self::read_file(&format!("/proc/{pid}/task/{pid}/stat"))
    }

    fn read_file(path: &str) -> io::Result<Self> {
        Self::parse(&fs::read(path)?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{path} is not as expected")))
    }

    /// The name, which may contain anything, is in parentheses; after it come the state (field 3), the parent
    /// (4), user and system time (14 and 15) and the start time (22).
    fn parse(line: &[u8]) -> Option<Self> {
        let end = line.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            parent: u32::try_from(number(4)?).ok()?,
            ended: matches!(*fields.first()?, "Z" | "X" | "x"),
            ticks: number(14)? + number(15)?,
            start: number(22)?,
        })
    }
}

/// Ids of all visible processes.
pub fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Words of the command line that a process was started with.
pub fn command_line(pid: u32) -> io::Result<Vec<OsString>> {
    let line = fs::read(format!("/proc/{pid}/cmdline"))?;
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    Ok(line.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned()).collect())
}

/// Value of a variable in the environment that a process was started with; `None` for another user's process.
pub fn variable(pid: u32, name: &str) -> Option<OsString> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(OsStr::from_bytes(value).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_behind_any_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21\n";
        for name in ["python", "a b", "x) Z 9 (", "(a) b (c)", ""] {
            let line = format!("77 ({name}) {rest}");
            let expected = Stat { parent: 1, ended: false, ticks: 11 + 12, start: 4242 };
            assert_eq!(Stat::parse(line.as_bytes()), Some(expected), "{name:?}");
        }
        for wrong in ["", "77 (x", "77 (cut) S 1 2"] {
            assert_eq!(Stat::parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn this_process_is_seen() {
        let me = std::process::id();
        assert!(pids().contains(&me));
        assert!(!Stat::read(me).unwrap().ended);
        let arguments: Vec<OsString> = std::env::args_os().collect();
        assert_eq!(command_line(me).unwrap(), arguments);
        assert_eq!(variable(me, "PATH"), std::env::var_os("PATH"));
        assert_eq!(variable(me, "MEMFIT_NO_SUCH_VARIABLE"), None);
    }

    #[test]
    fn a_zombie_has_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        // SAFETY: `info` is writable, and the child is this process's; this does not reap it.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, child.id(), &raw mut info, libc::WEXITED | libc::WNOWAIT);
        }
        assert!(Stat::read(child.id()).unwrap().ended);
        child.wait().unwrap();
    }
}
