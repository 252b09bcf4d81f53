//! Memory as the device knows it: which addresses are whose.
//!
//! Device memory is address space without pages behind it: nothing on the host may follow a device pointer,
//! as on a real machine. What it costs is booked in the run's ledger, in the driver's granularity.
//! Page-locked and managed memory can be used on the host, so they have pages.

mod books;
pub(crate) mod device;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod physical;
pub(crate) mod pool;
pub(crate) mod small;

/// The driver maps device memory in pieces of this size.
pub(crate) const GRANULARITY: u64 = 2 << 20;
