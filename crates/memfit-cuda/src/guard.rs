//! The API boundary: converts outcomes of modelled calls into return codes of the runtime and the driver.
//!
//! Runtime calls also store their error for `cudaGetLastError`.

use memfit_abi::Api;

use crate::{
    machine,
    status::{Outcome, Status},
    thread,
};

/// Calls of the driver.
pub(crate) struct Driver;

impl Api for Driver {
    type Outcome = Outcome;

    #[inline]
    fn to_status(self, outcome: Outcome) -> i32 {
        outcome.map_or_else(|status| status.0, |()| 0)
    }

    #[cold]
    fn panicked(self, name: &str) -> i32 {
        machine::count_unmodelled(&format!("{name} (internal error)"));
        Status::UNKNOWN.0
    }
}

/// Calls of the runtime.
pub(crate) struct Runtime;

impl Api for Runtime {
    type Outcome = Outcome;

    #[inline]
    fn to_status(self, outcome: Outcome) -> i32 {
        let status = Driver.to_status(outcome);
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
