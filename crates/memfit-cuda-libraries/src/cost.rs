//! How long the work of libraries takes: convolutions as products of matrices ([`convolution`]), transforms
//! and solvers ([`library`]), collectives ([`collective`]).
//!
//! Must not know streams, clocks or calls: whoever queues work asks here how long it is.

pub(crate) mod collective;
pub(crate) mod convolution;
pub(crate) mod library;

#[cfg(test)]
pub(crate) fn of_card(name: &str) -> memfit_kernels::cost::Speeds {
    memfit_kernels::cost::Speeds::of(memfit_devices::Catalogue::builtin().unwrap().find(name).unwrap())
}
