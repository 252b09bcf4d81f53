//! Who held the memory: judgements over a [`Recording`](memfit_recording::Recording).
//!
//! [`at_peak`] says what filled a device when its tensors took the most, [`at`] says it for any moment, and [`category`] what
//! one block was for. A block is what it was told to be for; where nothing was told, its life says it: what is made in a module's call of the
//! forward and outlives that call is an activation, what does not is temporary.
//!
//! This crate knows neither terminals nor files: it turns a recording into facts, and others show them.

mod category;
mod composition;
mod out_of_memory;

pub use category::{Lives, category, category_with};
pub use composition::{Composition, ModuleBytes, at, at_peak, peak_moment};
pub use out_of_memory::{OutOfMemory, out_of_memory};
