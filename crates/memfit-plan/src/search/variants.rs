//! Variants of the script with useful levers, before its batch is divided: several if memory and time call
//! for different ones.

use memfit_vocabulary::{Harm, Label, Lever, Sense, Training, Turn, Value};

use super::combine::{Paid, Paying};
use super::{Search, describe_change, milliseconds};
use crate::answer::Tried;
use crate::front::{Point, front};
use crate::levers::{Entry, entries};
use crate::plan::Expected;
use crate::trial::{Candidate, Outcome, Room, Trial};

/// Minimum relative change in time that counts.
const MIN_REL_TIME_CHANGE: f64 = 0.005;
/// Maximum ratio of memory with and without a lever for the savings to count.
const MAX_MEMORY_RATIO: f64 = 0.999;
/// Relative change below which a difference is measurement noise.
const NOISE_REL_TOLERANCE: f64 = 0.000_5;
/// Maximum ratio of memory with and without a lever for it to be worth a variant.
const MAX_VARIANT_MEMORY_RATIO: f64 = 0.99;
/// Maximum number of variants that are divided.
const MAX_DIVIDED: usize = 8;
/// Maximum number of variants that are carried from lever to lever.
const MAX_FOLLOWED: usize = 4;

type Variant = (Candidate, Outcome);

