//! The virtual CUDA device: memory, streams, events and kernels, under the names of the CUDA runtime and the
//! driver.
//!
//! Every exported name is in the prototype lists (`api/*.api`), as *modelled* (written by hand in this
//! crate), *harmless* or *refused* (both generated from the lists). The libraries above the device access it
//! through [`card`].
//!
//! This crate does not know recordings or Python.

mod attributes;
mod beside;
mod capture;
pub mod card;
mod clock;
mod context;
mod copies;
mod driver;
mod entry_points;
mod errors;
mod failing;
mod graphs;
mod guard;
mod kernels;
mod limits;
mod machine;
mod mark;
mod memory;
mod properties;
mod repeat;
mod runtime;
mod sharing;
mod space;
mod status;
mod streams;
mod stubs;
mod thread;
mod transfer;
mod values;
mod versions;
mod watch;

pub use machine::report_refusal;

/// Names and offsets of the fields of `cudaDeviceProp` in a CUDA major version, with the structure's size
/// under an empty name; for the test that compares them with the headers. `None` outside a run.
#[doc(hidden)]
pub fn property_layout(cuda_major: i32) -> Option<Vec<(&'static str, usize)>> {
    properties::layout(cuda_major)
}
