//! The C boundary of the device libraries: pointers that a C caller hands in, handles that it is given, entry
//! points that no panic leaves, and the tally of refused calls.
//!
//! It must not know what any call does.

pub mod foreign;
pub mod guard;
pub mod handles;
pub mod stubs;
pub mod tally;

pub use foreign::{In, Out, Ptr};
pub use guard::Api;
