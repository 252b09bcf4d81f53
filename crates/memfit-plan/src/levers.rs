//! The levers that the search may move, one file each: when one makes sense, how far it is moved, and what
//! has to go for it.
//!
//! What a lever is called, its label and what it excludes are of `memfit-vocabulary`; how it is applied is of
//! `python/memfit/_levers`. Dividing the batch, computing blocks again and sending them to the host are no
//! entries here: how far those go is calculated.

mod activation_budget;
mod adafactor;
mod autocast;
mod bf16_state;
mod channels_last;
mod chunked_loss;
mod compile;
mod eight_bit;
mod expandable_segments;
mod foreach_off;
mod fused;
mod gradient_as_bucket_view;
mod host_state;
mod in_backward;
mod kv_cache;
mod length_buckets;
mod loader_workers;
mod lora;
mod pure_bf16;
mod quantized_weights;
mod resize;
mod sdpa;
mod shard;
mod tf32;

use memfit_vocabulary::Lever;

pub use length_buckets::{Padding, padding};
pub use loader_workers::{Host, Loader, loader};

use crate::plan::Expected;
use crate::search::Limits;
use crate::setting::Value;
use crate::trial::{Candidate, Training};

/// What a lever is asked about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// The training.
    pub(crate) training: &'a Training,
    /// What it takes without the lever.
    pub(crate) peak: &'a Expected,
    /// Within what a plan has to stay.
    pub(crate) limits: &'a Limits,
}

/// Whether a lever makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sense {
    /// It is worth a run, moved so far.
    Try(Value),
    /// There is something that it would act on, and a reason against it.
    Against(String),
    /// There is nothing that it could act on.
    Nothing,
}

/// When a lever is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Always: it costs little where it helps.
    First,
    /// Where memory is short after those: it pays for memory with time, or with another training.
    WhereShort,
}

/// One lever of the search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Which.
    pub(crate) lever: Lever,
    /// When it is tried.
    pub(crate) turn: Turn,
    /// Whether it makes sense.
    pub(crate) sense: fn(Asked<'_>) -> Sense,
    /// Levers that go where this one comes.
    pub(crate) instead_of: &'static [Lever],
    /// Levers that come with it.
    pub(crate) with: &'static [(Lever, Value)],
}

/// All of them, in the order in which they are tried.
pub(crate) const ENTRIES: &[Entry] = &[
    fused::ENTRY,
    foreach_off::ENTRY,
    sdpa::ENTRY,
    autocast::BF16,
    autocast::FP16,
    tf32::ENTRY,
    channels_last::ENTRY,
    chunked_loss::ENTRY,
    compile::ENTRY,
    gradient_as_bucket_view::ENTRY,
    expandable_segments::ENTRY,
    activation_budget::ENTRY,
    in_backward::ENTRY,
    host_state::ENTRY,
    bf16_state::ENTRY,
    eight_bit::ENTRY,
    adafactor::ENTRY,
    pure_bf16::ENTRY,
    shard::ENTRY,
    lora::ENTRY,
    lora::QUANTIZED,
    quantized_weights::ENTRY,
    kv_cache::EIGHT_BIT,
    kv_cache::WINDOW,
    resize::ENTRY,
];

/// The one that moves a lever.
pub(crate) fn entry(lever: Lever) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.lever == lever)
}

/// The levers that a search may move.
pub fn movable() -> Vec<Lever> {
    let calculated = [Lever::MicroBatch, Lever::Checkpointing, Lever::ActivationOffload];
    calculated.into_iter().chain(ENTRIES.iter().map(|entry| entry.lever)).collect()
}

/// What is less than this part of all that is there is not worth a run.
const WORTH: u64 = 20;

impl Asked<'_> {
    /// Whether so many bytes are worth a lever.
    const fn is_worth(self, bytes: u64) -> bool {
        bytes > 0 && bytes.saturating_mul(WORTH) >= self.peak.device_upper
    }

    /// Whether the optimizer's state is.
    const fn has_state(self) -> bool {
        self.training.optimizes && self.is_worth(self.training.state)
    }
}

