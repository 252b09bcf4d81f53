//! CUDA kernels: what their machine code and names tell, what a launch leaves in memory, and how long it
//! takes.
//!
//! [`binary`] reads the containers that compilers embed, [`values`] follows the contents of memory through
//! launches, [`cost`] estimates durations. Both see the device's memory through the trait [`memory::Memory`].
//!
//! It must not know streams, calls, or the process that it runs in: there is no state in it.

pub mod binary;
pub mod cost;
pub mod launch;
pub mod memory;
pub mod values;
