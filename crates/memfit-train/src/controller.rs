//! The logic of a step: from the arrival of a batch to gradients that the optimizer can step with.
//!
//! ```text
//! arrive ─▶ next ─▶ passed ─▶ next ─▶ … ─▶ none ─┬─▶ the window is not whole: the next batch arrives
//!   ▲        ▲                  │                └─▶ status ─▶ (agree) ─▶ correction ─▶ stepped
//!   │        └── restart ◀── failed
//!   └────────────────────────────────────────────────────────────────────────────────── (next window)
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Fault, Growth, Outcome, Part, Predictor, ScaleHistory, Space, Status, TrainError, Window,
    cache::Cache,
    ceiling::Ceiling,
    predictor::largest,
    split,
    split::{in_pairs, pair_the_last},
    split_by_cost,
};

/// Default maximum of attempts at one window: enough to halve any batch down to one sample.
const MAX_ATTEMPTS: u32 = 40;
/// Consecutive windows with a flush of the allocator's cache after which the size counts as too large.
const MAX_FLUSHED_WINDOWS: u32 = 2;
/// Maximum number of failures with one sample in a window in which larger sizes fitted before: another
/// process took the memory then.
const MAX_SINGLE_FAILURES: u32 = 3;

/// Minimum growth of a size as the divisor of the old one, unless it grows to the whole batch.
const MIN_GROWTH_DIVISOR: u32 = 4;

/// Settings that stay the same during a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Loader batches in one optimizer step (gradient accumulation).
    pub accumulate: u32,
    /// Maximum micro-batch size; `None` to let the controller choose.
    pub micro_batch: Option<u32>,
    /// `true` to start new shapes with small sizes, so that their need is measured before memory runs out.
    pub careful: bool,
    /// `true` to avoid micro-batches of one sample if others are larger, since batch normalisation needs two.
    pub pairs: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { accumulate: 1, micro_batch: None, careful: false, pairs: false }
    }
}

/// Batch of the open window.
#[derive(Clone, Debug, PartialEq)]
struct Batch {
    shape: String,
    /// Elements of its largest sample.
    elements: u64,
    items: usize,
    /// Cost of each sample, if they differ.
    costs: Option<Vec<u64>>,
    /// Micro-batches of this attempt decided so far.
    parts: Vec<Part>,
    /// Number of micro-batches started so far.
    given: usize,
}

impl Batch {
    /// Start of the next micro-batch.
    fn covered(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// Number of largest samples that a micro-batch is equivalent to, rounded down; its length if all are
    /// alike.
    fn worth(&self, part: &Part) -> u32 {
        let samples = u32::try_from(part.len()).unwrap_or(u32::MAX);
        let Some(costs) = &self.costs else { return samples };
        let largest = costs.iter().copied().max().unwrap_or(1).max(1);
        let padded = costs[part.clone()].iter().copied().max().unwrap_or(0).saturating_mul(part.len() as u64);
        u32::try_from(padded / largest).unwrap_or(u32::MAX).min(samples)
    }

    /// Splits the remaining samples into micro-batches of at most `most` samples.
    fn cut(&mut self, most: u32, pairs: bool) {
        let start = self.covered();
        let most = most as usize;
        let mut rest = match &self.costs {
            // Padded to the largest sample, `most` samples fit; smaller samples are grouped in larger
            // numbers.
            Some(costs) => {
                let largest = costs.iter().copied().max().unwrap_or(1).max(1);
                split_by_cost(&costs[start..], self.items, largest.saturating_mul(most as u64))
            }
            None => split(self.items - start, most),
        };
        if pairs && most > 1 {
            // Two of the largest samples fit, so the last one may always get another.
            pair_the_last(&mut rest);
        }
        self.parts.extend(rest.into_iter().map(|part| start + part.start..start + part.end));
    }
}

/// Micro-batch to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Samples.
    pub part: Part,
    /// `true` to empty the allocator's cache before it.
    pub empties: bool,
    /// `true` to measure its need and pass it to [`Controller::passed`].
    pub watched: bool,
}

/// Identification of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Number of earlier optimizer steps.
    pub window: u64,
    /// Number of earlier failures in this window.
    pub attempt: u32,
}

/// Decision after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Reset the state and run the window again, with smaller sizes.
    Again,
    /// Nothing more to try.
    GiveUp(Failure),
}

