//! The script with the levers that serve it, before its batch is divided: more than one where memory and time
//! want different ones.

use memfit_vocabulary::{Harm, Label, Lever, Sense, Training, Turn, Value};

use super::combine::{Paid, Paying};
use super::{Search, milliseconds, told};
use crate::answer::Tried;
use crate::front::{Point, front};
use crate::levers::{Entry, entries};
use crate::plan::Expected;
use crate::trial::{Candidate, Outcome, Room, Trial};

/// A change of time by less than this share is none.
const NOTICEABLE: f64 = 0.005;
/// Memory that is saved by less than the rest of this share is nothing.
const NOTICEABLY_LESS: f64 = 0.999;
/// A change by less than this share is that of a clock.
const NOTHING: f64 = 0.000_5;
/// Memory that is saved by less than this share is not worth a variant.
const SMALLER: f64 = 0.99;
/// So many variants are divided, at most.
const MOST: usize = 8;
/// So many variants are followed from lever to lever, at most.
const FOLLOWED: usize = 4;

type Variant = (Candidate, Outcome);

impl<T: Trial> Search<'_, T> {
    /// The levers of a turn, and of so much harm, that make sense and are allowed, with how far they are
    /// moved; the others are rejected, with the reason.
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

    /// The variants, in no order.
    pub(super) fn variants(
        &mut self,
        start: Candidate,
        first: Outcome,
        training: &Training,
    ) -> Result<Vec<Variant>, T::Error> {
        let levers = self.levers(Turn::First, Harm::Digits, training, &first.peak);
        let mut variants = vec![(start, first)];
        for (entry, value) in levers {
            variants = few(self.grown(entry, &value, variants)?);
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

    /// The variants with a lever that does so much harm to what is learnt.
    pub(super) fn harmed(&mut self, harm: Harm, training: &Training) -> Result<Vec<Variant>, T::Error> {
        let (more, late) = self.where_short(harm, training)?;
        let mut found = undominated(&more);
        found.extend(late);
        Ok(found)
    }

    /// The variants with a lever where it serves them, and as they were where it does not. Why not is told
    /// once, and only of a lever that serves none of them.
    fn grown(
        &mut self,
        entry: &'static Entry,
        value: &Value,
        variants: Vec<Variant>,
    ) -> Result<Vec<Variant>, T::Error> {
        let mut grown = Vec::new();
        let mut against: Option<String> = None;
        let mut serves = false;
        // Where it acted on nothing there is nothing for it to act on beside the same precision either.
        let mut inert: Option<Candidate> = None;
        for (candidate, without) in variants {
            if inert.as_ref().is_some_and(|known| precision(known) == precision(&candidate)) {
                grown.push((candidate, without));
                continue;
            }
            let Some((with, outcome)) = self.with(entry, value, &candidate)? else {
                grown.push((candidate, without));
                continue;
            };
            if !gains(&without, &outcome) {
                if is_inert(&without, &outcome) {
                    inert = Some(candidate.clone());
                }
                against.get_or_insert_with(|| format!("no gain here: {}", told(&without, &outcome)));
                grown.push((candidate, without));
                continue;
            }
            let smaller = outcome.peak.device_upper <= without.peak.device_upper;
            let faster = milliseconds(&outcome) <= milliseconds(&without) * (1.0 + NOTICEABLE);
            serves |= smaller || faster;
            match (smaller, faster) {
                (true, true) => grown.push((with, outcome)),
                (false, false) => {
                    against.get_or_insert_with(|| told(&without, &outcome));
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

    /// Where memory is short, levers that pay for it, each on the fastest variant: those that save something,
    /// and those that save nothing as long as activations make the peak, and something once these are
    /// computed again.
    fn where_short(
        &mut self,
        harm: Harm,
        training: &Training,
    ) -> Result<(Vec<Variant>, Vec<Variant>), T::Error> {
        let (mut more, mut late) = (Vec::new(), Vec::new());
        let Some(mut paying) = self.paying.clone() else { return Ok((more, late)) };
        let (base, without) = (paying.base.clone(), paying.without.clone());
        for (entry, value) in self.levers(Turn::WhereShort, harm, training, &without.peak) {
            if !entry.acts_on(&base, training) {
                continue;
            }
            let Some(with) = self.with(entry, &value, &base)? else { continue };
            self.considered.push((entry.lever, told(&without, &with.1)));
            let smaller = with.1.peak.device_upper as f64 <= without.peak.device_upper as f64 * SMALLER;
            let faster = with.1.peak.device_upper <= without.peak.device_upper
                && milliseconds(&with.1) < milliseconds(&without) * (1.0 - NOTICEABLE);
            if with.1.peak.device_upper < without.peak.device_upper {
                paying.levers.push(Paid::of(entry, value.clone(), &without, &with));
            }
            if smaller || faster {
                more.push(with);
            } else if let Some((less, least)) = self.both_again((&base, &without), (&with.0, &with.1))?
                && least.peak.device_upper as f64 <= less.peak.device_upper as f64 * SMALLER
            {
                self.considered.pop();
                self.considered.push((entry.lever, told(&less, &least)));
                paying.levers.retain(|paid| !paid.is_of(entry.lever));
                paying.levers.push(Paid::of(entry, value, &less, &(with.0.clone(), least)));
                late.push(with);
            }
        }
        self.paying = Some(paying);
        Ok((more, late))
    }

    /// Two variants with all blocks computed again; nothing where there is nothing to compute again.
    fn both_again(
        &mut self,
        without: (&Candidate, &Outcome),
        with: (&Candidate, &Outcome),
    ) -> Result<Option<(Outcome, Outcome)>, T::Error> {
        let (Some((less, _)), Some((least, _))) =
            (self.all_again(without.0, without.1), self.all_again(with.0, with.1))
        else {
            return Ok(None);
        };
        let Some(less) = self.run(&less, Room::Boundless)?.filter(|outcome| outcome.fits) else {
            return Ok(None);
        };
        let least = self.run(&least, Room::Boundless)?;
        Ok(least.filter(|outcome| outcome.fits && outcome.refused.is_empty()).map(|least| (less, least)))
    }

    /// A candidate with a lever, run; nothing where it takes no hold, which is told.
    pub(super) fn with(
        &mut self,
        entry: &Entry,
        value: &Value,
        candidate: &Candidate,
    ) -> Result<Option<Variant>, T::Error> {
        let with = match entry.on(candidate, value.clone()) {
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

    /// Levers that would do more harm to what is learnt than the plan does: what they would come to is told,
    /// and not done.
    pub(super) fn tell_of_harmful(&mut self, training: &Training) -> Result<(), T::Error> {
        let Some(Paying { base, without, .. }) = self.paying.clone() else { return Ok(()) };
        if without.peak.device_upper <= self.limits.budget {
            return Ok(());
        }
        let taken = self.harm;
        for harm in Harm::ALL.into_iter().filter(|harm| *harm > taken) {
            for (entry, value) in self.levers(Turn::WhereShort, harm, training, &without.peak) {
                let why = format!("it {}, and a plan that changes the training less fits", harm.what());
                let Some((_, with)) = self.with(entry, &value, &base)? else { continue };
                self.reject(
                    entry.lever.name(),
                    format!("{why}; of the whole batch: {}", told(&without, &with)),
                );
            }
        }
        Ok(())
    }

    /// Levers that would have paid for memory, and are not in the plan.
    pub(super) fn tell_of_considered(&mut self, best: Option<&Tried>) {
        let taken = |lever: Lever| {
            best.is_some_and(|best| best.candidate.settings.iter().any(|setting| setting.lever == lever))
        };
        for (lever, why) in std::mem::take(&mut self.considered) {
            if !taken(lever) {
                let but = match best {
                    Some(_) => "the plan is faster without it",
                    None => "it is not enough",
                };
                self.reject(lever.name(), format!("{but}; of the whole batch: {why}"));
            }
        }
    }
}

/// Whether a lever makes anything smaller or faster.
fn gains(without: &Outcome, with: &Outcome) -> bool {
    (with.peak.device_upper as f64) < without.peak.device_upper as f64 * NOTICEABLY_LESS
        || milliseconds(with) < milliseconds(without) * (1.0 - NOTICEABLE)
}

/// Whether a lever changed nothing at all.
fn is_inert(without: &Outcome, with: &Outcome) -> bool {
    let (before, after) = (without.peak.device_upper as f64, with.peak.device_upper as f64);
    let (slower, faster) = (milliseconds(without), milliseconds(with));
    (before - after).abs() <= before * NOTHING && (slower - faster).abs() <= slower * NOTHING
}

/// The levers that say in how many bits is computed.
fn precision(candidate: &Candidate) -> Vec<Lever> {
    let levers = candidate.settings.iter().map(|setting| setting.lever);
    levers.filter(|lever| lever.label() == Label::Precision).collect()
}

/// Those that no other one beats, of which so many are followed: the fastest, the smallest, and between them
/// the fastest.
fn few(variants: Vec<Variant>) -> Vec<Variant> {
    if variants.len() <= FOLLOWED {
        return variants;
    }
    let mut few = front_of(&variants);
    if few.len() > FOLLOWED {
        let smallest = few.split_off(few.len() - 1);
        few.truncate(FOLLOWED - 1);
        few.extend(smallest);
    }
    few
}

/// Those that no other one beats in both memory and time, as many as are worth dividing.
fn undominated(variants: &[Variant]) -> Vec<Variant> {
    let mut found = front_of(variants);
    found.truncate(MOST);
    found
}

/// Those that no other one beats in both memory and time, the fastest first.
fn front_of(variants: &[Variant]) -> Vec<Variant> {
    let points: Vec<Point> = variants
        .iter()
        .map(|(_, outcome)| Point { bytes: outcome.peak.device_upper, time: milliseconds(outcome) })
        .collect();
    front(&points).into_iter().map(|index| variants[index].clone()).collect()
}
