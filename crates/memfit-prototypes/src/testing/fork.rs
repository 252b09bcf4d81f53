//! Runs a test in a child process, so that a crash or a hang is a named failure.

#![allow(unsafe_code, reason = "the test bench calls C functions")]

use std::any::Any;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Seconds after which a child counts as hung.
const CHILD_TIMEOUT_SECONDS: u32 = 60;

/// `true` if this process is a child of a test.
static CHILD: AtomicBool = AtomicBool::new(false);

/// Silences panics in a child, which its report describes. Another thread of the parent may have been
/// printing at the fork, so its lock would be held in the child for ever.
fn silence_children() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !CHILD.load(Ordering::Relaxed) {
                print(panic);
            }
        }));
    });
}

/// Runs `test` in a forked child, and returns its error. `test` must not depend on other threads, which do
/// not exist in the child.
pub fn in_child(test: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    silence_children();
    let mut ends = [0; 2];
    // SAFETY: `ends` has space for the two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the child calls `test` and leaves without returning into the test harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "cannot fork");
    if pid == 0 {
        CHILD.store(true, Ordering::Relaxed);
        // SAFETY: an alarm ends the child if it hangs; the descriptor belongs to this process.
        let mut report = unsafe {
            libc::alarm(CHILD_TIMEOUT_SECONDS);
            File::from_raw_fd(ends[1])
        };
        let outcome =
            catch_unwind(AssertUnwindSafe(test)).unwrap_or_else(|payload| Err(panic_message(&*payload)));
        if let Err(what) = outcome {
            let _ = report.write_all(what.as_bytes());
        }
        // SAFETY: none of the parent's code, such as its exit handlers, may run again.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: both descriptors belong to this process, and each is closed once.
    let mut report = unsafe {
        libc::close(ends[1]);
        File::from_raw_fd(ends[0])
    };
    let mut text = String::new();
    let _ = report.read_to_string(&mut text);
    let mut status = 0;
    // SAFETY: the child belongs to this process.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFSIGNALED(status) {
        return Err(match libc::WTERMSIG(status) {
            libc::SIGALRM => format!("did not finish within {CHILD_TIMEOUT_SECONDS} s"),
            signal => format!("was killed by signal {signal}"),
        });
    }
    if text.is_empty() { Ok(()) } else { Err(text) }
}

/// Message of a panic.
fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text =
        payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    text.unwrap_or("panicked").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_result_reports_how_it_ended() {
        assert_eq!(in_child(|| Ok(())), Ok(()));
        assert_eq!(in_child(|| Err("this is wrong".to_owned())), Err("this is wrong".to_owned()));
        assert_eq!(in_child(|| panic!("out of hand")), Err("out of hand".to_owned()));
        // SAFETY: the child ends itself.
        let killed = in_child(|| unsafe { libc::abort() });
        assert_eq!(killed, Err(format!("was killed by signal {}", libc::SIGABRT)));
    }
}
