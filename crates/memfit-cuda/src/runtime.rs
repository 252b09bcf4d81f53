//! The CUDA runtime's calls.
//!
//! Each is a thin face: it checks what its caller hands in, asks the module that owns the matter, and writes
//! the answer.

mod copy;
mod device;
mod entry_point;
mod error;
mod event;
mod graph;
mod ipc;
mod memory;
pub(crate) mod pool;
mod stream;

pub(crate) use device::{by_pci_bus_id, pci_bus_id};
