//! CUDA kernels: their machine code and names, the effect of a launch on memory, and its duration.
//!
//! [`binary`] reads the containers that compilers embed. A [`Descriptor`] describes one kernel: it is found
//! once, from the kernel's name, in the table of [`families`]. Its effect on the known contents of memory is
//! in [`values`], its duration in [`cost`]. Both receive a [`launch`], and see the device's memory through
//! the trait [`memory::Memory`].
//!
//! This crate must not know streams, calls, or the process that it runs in: it has no state.

pub mod binary;
pub mod cost;
pub mod families;
pub mod launch;
mod layout;
pub mod memory;
mod name;
mod triton;
pub mod values;

pub use families::Descriptor;
