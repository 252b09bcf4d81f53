//! Durations of library work: convolutions as matrix products ([`convolution`]), transforms and solvers
//! ([`library`]).
//!
//! This module does not know streams, clocks or calls: code that queues work calls it for the duration.

pub(crate) mod convolution;
pub(crate) mod library;

#[cfg(test)]
pub(crate) fn card_speeds(name: &str) -> memfit_kernels::cost::Speeds {
    memfit_kernels::cost::Speeds::from_device(
        memfit_devices::Catalogue::builtin().unwrap().find(name).unwrap(),
    )
}
