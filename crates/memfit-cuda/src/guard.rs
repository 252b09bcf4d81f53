//! The boundary: what the modelled calls of the runtime and of the driver come to for their callers.
//!
//! The runtime's calls leave their error behind for `cudaGetLastError`.

use memfit_abi::Api;

use crate::{
    machine,
    status::{Outcome, Status},
    thread,
};

/// The driver's calls.
pub(crate) struct Driver;

impl Api for Driver {
    type Outcome = Outcome;

    #[inline]
    fn answer(self, outcome: Outcome) -> i32 {
        outcome.map_or_else(|status| status.0, |()| 0)
    }

    #[cold]
    fn panicked(self, name: &str) -> i32 {
        machine::refused(&format!("{name} (internal error)"));
        Status::UNKNOWN.0
    }
}

/// The runtime's calls.
pub(crate) struct Runtime;

impl Api for Runtime {
    type Outcome = Outcome;

    #[inline]
    fn answer(self, outcome: Outcome) -> i32 {
        let status = Driver.answer(outcome);
        if status != 0 {
            thread::set_last_error(status);
        }
        status
    }

    #[cold]
    fn panicked(self, name: &str) -> i32 {
        let status = Driver.panicked(name);
        thread::set_last_error(status);
        status
    }
}
