//! What a program's images tell of its kernels: containers, machine code, and the cards that run it.

pub mod arch;
pub mod code;
pub mod cubin;
pub mod fatbin;

pub use code::Code;
pub use cubin::{Function, Param};
