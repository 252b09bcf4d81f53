//! Interruption of a run by the user.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Records signals that ask memfit to stop.
#[derive(Debug)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    registered: Vec<signal_hook::SigId>,
}

impl Interrupt {
    /// Starts listening for signals.
    pub fn listen() -> Self {
        let flag = Arc::new(AtomicBool::new(false));
        let registered = [SIGINT, SIGTERM, SIGHUP]
            .into_iter()
            .filter_map(|signal| signal_hook::flag::register(signal, Arc::clone(&flag)).ok())
            .collect();
        Self { flag, registered }
    }

    /// Returns `true` if a signal has arrived.
    pub fn happened(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}
