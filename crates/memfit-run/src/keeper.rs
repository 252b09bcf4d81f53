//! A small process that briefly outlives memfit if memfit is killed.
//!
//! A run must not leave processes behind, even if memfit itself gets a signal that it cannot handle. The
//! keeper waits on a pipe whose other end only memfit holds. When that end closes, the keeper ends the run's
//! processes and removes the run directory. A run that ends normally ends its keeper first.

#![allow(unsafe_code, reason = "processes are started, watched and ended by system calls")]

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::AsRawFd as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use memfit_channel::RunDir;

use crate::{process, tree};

/// Held while a keeper starts. Two keepers started at once would inherit each other's pipe ends, and neither
/// would see its pipe close.
static STARTING: Mutex<()> = Mutex::new(());

/// Handle to the keeper process.
#[derive(Debug)]
pub(crate) struct Keeper {
    pid: libc::pid_t,
    /// Write end of the pipe; the keeper waits for it to close.
    _alive: PipeWriter,
}

impl Keeper {
    /// Starts the keeper.
    pub(crate) fn start(run_dir: &RunDir, keep_files: bool) -> io::Result<Self> {
        let _turn = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let (reader, writer) = io::pipe()?;
        // SAFETY: the child runs only code of this file and leaves by `_exit`. The only locks it takes that
        // another thread could have held at the fork are the C library's own, which glibc makes usable in the
        // child.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(writer);
                keeper_main(reader, run_dir, keep_files)
            }
            pid => Ok(Self { pid, _alive: writer }),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // SAFETY: the process is a child that has not been waited for, so the id is still its own.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// Main function of the keeper.
fn keeper_main(mut alive: PipeReader, run_dir: &RunDir, keep_files: bool) -> ! {
    leave_the_terminal();
    let _end = alive.read(&mut [0]);
    let mut quiet = 0;
    while quiet < 3 {
        let left = tree::with_run_dir(run_dir);
        quiet = if left.is_empty() { quiet + 1 } else { 0 };
        left.into_iter().for_each(process::kill);
        std::thread::sleep(Duration::from_millis(20));
    }
    if !keep_files {
        let _gone = std::fs::remove_dir_all(run_dir.path());
    }
    // SAFETY: ends the process without running any of memfit's code.
    unsafe { libc::_exit(0) }
}

/// Detaches from the terminal, and closes stdin, stdout and stderr so that a reader of memfit's output sees
/// EOF.
fn leave_the_terminal() {
    let null = File::options().read(true).write(true).open("/dev/null");
    // SAFETY: these calls change only this process's session and its own three descriptors.
    unsafe {
        libc::setsid();
        if let Ok(null) = null {
            for descriptor in 0..3 {
                libc::dup2(null.as_raw_fd(), descriptor);
            }
        }
    }
}
