//! Identity and liveness of the processes that hold memory.

#![allow(unsafe_code, reason = "memory and locks are shared with other processes")]

use std::io;

use crate::proc::Stat;

/// Identity of a process, distinct from any later one with the same process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// Process id.
    pub pid: u32,
    /// Start time in the kernel's ticks since boot.
    pub start: u64,
}

impl ProcessId {
    /// Identity of this process.
    pub fn current() -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self { pid, start: Stat::read_first_thread(pid)?.start })
    }

    /// Returns `true` if it still runs. A zombie has released its memory, and counts as dead.
    pub fn is_alive(self) -> bool {
        match Stat::read_first_thread(self.pid) {
            Ok(stat) => stat.start == self.start && !stat.ended,
            // If that cannot be determined, no memory is taken away.
            Err(error) => {
                !matches!(error.kind(), io::ErrorKind::NotFound) && error.raw_os_error() != Some(libc::ESRCH)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let id = ProcessId { pid: child.id(), start: Stat::read(child.id()).unwrap().start };
        assert_eq!(Stat::read_first_thread(child.id()).unwrap().start, id.start);
        assert!(id.is_alive());
        child.kill().unwrap();
        // Not reaped yet: wait for the kernel to end it, without collecting it. SAFETY: `info` is writable,
        // and the child is this process's.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, child.id(), &raw mut info, libc::WEXITED | libc::WNOWAIT);
        }
        assert!(!id.is_alive());
        child.wait().unwrap();
        assert!(!id.is_alive());
    }
}
