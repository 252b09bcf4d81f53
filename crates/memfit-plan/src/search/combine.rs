//! Levers that pay for memory, several at once: what each of them alone saves and costs adds up well enough to tell which sets
//! of them are worth a run.

use memfit_levers::Lever;

use super::divide::NOTICEABLE;
use super::{Search, milliseconds};
use crate::answer::Tried;
use crate::levers::{Entry, may_be_divided};
use crate::setting::Value;
use crate::trial::{Candidate, Outcome, Room, Trial};

/// So many sets are run, at most.
const MOST: usize = 4;

/// Of so many levers every set is looked at.
const MOST_LEVERS: usize = 10;

/// Levers that pay for memory, each tried alone.
#[derive(Clone, Debug)]
pub(super) struct Paying {
    /// What they were tried on.
    pub(super) base: Candidate,
    /// Those that saved something.
    pub(super) levers: Vec<Paid>,
}

/// What one of them came to.
#[derive(Clone, Debug)]
pub(super) struct Paid {
    /// The lever alone.
    alone: Candidate,
    entry: &'static Entry,
    value: Value,
    saved: u64,
    cost_ms: f64,
}

/// A set of them.
struct Set {
    levers: Vec<usize>,
    candidate: Candidate,
    /// What a step is expected to take, where it is expected to fit.
    step_ms: f64,
}

impl Paid {
    pub(super) fn of(
        entry: &'static Entry,
        value: Value,
        without: &Outcome,
        (alone, with): &(Candidate, Outcome),
    ) -> Self {
        let saved = without.peak.device_upper.saturating_sub(with.peak.device_upper);
        Self {
            alone: alone.clone(),
            entry,
            value,
            saved,
            cost_ms: milliseconds(with) - milliseconds(without),
        }
    }
}

impl<T: Trial> Search<'_, T> {
    /// The fastest that fits, with several levers that pay for memory where that is faster than what is known.
    pub(super) fn combine(&mut self, mut best: Option<Tried>) -> Result<Option<Tried>, T::Error> {
        let Some(paying) = self.paying.take() else { return Ok(best) };
        for set in self.sets(&paying).into_iter().take(MOST) {
            let bar = best.as_ref().map_or(f64::INFINITY, |best| milliseconds(&best.outcome));
            if set.step_ms >= bar * (1.0 - NOTICEABLE) {
                break;
            }
            let Some(outcome) = self.run(&set.candidate, Room::Boundless)? else { break };
            if !outcome.fits || !outcome.refused.is_empty() {
                let names: Vec<&str> =
                    set.levers.iter().map(|index| paying.levers[*index].entry.lever.name()).collect();
                let why = outcome.refused.first().map_or_else(|| outcome.failure(), |(_, why)| why.clone());
                self.reject(names.join(" + "), why);
                continue;
            }
            if let Some(found) = self.divide(&set.candidate, &outcome, best.as_ref())? {
                best = Some(found);
            }
        }
        Ok(best)
    }

    /// The sets that are expected to fit and were not divided yet, the fastest first.
    fn sets(&self, paying: &Paying) -> Vec<Set> {
        let levers = &paying.levers;
        let mut sets: Vec<Set> = (1_u32..1 << levers.len().min(MOST_LEVERS))
            .filter_map(|bits| {
                let chosen: Vec<usize> = (0..levers.len()).filter(|index| bits >> index & 1 == 1).collect();
                let candidate = together(&paying.base, chosen.iter().map(|index| &levers[*index]))?;
                if self.divided.iter().any(|(known, _)| *known == candidate) {
                    return None;
                }
                let step_ms = self.expected(paying, &chosen, may_be_divided(&candidate).is_err())?;
                Some(Set { levers: chosen, candidate, step_ms })
            })
            .collect();
        // Of two that are as fast, the one with fewer levers.
        sets.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms).then(a.levers.len().cmp(&b.levers.len())));
        sets
    }

    /// What a step is expected to take with these levers: as it was without them, or with one of them, and what the others save
    /// and cost.
    fn expected(&self, paying: &Paying, chosen: &[usize], whole: bool) -> Option<f64> {
        let levers = &paying.levers;
        let starts = std::iter::once((&paying.base, None))
            .chain(chosen.iter().map(|index| (&levers[*index].alone, Some(*index))));
        let estimates = starts.filter_map(|(start, own)| {
            let (_, divided) = self.divided.iter().find(|(candidate, _)| candidate == start)?;
            let others = || chosen.iter().filter(|index| own != Some(**index)).map(|index| &levers[*index]);
            let saved = others().map(|paid| paid.saved).sum();
            let cost: f64 = others().map(|paid| paid.cost_ms).sum();
            Some(divided.estimate(self.limits.budget, saved, whole)? + cost)
        });
        estimates.min_by(f64::total_cmp)
    }
}

/// All of them on one candidate; nothing where they cannot stand beside each other.
fn together<'a>(base: &Candidate, levers: impl Iterator<Item = &'a Paid>) -> Option<Candidate> {
    let mut candidate = base.clone();
    let mut wanted: Vec<Lever> = Vec::new();
    for paid in levers {
        candidate = paid.entry.on(&candidate, paid.value.clone()).ok()?;
        wanted.push(paid.entry.lever);
    }
    let has = |lever: &Lever| candidate.settings.iter().any(|setting| setting.lever == *lever);
    wanted.iter().all(has).then_some(candidate)
}
