//! The whole of a step: from a batch that arrives to gradients that may be stepped with.
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
    Fault, Growth, Outcome, Part, Predictor, ScaleHistory, Space, Status, TrainError, Window, cache::Cache,
    ceiling::Ceiling, predictor::largest, split, split_by_cost, split_in_pairs,
};

/// Attempts at one window, if nothing else is said: enough to halve any batch down to one.
const ATTEMPTS: u32 = 40;
/// Windows in a row in which the allocator had to flush its cache, after which the size is taken for too
/// large.
const THRASHING: u32 = 2;
/// Times that one sample may fail in a window in which more of them fitted before: somebody else took the
/// memory then.
const TRANSIENTS: u32 = 3;

/// A size grows only by at least one part in so many, or to the whole batch.
const STEADY: u32 = 4;

/// What does not change during a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Batches of the loader in one optimizer step.
    pub accumulate: u32,
    /// Samples that go through the model together, at most; none to let the controller choose.
    pub micro_batch: Option<u32>,
    /// Whether shapes that are new are entered with small sizes first, so that their need is known before it
    /// is met.
    pub careful: bool,
    /// Whether a part of one sample is avoided where others are larger: batch normalisation takes no mean of
    /// one.
    pub pairs: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { accumulate: 1, micro_batch: None, careful: false, pairs: false }
    }
}

/// A batch of the open window.
#[derive(Clone, Debug, PartialEq)]
struct Batch {
    shape: String,
    /// Elements in its largest sample.
    elements: u64,
    items: usize,
    /// What each sample costs, where they differ.
    costs: Option<Vec<u64>>,
    /// The parts of this attempt that are decided.
    parts: Vec<Part>,
    /// How many of them were handed out.
    given: usize,
}

impl Batch {
    /// Where the next part begins.
    fn covered(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// As how many of the largest samples a part counts, from below: as many as it has where all are alike.
    fn worth(&self, part: &Part) -> u32 {
        let samples = u32::try_from(part.len()).unwrap_or(u32::MAX);
        let Some(costs) = &self.costs else { return samples };
        let largest = costs.iter().copied().max().unwrap_or(1).max(1);
        let padded = costs[part.clone()].iter().copied().max().unwrap_or(0).saturating_mul(part.len() as u64);
        u32::try_from(padded / largest).unwrap_or(u32::MAX).min(samples)
    }

    /// Decides the rest: parts of at most `most` samples.
    fn cut(&mut self, most: u32, pairs: bool) {
        let start = self.covered();
        let most = most as usize;
        let rest = match &self.costs {
            // Padded to the largest sample, a part of `most` samples is what fits: smaller samples go
            // together in larger numbers.
            Some(costs) => {
                let largest = costs.iter().copied().max().unwrap_or(1).max(1);
                split_by_cost(&costs[start..], self.items, largest.saturating_mul(most as u64))
            }
            None if pairs => split_in_pairs(self.items - start, most),
            None => split(self.items - start, most),
        };
        self.parts.extend(rest.into_iter().map(|part| start + part.start..start + part.end));
    }
}

/// A part that is to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its samples.
    pub part: Part,
    /// Whether the allocator's cache is to be emptied before it.
    pub empties: bool,
    /// Whether what it needs is to be looked at, and told with [`Controller::passed`].
    pub watched: bool,
}

/// Which attempt at which window this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Optimizer steps before.
    pub window: u64,
    /// Failures before, in this window.
    pub attempt: u32,
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Put everything back, and run the window again: the sizes are smaller now.
    Again,
    /// There is nothing more to try.
    GiveUp(Failure),
}

/// Why there is nothing more to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// One sample alone does not fit.
    OneSample,
    /// It was tried as often as makes sense.
    TooOften,
    /// The device needs a new process.
    Sticky,
    /// It is not memory.
    NotMemory,
}

/// Decides for one model's training.
#[derive(Clone, Debug)]
pub struct Controller {
    settings: Settings,
    memory: Memory,
    attempt: u32,
    /// Failures in this window with one sample alone.
    singles: u32,
    /// Whether something ran in this window, in any attempt.
    something_fitted: bool,
    batches: Vec<Batch>,
    /// Windows in a row in which the allocator flushed its cache.
    thrashing: u32,
    growth: Growth,
    /// Bytes that all gradients take.
    gradients: u64,
    /// The size that was last taken for each shape.
    chosen: BTreeMap<String, u32>,
    /// Whether the window began in another process, and has gradients from there.
    inherits: bool,
    /// What the allocator has blocks for.
    cache: Cache,
}

/// What a controller remembers from one process to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Memory {
    window: Window,
    /// Windows that were stepped with.
    windows: u64,
    /// What the first part of a window needed, and what later ones did, beside the gradients of those
    /// before.
    first: Predictor,
    later: Predictor,
    ceilings: BTreeMap<String, Ceiling>,
    scale: ScaleHistory,
    /// Failures that a later attempt made good.
    survived: u64,
}

