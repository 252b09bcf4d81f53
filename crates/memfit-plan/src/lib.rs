//! The fastest way to make a training fit: which levers, how far, and the file that says so.
//!
//! Owns the plan and its file ([`Plan`]), the choice of what to keep, recompute and offload, the search over
//! levers, and what is told of both. It must not know how a candidate is run, and asks a trait for that; nor
//! how an answer looks.

mod answer;
mod choose;
mod feeding;
mod file;
mod fingerprint;
mod framework;
mod front;
mod levers;
mod limits;
mod loading;
mod padding;
mod plan;
mod predict;
mod search;
mod setting;
mod trial;

pub use answer::{Answer, Limit, Rejected, Tried, Verdict};
pub use choose::{Block, Choice, Fate, Offload, choose, peak};
pub use feeding::{Batches, Fed, Given, Proposal, expected, propose};
pub use file::{MAX_BYTES, PlanError, VERSION};
pub use fingerprint::{Difference, Here, sha256};
pub use framework::in_its_words;
pub use front::{Point, front};
pub use levers::movable;
pub use limits::Limits;
pub use loading::{Host, Loader, loader};
pub use padding::{Padding, padding};
pub use plan::{Expected, MadeFor, Plan};
pub use search::{search, search_carried};
pub use setting::Setting;
pub use trial::{Candidate, Outcome, Room, Trial};
