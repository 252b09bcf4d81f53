//! Levers that the search may use, in the order in which they are tried.
//!
//! Each lever's own file states whether it is worth a trial (`memfit_vocabulary::Search`). Micro-batches,
//! checkpointing and offloading are not listed here: their extent is computed.

use std::sync::LazyLock;

use memfit_vocabulary::{Lever, Search, Sense, Situation, Training, Value};

use crate::limits::Limits;
use crate::plan::Expected;
use crate::trial::Candidate;

/// Lever of the search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Lever.
    pub(crate) lever: Lever,
    /// Conditions for the search.
    pub(crate) search: Search,
}

/// All entries in the order in which they are tried.
pub(crate) fn entries() -> &'static [Entry] {
    static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
        let entry = |lever: &Lever| Some(Entry { lever: *lever, search: lever.declaration().search? });
        let mut entries: Vec<Entry> = Lever::ALL.iter().filter_map(entry).collect();
        entries.sort_by_key(|entry| entry.search.place);
        entries
    });
    &ENTRIES
}

/// Entry of a lever.
pub(crate) fn entry(lever: Lever) -> Option<&'static Entry> {
    entries().iter().find(|entry| entry.lever == lever)
}

/// Levers that a search may use.
pub fn movable() -> Vec<Lever> {
    let calculated = [Lever::MicroBatch, Lever::Checkpointing, Lever::ActivationOffload];
    calculated.into_iter().chain(entries().iter().map(|entry| entry.lever)).collect()
}

impl Limits {
    /// Situation that a lever is judged by: the training and its peak without the lever.
    pub(crate) const fn situation<'a>(&self, training: &'a Training, peak: &Expected) -> Situation<'a> {
        Situation {
            training,
            allocated: peak.allocated,
            reserved: peak.reserved,
            device_upper: peak.device_upper,
            budget: self.budget,
            cards: self.cards,
            has_bf16: self.has_bf16,
            has_tf32: self.has_tf32,
            link: self.link,
            compiles: self.compiles,
            global_batch: self.global_batch,
        }
    }
}

impl Entry {
    /// Judges whether the lever makes sense.
    pub(crate) fn sense(&self, situation: &Situation<'_>) -> Sense {
        (self.search.sense)(situation)
    }

    /// Returns `true` if a candidate contains what the lever acts on.
    pub(crate) fn acts_on(&self, candidate: &Candidate, training: &Training) -> bool {
        !self.search.of_compiled || training.compiled || candidate.value(Lever::Compile).is_some()
    }

    /// Adds the lever to a candidate. Fails with the reason if it is incompatible.
    pub(crate) fn add_to(&self, candidate: &Candidate, value: Value) -> Result<Candidate, String> {
        let mut with = candidate.clone();
        with.settings.retain(|setting| !self.search.instead_of.contains(&setting.lever));
        for (lever, value) in self.search.with {
            if with.value(*lever).is_none() {
                with = with.with_lever(*lever, value.clone());
            }
        }
        let divided = with.micro_batch.is_some().then_some(Lever::MicroBatch);
        for other in with.settings.iter().map(|setting| setting.lever).chain(divided) {
            if let Some(why) = self.lever.excludes(other) {
                return Err(format!("it cannot be combined with `{other}`: {why}"));
            }
        }
        Ok(with.with_lever(self.lever, value))
    }
}

/// Checks that a candidate may be divided into micro-batches.
pub(crate) fn may_be_divided(candidate: &Candidate) -> Result<(), String> {
    match candidate.settings.iter().find_map(|setting| setting.lever.excludes(Lever::MicroBatch)) {
        Some(why) => Err(why.to_owned()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_levers_are_not_combined() {
        let entry = |lever: Lever| entry(lever).unwrap();
        let bf16 = Candidate::as_is().with_lever(Lever::AutocastBf16, Value::default());
        assert!(
            entry(Lever::AutocastFp16).add_to(&bf16, Value::default()).unwrap_err().contains("autocast-bf16")
        );
        // Pure bf16 replaces autocast.
        let pure = entry(Lever::PureBf16).add_to(&bf16, Value::default()).unwrap();
        assert_eq!(pure.settings.len(), 1);
        // Frozen weights in 4 bits require LoRA adapters to be trained.
        let quantized = entry(Lever::QuantizedBase).add_to(&Candidate::as_is(), Value::default()).unwrap();
        assert!(matches!(quantized.value(Lever::Lora), Some(Value::Count(_))));
        let mut divided = Candidate::as_is();
        divided.micro_batch = Some(4);
        assert!(entry(Lever::OptimizerInBackward).add_to(&divided, Value::default()).is_err());
        assert!(
            may_be_divided(&Candidate::as_is().with_lever(Lever::OptimizerInBackward, Value::default()))
                .is_err()
        );
    }
}
