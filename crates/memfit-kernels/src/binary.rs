//! Kernel images of a program: containers, machine code, and the devices that can run it.

pub mod arch;
pub mod code;
pub mod cubin;
pub mod fatbin;

pub use code::Code;
pub use cubin::{Function, Param};