/// Reason to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A single sample does not fit.
    OneSample,
    /// The maximum number of attempts was reached.
    TooOften,
    /// The device needs a new process.
    Sticky,
    /// The failure is not about memory.
    NotMemory,
}

/// Controller of one model's training.
#[derive(Clone, Debug)]
pub struct Controller {
    settings: Settings,
    memory: Memory,
    attempt: u32,
    /// Failures in this window with a single sample.
    singles: u32,
    /// `true` if a micro-batch completed in this window, in any attempt.
    something_fitted: bool,
    batches: Vec<Batch>,
    /// Consecutive windows in which the allocator flushed its cache.
    thrashing: u32,
    growth: Growth,
    /// Bytes of all gradients.
    gradients: u64,
    /// Last size chosen for each shape.
    chosen: BTreeMap<String, u32>,
    /// `true` if the window began in another process, whose gradients it continues.
    inherits: bool,
    /// Model of the allocator's cache.
    cache: Cache,
}

/// State that is saved for the next process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Memory {
    window: Window,
    /// Completed windows.
    windows: u64,
    /// Needs of the first micro-batch of windows, and of later ones in addition to the existing gradients.
    first: Predictor,
    later: Predictor,
    ceilings: BTreeMap<String, Ceiling>,
    scale: ScaleHistory,
    /// Failures after which a later attempt succeeded.
    survived: u64,
}

impl Controller {
    /// Creates a controller without any observations.
    pub fn new(settings: Settings) -> Result<Self, TrainError> {
        if settings.micro_batch == Some(0) {
            return Err(TrainError::Zero { name: "micro_batch" });
        }
        let memory = Memory {
            window: Window::new(settings.accumulate)?,
            windows: 0,
            first: Predictor::default(),
            later: Predictor::default(),
            ceilings: BTreeMap::new(),
            scale: ScaleHistory::default(),
            survived: 0,
        };
        Ok(Self {
            settings,
            memory,
            attempt: 0,
            singles: 0,
            something_fitted: false,
            batches: Vec::new(),
            thrashing: 0,
            growth: Growth::default(),
            gradients: 0,
            chosen: BTreeMap::new(),
            inherits: false,
            cache: Cache::default(),
        })
    }

    /// Adds a batch: `items` samples of a shape, of which the largest has `elements` elements, with an
    /// expected weight. `costs` are the sizes of the samples if they differ. Returns `true` if it begins a
    /// window.
    pub fn arrive(
        &mut self,
        shape: &str,
        elements: u64,
        items: u32,
        costs: Option<Vec<u64>>,
        expected: f64,
    ) -> Result<bool, TrainError> {
        if items == 0 {
            return Err(TrainError::EmptyBatch);
        }
        let first = self.memory.window.arrive(expected)?;
        let items = items as usize;
        let costs = costs.filter(|costs| costs.len() == items);
        let shape = shape.to_owned();
        self.batches.push(Batch { shape, elements, items, costs, parts: Vec::new(), given: 0 });
        Ok(first)
    }

    /// Next micro-batch of a batch of the window (0 is its first), or `None` when all were run. `space`
    /// returns the available memory; it is called only if necessary, since the query takes time.
    pub fn next(&mut self, batch: usize, space: impl FnOnce() -> Option<Space>) -> Option<Turn> {
        let entry = self.batches.get(batch)?;
        let mut ask = Some(space);
        let mut space = None;
        if entry.given == entry.parts.len() && entry.covered() < entry.items {
            space = ask.take().and_then(|ask| ask());
            let (most, sure) = self.size(batch, entry, space.map(|space| space.room));
            if sure {
                self.choose(batch, most);
            }
            let entry = &mut self.batches[batch];
            if sure {
                entry.cut(most, self.settings.pairs);
            } else {
                let (start, most) = (entry.covered(), most as usize);
                let left = entry.items - start;
                let size = if self.settings.pairs { in_pairs(left, most) } else { most.min(left) };
                entry.parts.push(start..start + size);
            }
        }
        let entry = &self.batches[batch];
        let part = entry.parts.get(entry.given)?.clone();
        let (empties, watched) = self.prepare(batch, &part, || ask.map_or(space, |ask| ask()));
        self.batches[batch].given += 1;
        Some(Turn { part, empties, watched })
    }