impl Controller {
    /// A controller that has seen nothing.
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

    /// A batch arrives: `items` samples of a shape, the largest of so many elements, that are expected to
    /// count so much. `costs` are the samples' own sizes where they differ. Whether it begins a window.
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

    /// The next part to run of a batch of the window (0 is its first); none when all of it was run. `space`
    /// tells what there is for it; it is asked only where that matters, since to know it costs time.
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
                let start = entry.covered();
                entry.parts.push(start..(start + most as usize).min(entry.items));
            }
        }
        let entry = &self.batches[batch];
        let part = entry.parts.get(entry.given)?.clone();
        let (empties, watched) = self.prepare(batch, &part, || ask.map_or(space, |ask| ask()));
        self.batches[batch].given += 1;
        Some(Turn { part, empties, watched })
    }

    /// Remembers the size that was taken for a batch's shape.
    fn choose(&mut self, batch: usize, most: u32) {
        let shape = &self.batches[batch].shape;
        match self.chosen.get_mut(shape) {
            Some(last) => *last = most,
            None => _ = self.chosen.insert(shape.clone(), most),
        }
    }

    /// Whether the allocator's cache is to be emptied before a part, and whether what the part needs is to be
    /// looked at.
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

    /// Whether the next part of a batch meets no gradients of parts before it.
    fn is_first(&self, index: usize) -> bool {
        index == 0 && self.batches[index].given == 0 && !self.inherits
    }

    /// The size for the rest of a batch, and whether it is for all of the rest: a shape that is new is
    /// entered in steps, each at most twice the one before or what is foreseen from above, until what was
    /// seen tells where they would end.
    fn size(&self, index: usize, batch: &Batch, room: Option<u64>) -> (u32, bool) {
        let items = u32::try_from(batch.items).unwrap_or(u32::MAX);
        let wanted = self.settings.micro_batch.unwrap_or(items).min(items);
        let ceiling = self.memory.ceilings.get(&batch.shape);
        let limit = ceiling.map_or(wanted, |ceiling| ceiling.limit(wanted));
        let entering = self.settings.careful && self.settings.micro_batch.is_none() && self.attempt == 0;
        if let Some(room) = room {
            let alone = index == 0 && batch.covered() == 0 && limit == items;
            // The whole batch at once meets no gradients of parts before it.
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
            // The bound from above has room for none: one sample tells more than the bound does.
            if entering && self.need(batch, 1, false).is_some() {
                return (1, false);
            }
        }
        let safe = ceiling.map_or(0, |ceiling| ceiling.safe);
        if entering && safe < limit { ((2 * safe).clamp(1, limit), false) } else { (limit, true) }
    }

    /// Whether one sample more is worth a try where a single size is known, whose bound in proportion allows
    /// none: what one sample needs has a part that does not grow, so two may fit where one takes less
    /// than two thirds.
    fn may_explore(&self, batch: &Batch, safe: u32, room: u64) -> bool {
        self.need(batch, safe, false).is_some_and(|need| need.saturating_mul(3) <= room.saturating_mul(2))
    }

    /// The size to take where so much is foreseen to fit: the last one again, unless it is too large now, or
    /// much too small. The room differs by little things from step to step, and each new size is another
    /// set of blocks and kernels.
    fn steadied(&self, batch: &Batch, foreseen: u32, limit: u32) -> u32 {
        match self.chosen.get(&batch.shape) {
            Some(&last) if last < foreseen && foreseen < limit && (foreseen - last) * STEADY < last => last,
            _ => foreseen,
        }
    }

    /// What a part of this size needs, from above: as the first of its window, which meets no gradients, or
    /// as a later one.
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

    /// Whether what is foreseen for a batch rests on more than one size or length.
    fn is_sure(&self, batch: &Batch) -> bool {
        self.memory.first.is_sure(&batch.shape, batch.elements)
            || self.memory.later.is_sure(&batch.shape, batch.elements)
    }

    /// What a part of so many samples of such a shape is foreseen to need beyond what is live, from above;
    /// `first` where it is alone in its window.
    pub fn foreseen(&self, shape: &str, elements: u64, size: u32, first: bool) -> Option<u64> {
        let batch =
            Batch { shape: shape.to_owned(), elements, items: 0, costs: None, parts: Vec::new(), given: 0 };
        self.need(&batch, size, first)
    }

    /// The largest part of at most `most` samples of such a shape that is foreseen to need no more than
    /// `room`.
    pub fn largest(&self, shape: &str, elements: u64, most: u32, room: u64) -> Option<u32> {
        if self.foreseen(shape, elements, most, true).is_some_and(|need| need <= room) {
            return Some(most);
        }
        largest(most, room, |size| self.foreseen(shape, elements, size, false))
    }

    /// Bytes that gradients take, which are there from a window's first backward on.
    pub fn gradients_take(&mut self, bytes: u64) {
        self.gradients = bytes;
    }

    /// A part of a batch ran to its end. `need` is what the allocator had taken for it beyond what was live
    /// before the window, where that was looked at.
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
            // Gradients of the parts before are there throughout a later one, and are the same however large
            // it is.
            let (predictor, need) = if first {
                (&mut self.memory.first, need)
            } else {
                (&mut self.memory.later, need.saturating_sub(self.gradients))
            };
            predictor.saw(&batch.shape, batch.elements, worth, need);
        }
        // Samples of different sizes: how many of them fitted says nothing of as many of the largest.
        if batch.costs.is_none() && self.attempt == 0 {
            let ceiling = self.memory.ceilings.entry(batch.shape.clone()).or_default();
            if ceiling.failed.is_none() {
                ceiling.safe = ceiling.safe.max(size);
            }
        }
    }

    /// What the part counted.
    pub fn count(&mut self, count: f64) -> Result<(), TrainError> {
        self.memory.window.count(count)
    }

    /// A part of a batch failed.
    pub fn failed(&mut self, batch: usize, size: u32, fault: Fault) -> Decision {
        match fault {
            Fault::Other => return Decision::GiveUp(Failure::NotMemory),
            Fault::Sticky => return Decision::GiveUp(Failure::Sticky),
            Fault::DeviceMemory(_) | Fault::HostMemory => {}
        }
        if let Some(batch) = self.batches.get(batch) {
            self.memory.ceilings.entry(batch.shape.clone()).or_default().failed(size.max(1));
        }
        // What was foreseen was wrong, or the circumstances are others.
        self.cache = Cache::default();
        self.singles += u32::from(size <= 1);
        // Where nothing fitted yet, one sample is tried twice: what was in the way may be gone with the first
        // attempt.
        let most = if self.something_fitted { TRANSIENTS } else { 2 };
        if size <= 1 && self.singles >= most {
            Decision::GiveUp(Failure::OneSample)
        } else if self.attempt + 1 >= ATTEMPTS {
            Decision::GiveUp(Failure::TooOften)
        } else {
            Decision::Again
        }
    }

    /// The window begins again, after this rank's failure or another's.
    pub fn restart(&mut self) {
        self.attempt += 1;
        self.cache.emptied();
        self.memory.window.rewind();
        for batch in &mut self.batches {
            batch.parts.clear();
            batch.given = 0;
        }
    }

    /// The window is dropped: what it had is as if it had not arrived.
    pub fn abandon(&mut self) {
        self.end_window();
    }

    /// Which attempt this is.
    pub fn attempt(&self) -> Attempt {
        Attempt { window: self.memory.windows, attempt: self.attempt }
    }

    /// The window's books.
    pub fn window(&self) -> &Window {
        &self.memory.window
    }

    /// Sets what losses are divided by, where all ranks know it before the first backward.
    pub fn divide_by(&mut self, divisor: f64) -> Result<(), TrainError> {
        self.memory.window.divide_by(divisor)
    }

    /// How many batches of the window this process has; after a resume the books may know of more.
    pub fn held(&self) -> usize {
        self.batches.len()
    }

    /// How many parts the window was run in.
    pub fn parts(&self) -> usize {
        self.batches.iter().map(|batch| batch.given).sum()
    }

    /// What to tell the other ranks.
    pub fn status(&self, outcome: Outcome) -> Status {
        Status {
            window: self.memory.windows,
            attempt: self.attempt,
            outcome,
            count: self.memory.window.counted(),
        }
    }

    /// The optimizer stepped: the next window begins. `flushed` says whether the allocator had to flush its
    /// cache.
    pub fn stepped(&mut self, flushed: bool) {
        self.memory.survived += u64::from(self.attempt);
        self.memory.windows += 1;
        self.thrashing = if flushed { self.thrashing + 1 } else { 0 };
        let thrashes = self.thrashing >= THRASHING;
        if thrashes {
            self.thrashing = 0;
        }
        if flushed {
            // The allocator gave back what it had on its own.
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

    /// The loss scale over the windows.
    pub fn scale(&mut self) -> &mut ScaleHistory {
        &mut self.memory.scale
    }

    /// Failures that a later attempt made good.
    pub fn survived(&self) -> u64 {
        self.memory.survived
    }

    /// Optimizer steps so far.
    pub fn windows(&self) -> u64 {
        self.memory.windows
    }

    /// What to remember from one process to the next, as something serde can write.
    pub fn memory(&self) -> impl Serialize + '_ {
        &self.memory
    }

    /// Takes up what was remembered. The window's length is this process's own.
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
