//! CUDA kernels: what their machine code and names tell, what a launch leaves in memory, and how long it
//! takes.
//!
//! [`binary`] reads the containers that compilers embed. A [`Descriptor`] says what is known of one kernel:
//! it is found once, from the kernel's name, in the table of [`families`]. Its effect on the known contents
//! of memory is in [`values`], its duration in [`cost`]. Both see a launch as [`launch`] has it, and the
//! device's memory through the trait [`memory::Memory`].
//!
//! It must not know streams, calls, or the process that it runs in: there is no state in it.

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