    /// Stores the size chosen for a batch's shape.
    fn choose(&mut self, batch: usize, most: u32) {
        let shape = &self.batches[batch].shape;
        match self.chosen.get_mut(shape) {
            Some(last) => *last = most,
            None => _ = self.chosen.insert(shape.clone(), most),
        }
    }

    /// Decides whether to empty the allocator's cache before a micro-batch, and whether to measure its need.
    fn prepare(&mut self, index: usize, part: &Part, space: impl FnOnce() -> Option<Space>) -> (bool, bool) {
        if !self.settings.careful {
            return (false, false);
        }
        let batch = &self.batches[index];
        let size = batch.worth(part).max(1);
        let first = self.is_first(index);
        let kind = (batch.elements, size, first);
        let held = self.cache.holds(&batch.shape, batch.elements, size);
        let judged = self.cache.is_judged(&batch.shape, kind);
        if held && judged {
            return (false, false);
        }
        let Some(space) = space() else { return (false, false) };
        let need = self.need(batch, size, first);
        let seen = if first { &self.memory.first } else { &self.memory.later };
        let known = judged || seen.knows(&batch.shape, batch.elements, size);
        let watched = !known && (!self.is_sure(batch) || need.is_none_or(|need| space.is_near(need)));
        let empties = watched || (!held && need.is_none_or(|need| space.is_tight(need)));
        if empties {
            self.cache.emptied();
        }
        self.cache.judges(&batch.shape, kind);
        self.cache.runs(&batch.shape, batch.elements, size);
        (empties, watched)
    }

    /// Returns `true` if the next micro-batch of a batch runs before any gradients exist.
    fn is_first(&self, index: usize) -> bool {
        index == 0 && self.batches[index].given == 0 && !self.inherits
    }

    /// Size for the rest of a batch, and whether it applies to the whole rest. A new shape starts with steps,
    /// each at most twice the last one or the predicted upper bound, until the observations determine the
    /// limit.
    fn size(&self, index: usize, batch: &Batch, room: Option<u64>) -> (u32, bool) {
        let items = u32::try_from(batch.items).unwrap_or(u32::MAX);
        let wanted = self.settings.micro_batch.unwrap_or(items).min(items);
        let ceiling = self.memory.ceilings.get(&batch.shape);
        let limit = ceiling.map_or(wanted, |ceiling| ceiling.limit(wanted));
        let entering = self.settings.careful && self.settings.micro_batch.is_none() && self.attempt == 0;
        if let Some(room) = room {
            let alone = index == 0 && batch.covered() == 0 && limit == items;
            // A whole batch at once runs before any gradients exist.
            if alone && self.need(batch, items, true).is_some_and(|need| need <= room) {
                return (limit, true);
            }
            if let Some(foreseen) = largest(limit, room, |size| self.need(batch, size, false)) {
                let sure = !entering || self.is_sure(batch);
                let safe = ceiling.map_or(0, |ceiling| ceiling.safe);
                if !sure && foreseen <= safe && safe < limit && self.may_explore(batch, safe, room) {
                    return (safe + 1, false);
                }
                return (self.steadied(batch, foreseen.min(limit), limit), sure);
            }
            // The upper bound allows no sample: running one gives better information.
            if entering && self.need(batch, 1, false).is_some() {
                return (1, false);
            }
        }
        let safe = ceiling.map_or(0, |ceiling| ceiling.safe);
        if entering && safe < limit { ((2 * safe).clamp(1, limit), false) } else { (limit, true) }
    }

    /// Returns `true` if one more sample should be tried although the proportional bound of a single known
    /// size forbids it. The need of a sample has a constant part, so two may fit if one takes less than two
    /// thirds.
    fn may_explore(&self, batch: &Batch, safe: u32, room: u64) -> bool {
        self.need(batch, safe, false).is_some_and(|need| need.saturating_mul(3) <= room.saturating_mul(2))
    }

    /// Size for a predicted maximum: the last one again, unless it is too large or much too small. Available
    /// memory varies slightly from step to step, and each new size needs other blocks and kernels.
    fn steadied(&self, batch: &Batch, foreseen: u32, limit: u32) -> u32 {
        match self.chosen.get(&batch.shape) {
            Some(&last)
                if last < foreseen && foreseen < limit && (foreseen - last) * MIN_GROWTH_DIVISOR < last =>
            {
                last
            }
            _ => foreseen,
        }
    }

