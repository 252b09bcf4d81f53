//! Which GPU a script needs, how many, and what training there costs.
//!
//! Owns the verdicts on the GPUs of a catalogue from as few runs as possible ([`Judge`]: one run for each
//! architecture, replays for its other GPUs, and a run wherever a replay could be wrong), the price file and
//! the price of a training ([`Prices`]), the order of rows and their Pareto front, and what N replicas of a
//! script of one process would take. The smallest GPU on which a script fits ([`smallest_fitting`]) is asked
//! of it by `memfit plan`.
//!
//! It must not know command lines, terminals, nor how a script is run or a plan is searched for.

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

pub use architecture::{Architecture, UNLIMITED, architectures};
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
