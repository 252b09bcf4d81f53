//! The CUDA driver's calls.
//!
//! As in [`crate::runtime`], each is a thin face over the module that owns the matter.

mod basics;
mod context;
