//! Combinations of memory-saving levers: the savings and costs of each alone add up accurately enough to
//! select the sets that are worth a run.

use memfit_vocabulary::{Lever, Value};

use super::divide::{Doubt, MAX_SLOWER_RUNS, MIN_REL_GAIN};
use super::{Search, milliseconds};
use crate::answer::Tried;
use crate::levers::{Entry, may_be_divided};
use crate::trial::{Candidate, Outcome, Room, Trial};

/// Maximum number of sets that are run.
const MAX_SETS: usize = 4;

/// Maximum number of levers whose subsets are enumerated.
const MAX_LEVERS: usize = 10;

/// Memory-saving levers, each tried alone.
#[derive(Clone, Debug)]
pub(super) struct Paying {
    /// Candidate without them.
    pub(super) base: Candidate,
    /// Outcome.
    pub(super) without: Outcome,
    /// Levers with savings.
    pub(super) levers: Vec<Paid>,
}

/// Result of one lever.
#[derive(Clone, Debug)]
pub(super) struct Paid {
    /// Candidate with the lever alone.
    alone: Candidate,
    entry: &'static Entry,
    value: Value,
    saved: u64,
    cost_ms: f64,
}

/// Set of levers that is expected to fit.
struct Set {
    levers: Vec<usize>,
    candidate: Candidate,
    /// Predicted step time.
    step_ms: f64,
    /// Lower bound of the step time if an untested prediction is wrong, with its variant.
    doubt: Option<(Candidate, Doubt)>,
}

impl Set {
    fn least_ms(&self) -> Option<f64> {
        self.doubt.as_ref().map(|(_, doubt)| doubt.least_ms)
    }
}

impl Paid {
    pub(super) fn is_of(&self, lever: Lever) -> bool {
        self.entry.lever == lever
    }

    pub(super) fn from_outcomes(
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
    /// Tries combinations of memory-saving levers, and returns the fastest plan that fits.
    pub(super) fn combine(&mut self, mut best: Option<Tried>) -> Result<Option<Tried>, T::Error> {
        let Some(paying) = self.paying.clone() else { return Ok(best) };
        let (mut runs, mut looks) = (MAX_SETS, MAX_SLOWER_RUNS);
        let mut done: Vec<Candidate> = Vec::new();
        while !self.interrupted {
            let bar = best.as_ref().map_or(f64::INFINITY, |best| milliseconds(&best.outcome));
            let enough = bar * (1.0 - MIN_REL_GAIN);
            let sets = self.sets(&paying, &done);
            if let Some(set) = sets.first().filter(|set| set.step_ms < enough && runs > 0) {
                runs -= 1;
                done.push(set.candidate.clone());
                best = self.run_set(set, &paying, best)?;
                continue;
            }
            let could_be = sets.iter().filter(|set| set.least_ms().is_some_and(|least| least < enough));
            let most_promising = could_be.min_by(|a, b| {
                let least = |set: &Set| set.least_ms().unwrap_or(f64::INFINITY);
                least(a).total_cmp(&least(b))
            });
            let Some((start, doubt)) = most_promising.and_then(|set| set.doubt.as_ref()) else { break };
            if runs == 0 || looks == 0 {
                break;
            }
            looks -= 1;
            self.measure_step_time(start, *doubt)?;
        }
        Ok(best)
    }

    /// Runs a set, and returns the best plan then.
    fn run_set(
        &mut self,
        set: &Set,
        paying: &Paying,
        best: Option<Tried>,
    ) -> Result<Option<Tried>, T::Error> {
        let Some(outcome) = self.run(&set.candidate, Room::Boundless)? else { return Ok(best) };
        if !outcome.fits || !outcome.refused.is_empty() {
            let names: Vec<&str> =
                set.levers.iter().map(|index| paying.levers[*index].entry.lever.name()).collect();
            let why = outcome.refused.first().map_or_else(|| outcome.failure(), |(_, why)| why.clone());
            self.reject(names.join(" + "), why);
            return Ok(best);
        }
        Ok(self.divide(&set.candidate, &outcome, best.as_ref())?.or(best))
    }

    /// Sets that are expected to fit and were not tried, the fastest first.
    fn sets(&self, paying: &Paying, done: &[Candidate]) -> Vec<Set> {
        let levers = &paying.levers;
        let mut sets: Vec<Set> = (1_u32..1 << levers.len().min(MAX_LEVERS))
            .filter_map(|bits| {
                let chosen: Vec<usize> = (0..levers.len()).filter(|index| bits >> index & 1 == 1).collect();
                let candidate = with_all_levers(&paying.base, chosen.iter().map(|index| &levers[*index]))?;
                let was_divided = self.divided.iter().any(|(known, _)| *known == candidate);
                if was_divided || done.contains(&candidate) {
                    return None;
                }
                let (step_ms, doubt) = self.expected(paying, &chosen, may_be_divided(&candidate).is_err())?;
                Some(Set { levers: chosen, candidate, step_ms, doubt })
            })
            .collect();
        // Of two equally fast sets, the one with fewer levers.
        sets.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms).then(a.levers.len().cmp(&b.levers.len())));
        sets
    }

    /// Predicted step time with these levers, and its lower bound: from the variant without them or with one
    /// of them, plus the savings and costs of the others.
    fn expected(
        &self,
        paying: &Paying,
        chosen: &[usize],
        whole: bool,
    ) -> Option<(f64, Option<(Candidate, Doubt)>)> {
        let levers = &paying.levers;
        let starts = std::iter::once((&paying.base, None))
            .chain(chosen.iter().map(|index| (&levers[*index].alone, Some(*index))));
        let estimates = starts.filter_map(|(start, own)| {
            let (_, divided) = self.divided.iter().find(|(candidate, _)| candidate == start)?;
            let others = || chosen.iter().filter(|index| own != Some(**index)).map(|index| &levers[*index]);
            let saved = others().map(|paid| paid.saved).sum();
            let cost: f64 = others().map(|paid| paid.cost_ms).sum();
            let estimate = divided.estimate(self.limits.budget, saved, whole)?;
            let doubt = estimate.doubt.map(|doubt| Doubt { least_ms: doubt.least_ms + cost, ..doubt });
            Some((estimate.step_ms + cost, doubt.map(|doubt| (start.clone(), doubt))))
        });
        estimates.min_by(|a, b| a.0.total_cmp(&b.0))
    }
}

/// Adds all of the levers to a candidate; `None` if they are incompatible.
fn with_all_levers<'a>(base: &Candidate, levers: impl Iterator<Item = &'a Paid>) -> Option<Candidate> {
    let mut candidate = base.clone();
    let mut wanted: Vec<Lever> = Vec::new();
    for paid in levers {
        candidate = paid.entry.add_to(&candidate, paid.value.clone()).ok()?;
        wanted.push(paid.entry.lever);
    }
    let has = |lever: &Lever| candidate.settings.iter().any(|setting| setting.lever == *lever);
    wanted.iter().all(has).then_some(candidate)
}
