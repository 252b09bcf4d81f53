//! Calls of the CUDA driver, except those declared together with the runtime call of the same meaning.
//!
//! As in [`crate::runtime`], each call is a thin wrapper around the module that implements it.

mod basics;
mod context;
mod copy;
mod memory;
mod stream;
mod virtual_memory;
