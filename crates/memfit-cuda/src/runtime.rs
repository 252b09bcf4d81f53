//! Calls of the CUDA runtime.
//!
//! Each call is a thin wrapper: it checks its arguments, calls the module that implements it, and writes the
//! result.

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
