//! Effect of assumed values, measured by further runs with other values.

use memfit_channel::{Inverted, OtherValues, ValuePolicy};
use memfit_report::remarks::Stake;

use crate::RunError;
use crate::block_use::BlockUse;
use crate::branches::Branches;
use crate::facts::{Facts, RankFacts};
use crate::watch::Ended;

/// Values that unknown integers have in further runs instead of 0, in the order in which they are tried. A
/// tensor of 1032 elements exceeds the allocator's rounding, so its effect is visible. But 1032 may be out of
/// range for a list, or make a loop too long. Floating-point numbers differ between the two runs as well, and
/// are positive in the second.
const OTHER_NUMBERS: [u16; 2] = [1032, 7];

/// What stands for the integers of a run in which they differ from each other.
const VARIED: u16 = 15;
/// The reciprocal of a share of the peak by which memory may differ between runs that allocate alike.
const SMALL_SHARE: u64 = 50;

/// A position between the bounds of sizes: memory may have its peak there.
pub(crate) const BETWEEN: f64 = 0.37;

/// Number of times that a condition at one place is inverted at first; more would be too slow for a loop that
/// waits for it.
const FEW_TIMES: u32 = 3;
/// Number of times in a second run, if the first needs more memory: each time may add some.
const MANY_TIMES: u32 = 500;
/// Number of times in a third run, if the second needs more than the first: it tells a long loop from an
/// endless one.
const MOST_TIMES: u32 = 1000;

/// Effect of numbers that were read as zero, and of conditions on computed values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// There were no such numbers, or no second run.
    #[default]
    Untried,
    /// Runs with other numbers had blocks of the same sizes, as many of each at once, and the run with
    /// inverted conditions needed no more memory.
    Harmless,
    /// Runs with other numbers had such blocks, too, and the run with inverted conditions took as many steps.
    /// One of them needed this many additional bytes: other branches allocate more, or the allocator held
    /// freed memory for longer, since a host that is faster or slower frees it at another time.
    NeedsMore(u64),
    /// A run with other numbers had other blocks; or the run with inverted conditions ran out of memory, or
    /// needed more memory and ended early, so that the need of the remaining steps is unknown.
    Decisive,
    /// The second run failed, though the first did not.
    Fatal,
    /// The second run was stopped by the user or by the time limit, so the effect is unknown.
    Unfinished,
}

/// Values with conditions inverted, each this number of times.
fn inverting(inverted: Inverted, times: u32) -> OtherValues {
    OtherValues { conditions: Some(inverted), times, ..OtherValues::default() }
}

/// Runs with the next set of conditions inverted, and returns the set and the run; `None` after the last one.
fn run_next(
    branches: &mut Branches,
    mut run: impl FnMut(OtherValues) -> Result<Facts, RunError>,
) -> Result<Option<(Inverted, Facts)>, RunError> {
    let Some(places) = branches.next() else { return Ok(None) };
    let inverted = Inverted::Only(places.clone());
    let flipped = run(inverting(inverted.clone(), FEW_TIMES))?;
    branches.ran(&places, &flipped.conditions);
    Ok(Some((inverted, flipped)))
}

impl Numbers {
    /// Determines the effect of assumed numbers and conditions on the run with these facts. Numbers and
    /// conditions are changed in separate runs: in one run, the two changes of a comparison might cancel.
    /// `counts_are_inert` is `true` if runs with smaller counts made the same allocations.
    pub(crate) fn test(
        assumed: &Facts,
        counts_are_inert: bool,
        mut run: impl FnMut(OtherValues) -> Result<Facts, RunError>,
    ) -> Result<Self, RunError> {
        let mut found = if assumed.has_read(&[Stake::Number]) {
            Self::test_numbers(assumed, &mut run)?
        } else {
            Self::Harmless
        };
        let has_conditions = Self::has_conditions(assumed);
        if found.is_known() && assumed.has_read(&[Stake::Count, Stake::Size]) && !counts_are_inert {
            found = Self::test_counts(assumed, &mut run)?.or_at_least(found.additional_bytes());
        }
        if found.is_known() && has_conditions {
            found = Self::test_conditions(assumed, &mut run)?.or_at_least(found.additional_bytes());
        }
        if found.is_known() && assumed.has_read(&[Stake::Number, Stake::Count, Stake::Size]) {
            found = found.test_varied(assumed, run)?;
        }
        Ok(found)
    }