impl<T: Trial> Search<'_, T> {
    /// Levers of a turn and a degree of harm that make sense and are allowed, with their values; the others
    /// are rejected with the reason.
    pub(super) fn levers(
        &mut self,
        turn: Turn,
        harm: Harm,
        training: &Training,
        peak: &Expected,
    ) -> Vec<(&'static Entry, Value)> {
        let mut found = Vec::new();
        for entry in entries().iter().filter(|entry| entry.search.turn == turn && entry.lever.harm() == harm)
        {
            match entry.sense(&self.limits.situation(training, peak)) {
                Sense::Nothing => {}
                Sense::Against(why) => self.reject(entry.lever.name(), why),
                Sense::Try(value) => match self.limits.forbid_entry(entry) {
                    Some(why) => self.reject(entry.lever.name(), why),
                    None => found.push((entry, value)),
                },
            }
        }
        found
    }

    /// Collects the variants, in no particular order.
    pub(super) fn variants(
        &mut self,
        start: Candidate,
        first: Outcome,
        training: &Training,
    ) -> Result<Vec<Variant>, T::Error> {
        let levers = self.levers(Turn::Always, Harm::Digits, training, &first.peak);
        let mut variants = vec![(start, first)];
        for (entry, value) in levers {
            variants = most_promising(self.grown(entry, &value, variants)?);
        }
        let fastest =
            variants.iter().min_by(|a, b| milliseconds(&a.1).total_cmp(&milliseconds(&b.1))).cloned();
        let is_short = variants.iter().all(|(_, outcome)| outcome.peak.device_upper > self.limits.budget);
        let Some((base, without)) = fastest else { return Ok(variants) };
        self.paying = Some(Paying { base, without, levers: Vec::new() });
        let (more, late) =
            if is_short { self.where_short(Harm::Digits, training)? } else { Default::default() };
        variants.extend(more);
        let mut found = undominated(&variants);
        found.extend(late);
        Ok(found)
    }

    /// Variants with a lever that does this degree of harm to the training results.
    pub(super) fn harmed(&mut self, harm: Harm, training: &Training) -> Result<Vec<Variant>, T::Error> {
        let (more, late) = self.where_short(harm, training)?;
        let mut found = undominated(&more);
        found.extend(late);
        Ok(found)
    }

    /// Adds a lever to the variants that benefit from it and keeps the others. A reason for rejection is
    /// reported once, and only if no variant benefits.
    fn grown(
        &mut self,
        entry: &'static Entry,
        value: &Value,
        variants: Vec<Variant>,
    ) -> Result<Vec<Variant>, T::Error> {
        let mut grown = Vec::new();
        let mut against: Option<String> = None;
        let mut serves = false;
        // A lever without effect has none on another variant of the same precision either.
        let mut inert: Option<Candidate> = None;
        for (candidate, without) in variants {
            if inert.as_ref().is_some_and(|known| precision(known) == precision(&candidate)) {
                grown.push((candidate, without));
                continue;
            }
            let Some((with, outcome)) = self.run_with_lever(entry, value, &candidate)? else {
                grown.push((candidate, without));
                continue;
            };
            if !saves_memory_or_time(&without, &outcome) {
                if is_inert(&without, &outcome) {
                    inert = Some(candidate.clone());
                }
                against.get_or_insert_with(|| {
                    let change = describe_change(&without, &outcome);
                    if candidate.settings.is_empty() {
                        format!("no gain: {change}")
                    } else {
                        format!("no gain when added to {}: {change}", candidate.describe())
                    }
                });
                grown.push((candidate, without));
                continue;
            }
            let smaller = outcome.peak.device_upper <= without.peak.device_upper;
            let faster = milliseconds(&outcome) <= milliseconds(&without) * (1.0 + MIN_REL_TIME_CHANGE);
            serves |= smaller || faster;
            match (smaller, faster) {
                (true, true) => grown.push((with, outcome)),
                (false, false) => {
                    against.get_or_insert_with(|| describe_change(&without, &outcome));
                    grown.push((candidate, without));
                }
                (true, false) | (false, true) => {
                    grown.push((candidate, without));
                    grown.push((with, outcome));
                }
            }
        }
        if let Some(why) = against.filter(|_| !serves) {
            self.reject(entry.lever.name(), why);
        }
        Ok(grown)
    }

    /// If memory is short, adds memory-saving levers to the fastest variant: those that save memory at once,
    /// and those that save some only after recomputation removes the activations from the peak.
    fn where_short(
        &mut self,
        harm: Harm,
        training: &Training,
    ) -> Result<(Vec<Variant>, Vec<Variant>), T::Error> {
        let (mut more, mut late) = (Vec::new(), Vec::new());
        let Some(mut paying) = self.paying.clone() else { return Ok((more, late)) };
        let (base, without) = (paying.base.clone(), paying.without.clone());
        for (entry, value) in self.levers(Turn::IfMemoryShort, harm, training, &without.peak) {
            if !entry.acts_on(&base, training) {
                continue;
            }
            let Some(with) = self.run_with_lever(entry, &value, &base)? else { continue };
            self.considered.push((entry.lever, describe_change(&without, &with.1)));
            let smaller = with.1.peak.device_upper as f64
                <= without.peak.device_upper as f64 * MAX_VARIANT_MEMORY_RATIO;
            let faster = with.1.peak.device_upper <= without.peak.device_upper
                && milliseconds(&with.1) < milliseconds(&without) * (1.0 - MIN_REL_TIME_CHANGE);
            if with.1.peak.device_upper < without.peak.device_upper {
                paying.levers.push(Paid::from_outcomes(entry, value.clone(), &without, &with));
            }
            if smaller || faster {
                more.push(with);
            } else if let Some((less, least)) =
                self.run_both_recomputed((&base, &without), (&with.0, &with.1))?
                && least.peak.device_upper as f64 <= less.peak.device_upper as f64 * MAX_VARIANT_MEMORY_RATIO
            {
                self.considered.pop();
                self.considered.push((entry.lever, describe_change(&less, &least)));
                paying.levers.retain(|paid| !paid.is_of(entry.lever));
                paying.levers.push(Paid::from_outcomes(entry, value, &less, &(with.0.clone(), least)));
                late.push(with);
            }
        }
        self.paying = Some(paying);
        Ok((more, late))
    }

    /// Runs two variants with all blocks recomputed; `None` if there is nothing to recompute.
    fn run_both_recomputed(
        &mut self,
        without: (&Candidate, &Outcome),
        with: (&Candidate, &Outcome),
    ) -> Result<Option<(Outcome, Outcome)>, T::Error> {
        let (Some((less, _)), Some((least, _))) =
            (self.all_recomputed(without.0, without.1), self.all_recomputed(with.0, with.1))
        else {
            return Ok(None);
        };
        let Some(less) = self.run(&less, Room::Boundless)?.filter(|outcome| outcome.fits) else {
            return Ok(None);
        };
        let least = self.run(&least, Room::Boundless)?;
        Ok(least.filter(|outcome| outcome.fits && outcome.refused.is_empty()).map(|least| (less, least)))
    }

    /// Runs a candidate with a lever. Returns `None` if the lever had no effect; the reason is recorded.
    pub(super) fn run_with_lever(
        &mut self,
        entry: &Entry,
        value: &Value,
        candidate: &Candidate,
    ) -> Result<Option<Variant>, T::Error> {
        let with = match entry.add_to(candidate, value.clone()) {
            Ok(with) => with,
            Err(why) => {
                self.reject(entry.lever.name(), why);
                return Ok(None);
            }
        };
        let Some(outcome) = self.run(&with, Room::Boundless)? else { return Ok(None) };
        if let Some((_, why)) = outcome.refused.first() {
            self.reject(entry.lever.name(), why.clone());
            return Ok(None);
        }
        if !outcome.fits {
            self.reject(entry.lever.name(), outcome.failure());
            return Ok(None);
        }
        Ok(Some((with, outcome)))
    }

    /// Reports the results of levers that would do more harm to the training results than the plan does.
    pub(super) fn report_harmful(&mut self, training: &Training) -> Result<(), T::Error> {
        let Some(Paying { base, without, .. }) = self.paying.clone() else { return Ok(()) };
        if without.peak.device_upper <= self.limits.budget {
            return Ok(());
        }
        let taken = self.harm;
        for harm in Harm::ALL.into_iter().filter(|harm| *harm > taken) {
            for (entry, value) in self.levers(Turn::IfMemoryShort, harm, training, &without.peak) {
                let why = format!("it {}, and a plan that changes the training less fits", harm.what());
                let Some((_, with)) = self.run_with_lever(entry, &value, &base)? else { continue };
                self.reject(
                    entry.lever.name(),
                    format!("{why}; with the whole batch, {}", describe_change(&without, &with)),
                );
            }
        }
        Ok(())
    }

    /// Reports memory-saving levers that are not in the plan.
    pub(super) fn report_considered(&mut self, best: Option<&Tried>) {
        let taken = |lever: Lever| {
            best.is_some_and(|best| best.candidate.settings.iter().any(|setting| setting.lever == lever))
        };
        for (lever, why) in std::mem::take(&mut self.considered) {
            if !taken(lever) {
                let but = match best {
                    Some(_) => "the plan is faster without it",
                    None => "it is not enough",
                };
                self.reject(lever.name(), format!("{but}; with the whole batch, {why}"));
            }
        }
    }
}

