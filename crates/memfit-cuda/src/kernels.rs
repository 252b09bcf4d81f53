//! Kernels: registration, the code that a device can run, and the effect of a launch.
//!
//! Kernels compute nothing. A launch is checked as CUDA checks it and passed to [`crate::values`], which
//! tracks its effect on the contents of memory.

mod attributes;
mod errors;
mod image;
mod kernel;
mod launch;
mod loading;
mod module;
mod occupancy;
mod register;
mod registry;
mod variables;