    /// Adds the effect of values that differ from each other: a cache has an entry for each, a sort has
    /// another order, a range has some of them in it. The numbers are arbitrary, so that a run with them that
    /// fails shows nothing, and the memory of one that needs more than is known already is no bound.
    fn test_varied(
        self,
        assumed: &Facts,
        mut run: impl FnMut(OtherValues) -> Result<Facts, RunError>,
    ) -> Result<Self, RunError> {
        let mut vary = |positions: bool| {
            run(OtherValues {
                number: Some(VARIED),
                sizes: ValuePolicy::at_fraction(BETWEEN),
                varied: true,
                positions,
                ..OtherValues::default()
            })
        };
        let shows_nothing =
            |varied: &Facts| varied.oom.is_none() && (varied.exception.is_some() || varied.was_stopped());
        let mut varied = vary(true)?;
        if varied.exception.is_some() && shows_nothing(&varied) {
            // A position may have been out of range.
            varied = vary(false)?;
        }
        if shows_nothing(&varied) {
            return Ok(self);
        }
        let explains = |base: &Facts| {
            let largest = base.fullest().map_or(0, |rank| rank.peak.device_upper);
            let more = Self::additional(base, &varied);
            match Self::compare_conditions(base, &varied) {
                Self::NeedsMore(_) if more <= self.additional_bytes().max(largest / SMALL_SHARE) => {
                    Some(self.or_at_least(more))
                }
                Self::NeedsMore(_) | Self::Decisive => None,
                _ => Some(self),
            }
        };
        if let Some(found) = explains(assumed) {
            return Ok(found);
        }
        // A script that draws random sizes allocates differently each time.
        let again = run(OtherValues::default())?;
        Ok(explains(&again).unwrap_or(Self::Decisive))
    }

    /// Adds the finding that these additional bytes are needed anyway.
    fn or_at_least(self, bytes: u64) -> Self {
        if self.is_known() { Self::needs(self.additional_bytes().max(bytes)) } else { self }
    }

    fn has_conditions(assumed: &Facts) -> bool {
        !assumed.conditions.is_empty() || assumed.has_read(&[Stake::Condition])
    }

    /// Determines if a run that ran out of memory does so with other numbers, and with inverted conditions,
    /// too: a loop may have waited for one of them, or one decided on what was allocated.
    pub(crate) fn test_out_of_memory(
        assumed: &Facts,
        mut run: impl FnMut(OtherValues) -> Result<Facts, RunError>,
    ) -> Result<Self, RunError> {
        let escapes = |other: &Facts| {
            // A run that failed or was stopped does not show that the memory suffices.
            other.oom.is_none() && matches!(other.ended, Ended::Complete | Ended::Exited(0))
        };
        if assumed.has_read(&[Stake::Number]) {
            for number in OTHER_NUMBERS {
                let other = run(OtherValues { number: Some(number), ..OtherValues::default() })?;
                if escapes(&other) {
                    return Ok(Self::Decisive);
                }
                if other.oom.is_some() {
                    break;
                }
            }
        }
        if !Self::has_conditions(assumed) {
            return Ok(Self::Harmless);
        }
        let mut flipped = run(inverting(Inverted::All, FEW_TIMES))?;
        let mut branches = Branches::new(&assumed.conditions, &flipped.conditions);
        loop {
            if escapes(&flipped) {
                return Ok(Self::Decisive);
            }
            let Some((_, next)) = run_next(&mut branches, &mut run)? else { break };
            flipped = next;
        }
        // A loss that falls in each epoch, for example, is inverted in each of them.
        let often = run(inverting(Inverted::All, MANY_TIMES))?;
        Ok(if escapes(&often) { Self::Decisive } else { Self::Harmless })
    }

    /// Adds the finding that another run needed no more than this; a run that failed adds nothing.
    fn or_at_least_known(self, known: Self) -> Self {
        if self.is_known() { self.or_at_least(known.additional_bytes()) } else { known }
    }

