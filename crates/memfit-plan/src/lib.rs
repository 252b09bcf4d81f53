//! The fastest way to make a training fit: which levers, how far, and the file that says so.
//!
//! Owns the plan and its file ([`Plan`]), the choice of what to keep, recompute and offload, the search over levers, and
//! what is told of both. It must not know how a candidate is run, and asks a trait for that; nor how an answer looks.

mod file;
mod fingerprint;
mod plan;
mod setting;

pub use file::{MAX_BYTES, PlanError, VERSION};
pub use fingerprint::{Difference, Here, sha256};
pub use plan::{Expected, MadeFor, Plan};
pub use setting::{Setting, Value, in_short};
