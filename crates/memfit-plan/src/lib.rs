//! Planning: the fastest way to make training fit, as a set of levers and a plan file.
//!
//! Owns the plan and its file ([`Plan`]), the choice of blocks to keep, recompute and offload, the search
//! over levers, and its results. It does not know how a candidate is run (a trait does that) or how an answer
//! is presented.

mod answer;
mod choose;
mod feeding;
mod file;
mod fingerprint;
mod framework;
mod front;
mod launch;
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
pub use framework::{framework_call, framework_environment, framework_settings};
pub use front::{Point, front};
pub use launch::{Launch, LaunchError, Launcher};
pub use levers::movable;
pub use limits::Limits;
pub use loading::{Host, Loader, loader};
pub use padding::{Padding, padding};
pub use plan::{Expected, MadeFor, Plan};
pub use search::{Machines, search, search_carried, search_spread};
pub use setting::Setting;
pub use trial::{Busy, Candidate, Outcome, RankTrial, Room, Trial};