    /// Determines the effect of counts and sizes, on which the script may decide and whose complement may be
    /// a size, too, by runs with their lower bounds and between.
    fn test_counts(
        assumed: &Facts,
        mut run: impl FnMut(OtherValues) -> Result<Facts, RunError>,
    ) -> Result<Self, RunError> {
        let (mut bytes, mut repeated) = (0, None);
        // Where sizes matter, memory may have its peak between their bounds.
        for sizes in [Some(ValuePolicy::LOWER), ValuePolicy::at_fraction(BETWEEN)] {
            let other = run(OtherValues { sizes, ..OtherValues::default() })?;
            let mut found = Self::compare_conditions(assumed, &other);
            if !matches!(found, Self::Harmless | Self::Unfinished) {
                // A script that draws random sizes allocates differently each time.
                let again = match repeated.take() {
                    Some(again) => again,
                    None => run(OtherValues::default())?,
                };
                found = Self::compare_conditions(repeated.insert(again), &other);
            }
            if !found.is_known() {
                return Ok(found);
            }
            bytes = bytes.max(found.additional_bytes());
            if Self::compare(assumed, &other) == Self::Harmless {
                break;
            }
        }
        Ok(Self::needs(bytes))
    }

    /// Determines the effect of numbers, by runs in which they are not 0.
    fn test_numbers(
        assumed: &Facts,
        mut run: impl FnMut(OtherValues) -> Result<Facts, RunError>,
    ) -> Result<Self, RunError> {
        let [large, small] =
            OTHER_NUMBERS.map(|number| OtherValues { number: Some(number), ..OtherValues::default() });
        let mut values = large;
        let mut others = run(values.clone())?;
        let mut found = Self::compare(assumed, &others);
        // A run that failed without running out of memory does not show the number's effect.
        let failed = others.ended != assumed.ended && others.oom.is_none();
        if others.ended != Ended::Interrupted && (failed || matches!(found, Self::Fatal | Self::Unfinished)) {
            values = small;
            others = run(values.clone())?;
            found = Self::compare(assumed, &others);
        } else if found.is_known() {
            // A range may have neither number in it.
            let second = run(small.clone())?;
            let also = Self::compare(assumed, &second);
            if also == Self::Decisive {
                (values, others, found) = (small, second, also);
            } else {
                found = also.or_at_least_known(found);
            }
        }
        if !matches!(found, Self::Decisive | Self::Fatal) {
            return Ok(found);
        }
        // A script that draws random sizes allocates differently each time.
        let again = run(OtherValues::default())?;
        found = Self::compare(&again, &others);
        let mut additional = Self::additional(assumed, &others);
        if found == Self::Decisive && BlockUse::same_totals(&others.block_use, &assumed.block_use) {
            // The same blocks were freed at other times. Threads of PyTorch's may do that as well.
            let repeated = run(values)?;
            additional = additional.max(Self::additional(assumed, &repeated));
            let compared = [assumed, &again].map(|one| Self::compare(one, &repeated));
            found = compared.into_iter().find(|one| one.is_known()).unwrap_or(found);
        }
        Ok(if found.is_known() { Self::needs(additional) } else { found })
    }

    /// Determines the effect of conditions, by runs in which they are inverted: all of them, then one by one.
    fn test_conditions(
        assumed: &Facts,
        mut run: impl FnMut(OtherValues) -> Result<Facts, RunError>,
    ) -> Result<Self, RunError> {
        let mut repeated = None;
        let mut inverted = Inverted::All;
        let mut flipped = run(inverting(inverted.clone(), FEW_TIMES))?;
        let mut branches = Branches::new(&assumed.conditions, &flipped.conditions);
        let mut additional = 0;
        loop {
            let mut found = Self::compare_conditions(repeated.as_ref().unwrap_or(assumed), &flipped);
            if !matches!(found, Self::Harmless | Self::Unfinished) && repeated.is_none() {
                // A script that draws random sizes allocates differently each time.
                let again = run(OtherValues::default())?;
                found = Self::compare_conditions(&again, &flipped);
                repeated = Some(again);
            }
            if matches!(found, Self::NeedsMore(_)) {
                let base = repeated.as_ref().unwrap_or(assumed);
                found =
                    Self::test_repetition(base, &flipped, |times| run(inverting(inverted.clone(), times)))?;
            }
            match found {
                Self::Harmless => {}
                Self::NeedsMore(bytes) => additional = bytes.max(additional),
                _ => return Ok(found),
            }
            let Some(next) = run_next(&mut branches, &mut run)? else { break };
            (inverted, flipped) = next;
        }
        Ok(Self::needs(additional))
    }

