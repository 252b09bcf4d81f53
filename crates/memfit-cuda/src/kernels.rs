//! Kernels: what a program registers, what the card could run of it, and what a launch does.
//!
//! Nothing is computed. A launch is checked as CUDA checks it, and told to [`crate::values`], which knows
//! what follows for the contents of memory.

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
