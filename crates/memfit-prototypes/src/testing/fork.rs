//! Running a test in a child process, so that a crash or a hang is a failure with a name.

use std::any::Any;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seconds after which a child counts as hung.
const PATIENCE: u32 = 60;

/// Runs `test` in a forked child, and gives what it found wrong. The calling process must have one thread that matters.
pub fn in_child(test: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the child calls `test` and leaves without returning into the test harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "cannot fork");
    if pid == 0 {
        // SAFETY: an alarm ends the child if it hangs; the descriptor is this process's own.
        let mut report = unsafe {
            libc::alarm(PATIENCE);
            File::from_raw_fd(ends[1])
        };
        let outcome = catch_unwind(AssertUnwindSafe(test)).unwrap_or_else(|payload| Err(said(&*payload)));
        if let Err(what) = outcome {
            let _ = report.write_all(what.as_bytes());
        }
        // SAFETY: nothing of the parent's is to be run again, such as its handlers at exit.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: both descriptors are this process's own, and each is closed once.
    let mut report = unsafe {
        libc::close(ends[1]);
        File::from_raw_fd(ends[0])
    };
    let mut text = String::new();
    let _ = report.read_to_string(&mut text);
    let mut status = 0;
    // SAFETY: the child is this process's own.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFSIGNALED(status) {
        return Err(match libc::WTERMSIG(status) {
            libc::SIGALRM => format!("did not come back in {PATIENCE} s"),
            signal => format!("was killed by signal {signal}"),
        });
    }
    if text.is_empty() { Ok(()) } else { Err(text) }
}

/// What a panic said.
fn said(payload: &(dyn Any + Send)) -> String {
    let text =
        payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    text.unwrap_or("panicked").to_owned()
}