    /// Determines the additional memory if conditions are inverted more often than a few times. A loop that
    /// waits for such a condition, and keeps something in each iteration, has no bound.
    fn test_repetition(
        assumed: &Facts,
        few: &Facts,
        mut run: impl FnMut(u32) -> Result<Facts, RunError>,
    ) -> Result<Self, RunError> {
        let many = run(MANY_TIMES)?;
        let found = Self::compare_conditions(assumed, &many);
        if Self::compare_conditions(few, &many) == Self::Harmless || !matches!(found, Self::NeedsMore(_)) {
            return Ok(if found == Self::Harmless { Self::compare_conditions(assumed, few) } else { found });
        }
        let most = run(MOST_TIMES)?;
        Ok(match Self::compare_conditions(&many, &most) {
            Self::Harmless => found,
            Self::Unfinished => Self::Unfinished,
            _ => Self::Decisive,
        })
    }

    /// Additional bytes that the run with inverted conditions needed.
    pub(crate) const fn additional_bytes(self) -> u64 {
        match self {
            Self::NeedsMore(bytes) => bytes,
            _ => 0,
        }
    }

    /// Compares a run with one in which conditions were inverted. Such a run may end early or do less; only
    /// additional memory matters.
    fn compare_conditions(assumed: &Facts, flipped: &Facts) -> Self {
        if assumed.was_stopped() || flipped.was_stopped() {
            return Self::Unfinished;
        }
        // Even if the script caught the error, the memory that it needed is not known.
        let ran_out = flipped.oom.is_some() && assumed.oom.is_none();
        let needs_more = flipped.ranks.iter().zip(&assumed.ranks).any(|(flipped, assumed)| {
            flipped.peak.reserved > assumed.peak.reserved || flipped.peak.allocated > assumed.peak.allocated
        });
        if ran_out || flipped.ranks.len() != assumed.ranks.len() {
            Self::Decisive
        } else if !needs_more {
            Self::Harmless
        } else if flipped.ended == assumed.ended && flipped.steps() == assumed.steps() {
            Self::NeedsMore(Self::additional(assumed, flipped))
        } else {
            Self::Decisive
        }
    }

    /// Compares the facts of two runs.
    pub(crate) fn compare(zeros: &Facts, others: &Facts) -> Self {
        if zeros.was_stopped() || others.was_stopped() {
            return Self::Unfinished;
        }
        if others.exception.is_some() && zeros.exception.is_none() {
            return Self::Fatal;
        }
        let allocated =
            |facts: &Facts| -> Vec<_> { facts.ranks.iter().map(|rank| rank.peak.allocated).collect() };
        let same = others.ended == zeros.ended
            && others.steps() == zeros.steps()
            && (BlockUse::same_totals(&others.block_use, &zeros.block_use)
                || BlockUse::same_peak_counts(&others.block_use, &zeros.block_use))
            && allocated(others) == allocated(zeros);
        if !same {
            return Self::Decisive;
        }
        Self::needs(Self::additional(zeros, others))
    }

    /// The finding that other values change nothing but this additional memory.
    const fn needs(additional: u64) -> Self {
        if additional == 0 { Self::Harmless } else { Self::NeedsMore(additional) }
    }

    /// Returns `true` if the additional memory of other values is known.
    const fn is_known(self) -> bool {
        matches!(self, Self::Harmless | Self::NeedsMore(_))
    }

    /// Bytes of device memory that a rank of the second run needed beyond the first run's.
    fn additional(first: &Facts, second: &Facts) -> u64 {
        let more = |(first, second): (&RankFacts, &RankFacts)| {
            second.peak.device_upper.saturating_sub(first.peak.device_upper)
        };
        first.ranks.iter().zip(&second.ranks).map(more).max().unwrap_or(0)
    }
}
