//! Answers which GPU a script needs, how many, and what the training costs there.
//!
//! Owns the verdicts on the GPUs of a catalogue from as few runs as possible ([`Judge`]: one run per
//! architecture, replays for its other GPUs, and a run if a replay could be wrong), the price file and the
//! price of a training run ([`Prices`]), the order of rows and their Pareto front, and the estimated memory
//! of N replicas of a single-process script. `memfit plan` uses [`smallest_fitting`] to find the smallest GPU
//! on which a script fits.
//!
//! It does not know command lines or terminals, nor how a script is run or how a plan is searched for.

mod architecture;
mod arguments;
mod judge;
mod needs;
mod order;
mod planned;
mod prices;
mod replay;
mod replicas;
mod rows;
mod smallest;
mod sweep;
mod workload;

pub use architecture::{Architecture, architectures};
pub use arguments::{Arguments, ArgumentsError};
pub use judge::{Judge, Judged};
pub use order::arrange;
pub use planned::{apply_plan, to_plan};
pub use prices::{Prices, PricesError};
pub use replicas::replicated;
pub use rows::{price_rows, row};
pub use smallest::smallest_fitting;
pub use sweep::{Found, Question, SweepError, sweep};
pub use workload::Workload;
