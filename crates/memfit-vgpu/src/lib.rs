//! The virtual CUDA device: one shared object, `libcuda.so.1`, that stands in front of CUDA's libraries.
//!
//! It owns what a CUDA device means to a process: memory, streams, events, kernels, and the libraries above them as
//! PyTorch calls them. Every name that those libraries export is in the prototype lists (`api/*.api`), and each of them is
//! *modelled* (written here by hand), *harmless* or *refused* (both generated from the lists).
//!
//! It must not know Recordings or Python.

mod abi;
mod attributes;
mod clock;
mod context;
mod copies;
mod cost;
mod driver;
mod entry_points;
mod errors;
mod failing;
mod graphs;
mod guard;
mod handles;
mod kernels;
mod libraries;
mod limits;
mod machine;
mod mark;
mod memory;
mod properties;
mod runtime;
mod sharing;
mod status;
mod streams;
mod stubs;
mod tally;
mod thread;
mod values;
mod versions;
mod watch;

/// The names and offsets of the fields of `cudaDeviceProp` as a CUDA major has them, with the structure's size under an empty
/// name; for the test that compares them with the headers. Nothing outside a run.
#[doc(hidden)]
pub fn property_layout(cuda_major: i32) -> Option<Vec<(&'static str, usize)>> {
    properties::layout(cuda_major)
}

#[doc(hidden)]
pub use kernels::fuzz;