/// Makes sense where something is true of the training.
fn when(true_of: bool) -> Sense {
    if true_of { Sense::Try(Value::default()) } else { Sense::Nothing }
}

impl Entry {
    /// Whether a candidate has what this lever acts on.
    pub(crate) fn acts_on(&self, candidate: &Candidate, training: &Training) -> bool {
        self.lever != Lever::ActivationBudget
            || training.compiled
            || candidate.value(Lever::Compile).is_some()
    }

    /// The candidate with this lever; why not, where it cannot stand beside what is there.
    pub(crate) fn on(&self, candidate: &Candidate, value: Value) -> Result<Candidate, String> {
        let mut with = candidate.clone();
        with.settings.retain(|setting| !self.instead_of.contains(&setting.lever));
        for (lever, value) in self.with {
            if with.value(*lever).is_none() {
                with = with.with(*lever, value.clone());
            }
        }
        let divided = with.micro_batch.is_some().then_some(Lever::MicroBatch);
        for other in with.settings.iter().map(|setting| setting.lever).chain(divided) {
            if let Some(why) = self.lever.excludes(other) {
                return Err(format!("it cannot stand beside `{other}`: {why}"));
            }
        }
        Ok(with.with(self.lever, value))
    }
}

/// Whether a candidate may be divided into pieces.
pub(crate) fn may_be_divided(candidate: &Candidate) -> Result<(), String> {
    match candidate.settings.iter().find_map(|setting| setting.lever.excludes(Lever::MicroBatch)) {
        Some(why) => Err(why.to_owned()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use memfit_vocabulary::Label;

    use super::*;

    #[test]
    fn each_lever_is_there_once_and_what_it_replaces_is_excluded_or_useless_beside_it() {
        for (index, entry) in ENTRIES.iter().enumerate() {
            assert!(ENTRIES[..index].iter().all(|other| other.lever != entry.lever), "{}", entry.lever);
            assert!(!entry.instead_of.contains(&entry.lever), "{}", entry.lever);
        }
    }

    #[test]
    fn what_excludes_each_other_is_not_put_together() {
        let entry = |lever: Lever| ENTRIES.iter().find(|entry| entry.lever == lever).unwrap();
        let bf16 = Candidate::as_is().with(Lever::AutocastBf16, Value::default());
        assert!(
            entry(Lever::AutocastFp16).on(&bf16, Value::default()).unwrap_err().contains("autocast-bf16")
        );
        // Everything in bf16 takes the place of autocast.
        let pure = entry(Lever::PureBf16).on(&bf16, Value::default()).unwrap();
        assert_eq!(pure.settings.len(), 1);
        let mut divided = Candidate::as_is();
        divided.micro_batch = Some(4);
        assert!(entry(Lever::OptimizerInBackward).on(&divided, Value::default()).is_err());
        assert!(
            may_be_divided(&Candidate::as_is().with(Lever::OptimizerInBackward, Value::default())).is_err()
        );
    }

    #[test]
    fn nothing_is_tried_on_what_is_not_there() {
        let (training, peak) = (Training::default(), Expected::default());
        let limits = Limits {
            allow: Label::ChangesTraining,
            budget: 1 << 30,
            global_batch: None,
            has_bf16: true,
            has_tf32: true,
            compiles: true,
            most_runs: 1,
            ..Limits::default()
        };
        let asked = Asked { training: &training, peak: &peak, limits: &limits };
        for entry in ENTRIES {
            let sense = (entry.sense)(asked);
            let of_numbers = matches!(entry.lever, Lever::AutocastBf16 | Lever::Tf32);
            assert_eq!(matches!(sense, Sense::Try(_)), of_numbers, "{}: {sense:?}", entry.lever);
        }
    }
}
