//! Whether the process that holds something is still there.

use std::{fs, io};

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it began, in the kernel's ticks since boot.
    pub start: u64,
}

impl ProcessId {
    /// This process.
    pub fn current() -> io::Result<Self> {
        let pid = std::process::id();
        let (start, _) = stat(pid)?;
        Ok(Self { pid, start })
    }

    /// Whether it still runs. A zombie has given its memory back, and counts as gone.
    pub fn is_alive(self) -> bool {
        match stat(self.pid) {
            Ok((start, state)) => start == self.start && !matches!(state, b'Z' | b'X' | b'x'),
            // Where it cannot be told, nothing is taken away from anyone.
            Err(error) => {
                !matches!(error.kind(), io::ErrorKind::NotFound) && error.raw_os_error() != Some(libc::ESRCH)
            }
        }
    }
}

/// A process's start time and state.
fn stat(pid: u32) -> io::Result<(u64, u8)> {
    let text = fs::read(format!("/proc/{pid}/stat"))?;
    parse(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/stat is not as expected"))
}

/// The name, which may hold anything, stands in parentheses; after it come the state (field 3) and the start time (22).
fn parse(text: &[u8]) -> Option<(u64, u8)> {
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = text[end + 1..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let start = std::str::from_utf8(fields.nth(18)?).ok()?.trim().parse().ok()?;
    Some((start, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_state_and_start_behind_any_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21\n";
        for name in ["python", "a b", "x) S 9 (", ""] {
            let text = format!("77 ({name}) {rest}");
            assert_eq!(parse(text.as_bytes()), Some((4242, b'S')), "{name:?}");
        }
        assert_eq!(parse(b"77 (cut) S 1 2"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn this_process_lives_and_another_start_time_does_not() {
        let me = ProcessId::current().unwrap();
        assert!(me.is_alive());
        assert!(
            !ProcessId { start: me.start + 1, ..me }.is_alive(),
            "a reused process id is another process"
        );
    }

    #[test]
    fn a_zombie_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let id = ProcessId { pid: child.id(), start: stat(child.id()).unwrap().0 };
        assert!(id.is_alive());
        child.kill().unwrap();
        // Not reaped yet: wait for the kernel to end it, without collecting it.
        // SAFETY: `info` is a valid place for the answer, and the child is ours.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, child.id(), &raw mut info, libc::WEXITED | libc::WNOWAIT);
        }
        assert!(!id.is_alive());
        child.wait().unwrap();
        assert!(!id.is_alive());
    }
}
