//! What a training step does next: how a batch is split, what a loss is divided by, and what follows from a
//! failure.
//!
//! A [`Controller`] is told facts (a batch of so many samples arrived, a micro-batch ran out of memory, the
//! step is done) and answers with decisions (these ranges, this divisor, again with half of it). The same
//! facts give the same decisions, so ranks that were told the same decide alike, and a step can be replayed
//! in a test without a model.
//!
//! This crate does no I/O and knows no tensors: it must not know torch, clocks, processes or files. Whoever
//! calls torch asks here what to do.

mod agreement;
mod cache;
mod ceiling;
mod controller;
mod error;
mod fault;
mod growth;
mod predictor;
mod scale;
mod split;
mod stop;
mod update;
mod window;

pub use agreement::{Outcome, Status, Verdict, agree};
pub use cache::Space;
pub use controller::{Attempt, Controller, Decision, Failure, Settings, Turn};
pub use error::TrainError;
pub use fault::{Evidence, Fault, Library, classify};
pub use growth::{Growth, Leak};
pub use predictor::Predictor;
pub use scale::{ScaleHistory, ScaleTrouble};
pub use split::{Part, split, split_by_cost, split_in_pairs};
pub use stop::{Remedy, asked_for, remedies};
pub use update::{Update, UpdateNeed};
pub use window::Window;
