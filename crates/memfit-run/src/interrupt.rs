//! Interruption by the user.

#![allow(unsafe_code, reason = "the operating system is asked what a signal does")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Records signals that ask memfit to stop.
///
/// A command with several runs listens from its first run to its last, and each run listens, too. All of them
/// share what has arrived: no run goes on after a signal, and none is lost between two runs.
#[derive(Debug)]
pub struct Interrupt(());

/// State of the signal handlers of this process.
struct Signals {
    /// Set by a signal.
    arrived: Arc<AtomicBool>,
    /// Set while nobody listens. A signal then does what it did before memfit listened for the first time.
    unheard: Arc<AtomicBool>,
    /// Number of listeners.
    listeners: Mutex<usize>,
}

static SIGNALS: LazyLock<Signals> = LazyLock::new(|| {
    let signals = Signals {
        arrived: Arc::new(AtomicBool::new(false)),
        unheard: Arc::new(AtomicBool::new(true)),
        listeners: Mutex::new(0),
    };
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        match action(signal) {
            // The parent process wants memfit to continue after this signal, as `nohup` does.
            Some(libc::SIG_IGN) => continue,
            Some(libc::SIG_DFL) => {
                let _unheard = flag::register_conditional_default(signal, Arc::clone(&signals.unheard));
            }
            // Other handlers, such as Python's, are called in any case.
            _ => {}
        }
        let _arrived = flag::register(signal, Arc::clone(&signals.arrived));
    }
    signals
});

impl Interrupt {
    /// Starts listening for signals.
    pub fn listen() -> Self {
        let signals = &*SIGNALS;
        let mut listeners = signals.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if *listeners == 0 {
            signals.arrived.store(false, Ordering::Relaxed);
            signals.unheard.store(false, Ordering::Relaxed);
        }
        *listeners += 1;
        Self(())
    }

    /// Returns `true` if a signal has arrived since the first of the present listeners began.
    pub fn happened(&self) -> bool {
        SIGNALS.arrived.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        let mut listeners = SIGNALS.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        *listeners -= 1;
        SIGNALS.unheard.store(*listeners == 0, Ordering::Relaxed);
    }
}

/// Current action of a signal.
fn action(signal: i32) -> Option<libc::sighandler_t> {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call only writes the present action to `action`, which is read if that succeeded.
    unsafe {
        let found = libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0;
        found.then(|| action.assume_init().sa_sigaction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The listeners of a process share a flag, so this is one test.
    #[test]
    fn a_signal_reaches_all_listeners_and_no_later_command() {
        let command = Interrupt::listen();
        drop(Interrupt::listen());
        assert!(!command.happened());
        signal_hook::low_level::raise(SIGTERM).unwrap();
        let next_run = Interrupt::listen();
        assert!(command.happened() && next_run.happened(), "it arrived between two runs");
        drop(command);
        assert!(next_run.happened());
        drop(next_run);
        assert!(SIGNALS.unheard.load(Ordering::Relaxed), "signals end the process again");
        assert!(!Interrupt::listen().happened());
    }
}
