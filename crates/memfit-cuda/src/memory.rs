//! Memory of the device: allocations and their addresses.
//!
//! Device memory is address space without pages behind it: host code must not dereference a device pointer,
//! as on a real machine. Its bytes are reserved in the run's ledger, in the driver's granularity. Page-locked
//! and managed memory is usable on the host, so it has pages.

mod books;
pub(crate) mod device;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod physical;
pub(crate) mod pool;
pub(crate) mod small;

/// Granularity in which the driver maps device memory, in bytes.
pub(crate) const GRANULARITY: u64 = 2 << 20;
