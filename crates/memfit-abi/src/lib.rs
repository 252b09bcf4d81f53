//! The C boundary of the device libraries: pointers from C callers, handles, entry points that catch every
//! panic, and the tally of refused calls.
//!
//! This crate does not know the effect of any call.

pub mod foreign;
pub mod guard;
pub mod handles;
pub mod stubs;
pub mod tally;

pub use foreign::{In, Out, Ptr};
pub use guard::Api;
