//! Decisions of a training step: the split of a batch into micro-batches, the divisor of losses, the reaction
//! to failures.
//!
//! A [`Controller`] receives events (a batch arrived, a micro-batch ran out of memory, the step is done) and
//! returns decisions (these ranges, this divisor, retry with half the size). The same events give the same
//! decisions, so that ranks with the same events decide alike, and a step can be replayed in a test without a
//! model.
//!
//! This crate does no I/O. It does not know torch, tensors, clocks, processes or files; the caller of torch
//! asks it for decisions.

mod agreement;
mod cache;
mod ceiling;
mod controller;
mod error;
mod fault;
mod growth;
mod noise;
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
pub use noise::{NoiseEstimate, NoiseSample, NoiseScale};
pub use predictor::Predictor;
pub use scale::{ScaleHistory, ScaleTrouble};
pub use split::{Part, smaller_micro_batch, split, split_by_cost};
pub use stop::{Remedy, remedies, requested_bytes};
pub use update::{Update, UpdateNeed};
pub use window::Window;