    /// Upper bound for the need of a micro-batch: as the first of its window, without gradients, or as a
    /// later one.
    fn need(&self, batch: &Batch, size: u32, first: bool) -> Option<u64> {
        let memory = &self.memory;
        let alone = memory.first.need(&batch.shape, batch.elements, size);
        if first {
            return alone;
        }
        let with_gradients = alone.map(|need| need.saturating_add(self.gradients));
        let beside = memory.later.need(&batch.shape, batch.elements, size);
        match (beside.map(|need| need.saturating_add(self.gradients)), with_gradients) {
            (Some(seen), Some(bound)) => Some(seen.min(bound)),
            (seen, bound) => seen.or(bound),
        }
    }

    /// Returns `true` if the prediction for a batch rests on more than one size or length.
    fn is_sure(&self, batch: &Batch) -> bool {
        self.memory.first.is_sure(&batch.shape, batch.elements)
            || self.memory.later.is_sure(&batch.shape, batch.elements)
    }

    /// Upper bound for the need of a micro-batch beyond the live memory; `first` if it is alone in its
    /// window.
    pub fn foreseen(&self, shape: &str, elements: u64, size: u32, first: bool) -> Option<u64> {
        let batch =
            Batch { shape: shape.to_owned(), elements, items: 0, costs: None, parts: Vec::new(), given: 0 };
        self.need(&batch, size, first)
    }

    /// Largest micro-batch of at most `most` samples with a predicted need of at most `room`.
    pub fn largest(&self, shape: &str, elements: u64, most: u32, room: u64) -> Option<u32> {
        if self.foreseen(shape, elements, most, true).is_some_and(|need| need <= room) {
            return Some(most);
        }
        largest(most, room, |size| self.foreseen(shape, elements, size, false))
    }

    /// Sets the bytes of all gradients, which exist from a window's first backward pass on.
    pub fn gradients_take(&mut self, bytes: u64) {
        self.gradients = bytes;
    }

    /// Records that a micro-batch completed. `need` is the memory that the allocator reserved for it beyond
    /// what was live before the window, if it was measured.
    pub fn passed(&mut self, index: usize, size: u32, need: Option<u64>) {
        let inherits = self.inherits;
        let Some(batch) = self.batches.get(index) else { return };
        let first = index == 0 && batch.given <= 1 && !inherits;
        self.something_fitted = true;
        let worth = batch
            .given
            .checked_sub(1)
            .and_then(|last| batch.parts.get(last))
            .map_or(0, |part| batch.worth(part));
        if let Some(need) = need
            && worth > 0
        {
            // Gradients of earlier micro-batches exist during all of a later one, whatever its size.
            let (predictor, need) = if first {
                (&mut self.memory.first, need)
            } else {
                (&mut self.memory.later, need.saturating_sub(self.gradients))
            };
            predictor.saw(&batch.shape, batch.elements, worth, need);
        }
        // With samples of different sizes, their number says nothing about as many of the largest.
        if batch.costs.is_none() && self.attempt == 0 {
            let ceiling = self.memory.ceilings.entry(batch.shape.clone()).or_default();
            if ceiling.failed.is_none() {
                ceiling.safe = ceiling.safe.max(size);
            }
        }
    }

    /// Adds the weight of a micro-batch.
    pub fn count(&mut self, count: f64) -> Result<(), TrainError> {
        self.memory.window.count(count)
    }

    /// Handles the failure of a micro-batch.
    pub fn failed(&mut self, batch: usize, size: u32, fault: Fault) -> Decision {
        match fault {
            Fault::Other => return Decision::GiveUp(Failure::NotMemory),
            Fault::Sticky => return Decision::GiveUp(Failure::Sticky),
            Fault::DeviceMemory(_) | Fault::HostMemory => {}
        }
        if let Some(batch) = self.batches.get(batch) {
            self.memory.ceilings.entry(batch.shape.clone()).or_default().failed(size.max(1));
        }
        // The prediction was wrong, or conditions have changed.
        self.cache = Cache::default();
        self.singles += u32::from(size <= 1);
        // If nothing fitted yet, a single sample is tried twice: the cause may disappear with the first
        // attempt.
        let most = if self.something_fitted { MAX_SINGLE_FAILURES } else { 2 };
        if size <= 1 && self.singles >= most {
            Decision::GiveUp(Failure::OneSample)
        } else if self.attempt + 1 >= MAX_ATTEMPTS {
            Decision::GiveUp(Failure::TooOften)
        } else {
            Decision::Again
        }
    }

