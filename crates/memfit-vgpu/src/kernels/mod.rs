//! Kernels: what a program registers, what the card could run of it, and what a launch does.
//!
//! Nothing is computed. A launch is checked as CUDA checks it, and told to [`crate::values`], which knows what follows for
//! the contents of memory.

mod arch;
mod attributes;
mod code;
mod cubin;
mod errors;
mod fatbin;
pub mod fuzz;
mod image;
mod kernel;
mod launch;
mod loading;
mod module;
mod occupancy;
mod register;
mod registry;
mod variables;

pub(crate) use code::Code;
pub(crate) use cubin::{Function, Param, Section, sections};
