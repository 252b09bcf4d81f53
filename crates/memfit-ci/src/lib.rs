//! Tracks memory over commits: how a commit changes the peaks of a project's scripts, and on which lines.
//!
//! Owns the settings under `[tool.memfit.ci]` ([`CiSettings`]), the stored measurement of a run
//! ([`Measurement`]) and its file in the project ([`Measurement::to_toml`]), the comparison of two
//! measurements ([`compare`]) with the lines and modules that grew, and the search for the largest batch that
//! fits ([`largest_batch`]).
//!
//! It does not know command lines, terminals, processes or git: its input are reports and recordings of runs.

mod baseline;
mod batch;
mod compare;
mod lines;
mod measurement;
mod settings;

pub use baseline::{BaselineError, file_name};
pub use batch::largest_batch;
pub use compare::{Comparison, compare, failed};
pub use measurement::{MeasuredLine, MeasuredModule, Measurement, Roots};
pub use settings::{CiSettings, JudgedPeak, MaxGrowth, Script, ScriptSettings, ScriptsError};