    /// Restarts the window after a failure of this or another rank.
    pub fn restart(&mut self) {
        self.attempt += 1;
        self.cache.emptied();
        self.memory.window.rewind();
        for batch in &mut self.batches {
            batch.parts.clear();
            batch.given = 0;
        }
    }

    /// Drops the window as if its batches had not arrived.
    pub fn abandon(&mut self) {
        self.end_window();
    }

    /// Current attempt.
    pub fn attempt(&self) -> Attempt {
        Attempt { window: self.memory.windows, attempt: self.attempt }
    }

    /// Accounting of the window.
    pub fn window(&self) -> &Window {
        &self.memory.window
    }

    /// Sets the divisor of losses, if all ranks know it before the first backward pass.
    pub fn divide_by(&mut self, divisor: f64) -> Result<(), TrainError> {
        self.memory.window.divide_by(divisor)
    }

    /// Number of the window's batches in this process; after a resume the window may contain more.
    pub fn held(&self) -> usize {
        self.batches.len()
    }

    /// Number of micro-batches in the window.
    pub fn parts(&self) -> usize {
        self.batches.iter().map(|batch| batch.given).sum()
    }

    /// Status for the other ranks.
    pub fn status(&self, outcome: Outcome) -> Status {
        Status {
            window: self.memory.windows,
            attempt: self.attempt,
            outcome,
            weight: self.memory.window.counted(),
        }
    }

    /// Completes the window after the optimizer step. `flushed` states whether the allocator flushed its
    /// cache.
    pub fn stepped(&mut self, flushed: bool) {
        self.memory.survived += u64::from(self.attempt);
        self.memory.windows += 1;
        self.thrashing = if flushed { self.thrashing + 1 } else { 0 };
        let thrashes = self.thrashing >= MAX_FLUSHED_WINDOWS;
        if thrashes {
            self.thrashing = 0;
        }
        if flushed {
            // The allocator released its cache itself.
            self.cache.emptied();
        }
        let mut largest: BTreeMap<&str, u32> = BTreeMap::new();
        for batch in self.batches.iter().filter(|batch| batch.costs.is_none()) {
            let size = batch.parts.iter().map(Part::len).max().unwrap_or(0);
            let entry = largest.entry(&batch.shape).or_default();
            *entry = (*entry).max(u32::try_from(size).unwrap_or(u32::MAX));
        }
        for (shape, size) in largest {
            let ceiling = self.memory.ceilings.entry(shape.to_owned()).or_default();
            if thrashes && size > 1 { ceiling.failed(size) } else { ceiling.passed(size) }
        }
        self.end_window();
    }

    fn end_window(&mut self) {
        self.attempt = 0;
        self.singles = 0;
        self.something_fitted = false;
        self.batches.clear();
        self.inherits = false;
        self.memory.window.close();
    }

    /// Live memory over the steps.
    pub fn growth(&mut self) -> &mut Growth {
        &mut self.growth
    }

    /// Loss scale over the windows.
    pub fn scale(&mut self) -> &mut ScaleHistory {
        &mut self.memory.scale
    }

    /// Number of failures after which a later attempt succeeded.
    pub fn survived(&self) -> u64 {
        self.memory.survived
    }

    /// Number of optimizer steps.
    pub fn windows(&self) -> u64 {
        self.memory.windows
    }

    /// State to be saved for the next process, serialisable with serde.
    pub fn memory(&self) -> impl Serialize + '_ {
        &self.memory
    }

    /// Restores saved state. The length of the window stays this process's own.
    pub fn remember<'de, D: serde::Deserializer<'de>>(&mut self, source: D) -> Result<(), D::Error> {
        let mut memory = Memory::deserialize(source)?;
        memory.window.set_length(self.settings.accumulate);
        self.memory = memory;
        self.inherits = !self.memory.window.is_empty();
        self.attempt = 0;
        self.batches.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