/// Returns `true` if a lever saves memory or time.
fn saves_memory_or_time(without: &Outcome, with: &Outcome) -> bool {
    (with.peak.device_upper as f64) < without.peak.device_upper as f64 * MAX_MEMORY_RATIO
        || milliseconds(with) < milliseconds(without) * (1.0 - MIN_REL_TIME_CHANGE)
}

/// Returns `true` if a lever had no effect.
fn is_inert(without: &Outcome, with: &Outcome) -> bool {
    let (before, after) = (without.peak.device_upper as f64, with.peak.device_upper as f64);
    let (slower, faster) = (milliseconds(without), milliseconds(with));
    (before - after).abs() <= before * NOISE_REL_TOLERANCE
        && (slower - faster).abs() <= slower * NOISE_REL_TOLERANCE
}

/// Levers that set the precision.
fn precision(candidate: &Candidate) -> Vec<Lever> {
    let levers = candidate.settings.iter().map(|setting| setting.lever);
    levers.filter(|lever| lever.label() == Label::Precision).collect()
}

/// Selects a few variants of the Pareto front: the fastest, the smallest, and the fastest between them.
fn most_promising(variants: Vec<Variant>) -> Vec<Variant> {
    if variants.len() <= MAX_FOLLOWED {
        return variants;
    }
    let mut chosen = front_of(&variants);
    if chosen.len() > MAX_FOLLOWED {
        let smallest = chosen.split_off(chosen.len() - 1);
        chosen.truncate(MAX_FOLLOWED - 1);
        chosen.extend(smallest);
    }
    chosen
}

/// Variants of the Pareto front, as many as are worth dividing.
fn undominated(variants: &[Variant]) -> Vec<Variant> {
    let mut found = front_of(variants);
    found.truncate(MAX_DIVIDED);
    found
}

/// Pareto front of the variants in memory and time, the fastest first.
fn front_of(variants: &[Variant]) -> Vec<Variant> {
    let points: Vec<Point> = variants
        .iter()
        .map(|(_, outcome)| Point { bytes: outcome.peak.device_upper, time: milliseconds(outcome) })
        .collect();
    front(&points).into_iter().map(|index| variants[index].clone()).collect()
}
