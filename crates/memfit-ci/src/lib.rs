//! Memory as a reviewed number: what a commit changes about the peaks of a project's scripts, and where.
//!
//! Owns the settings under `[tool.memfit.ci]` ([`CiSettings`]), the measurement of a run that is kept
//! ([`Measurement`]), its file in the project ([`Measurement::to_toml`]), the comparison of two measurements
//! ([`compare`]) with the lines and modules that grew, and the search for the largest batch that fits
//! ([`largest_batch`]).
//!
//! It must not know command lines, terminals, processes or git: it is given reports and recordings of runs.

mod baseline;
mod batch;
mod compare;
mod lines;
mod measurement;
mod settings;

pub use baseline::{BaselineError, file_name};
pub use batch::largest_batch;
pub use compare::{Question, compare, failed};
pub use measurement::{MeasuredLine, MeasuredModule, Measurement, Roots};
pub use settings::{CiSettings, JudgedPeak, MaxGrowth, Script, ScriptSettings};
