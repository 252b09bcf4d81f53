//! The CUDA driver's calls, but those that are declared together with the runtime's of the same meaning.
//!
//! As in [`crate::runtime`], each is a thin face over the module that owns the matter.

mod basics;
mod context;
mod copy;
mod memory;
mod stream;
mod virtual_memory;
