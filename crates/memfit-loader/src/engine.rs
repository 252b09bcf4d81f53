//! The threads that fill batches.
//!
//! Samples are taken up in the order in which they are delivered, so the next batch is always the first to be
//! ready. Nothing that a thread decides depends on when it runs: which samples, how they are cropped, and
//! what becomes of a broken one are functions of (seed, epoch, index).

#![allow(unsafe_code, reason = "a C decoder is called, and memory filled that torch owns")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::LoaderError;
use crate::budget::Gate;
use crate::cache::{Cache, CacheCounts};
use crate::decode::{Decoder, Prepared};
use crate::input::Input;
use crate::pixels::Layout;
use crate::plan::Rendering;
use crate::random::Stream;
use crate::slot::Slot;
use crate::source::{Source, Target};
use crate::view::{Crop, Framing};

/// What makes streams of numbers for different purposes different.
const VIEW: u64 = 0x7669_6577;
const REPLACE: u64 = 0x7265_706c;
/// Other samples that are tried in place of a broken one.
const REPLACEMENTS: usize = 16;
/// After a decoder took this much for itself, what the C library holds back of it is given back.
const LARGE: u64 = 4 << 20;

/// What is done about a sample that cannot be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Stop, and name it.
    #[default]
    Raise,
    /// Leave it out, and count it.
    Skip,
    /// Take another one, and count it.
    Replace,
}

impl Policy {
    /// The policy of this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "raise" => Some(Self::Raise),
            "skip" => Some(Self::Skip),
            "replace" => Some(Self::Replace),
            _ => None,
        }
    }
}

/// How batches are made.
#[derive(Clone, Debug)]
pub struct Job {
    /// Threads that decode.
    pub threads: usize,
    /// The part of each image, and its size.
    pub framing: Framing,
    /// How its pixels are made.
    pub rendering: Rendering,
    /// The values of the batch.
    pub layout: Layout,
    /// Whether other types of values are turned into the batch's; else they are an error.
    pub convert: bool,
    /// Width and height of every image of the batch.
    pub size: (u32, u32),
    /// Band by band, or pixel by pixel.
    pub planar: bool,
    /// What is done about broken images.
    pub broken: Policy,
    /// What is done about images that do not fit into the budget.
    pub oversize: Policy,
    /// What random choices depend on.
    pub seed: u64,
    /// The number of the pass.
    pub epoch: u64,
    /// Bytes that each thread may keep from image to image.
    pub kept: u64,
    /// Bytes that are left for images that need more than that.
    pub shared: u64,
    /// Where small copies are kept, if they are.
    pub cache: Option<Arc<Cache>>,
}

impl Job {
    /// The size of one image in bytes.
    pub fn bytes(&self) -> usize {
        self.size.0 as usize * self.size.1 as usize * self.layout.pixel()
    }
}

/// A sample of a batch that was filled.
#[derive(Debug)]
pub struct Filled {
    /// Which sample it is.
    pub index: u64,
    /// What belongs to it.
    pub target: Target,
    /// How points of the picture come to lie in the image; see [`Prepared::mapping`].
    pub mapping: [f64; 4],
}

/// A sample that was left out or replaced.
#[derive(Debug)]
pub struct Left {
    /// What its source calls it.
    pub name: String,
    /// Why.
    pub error: LoaderError,
}

/// A batch that is ready.
#[derive(Debug, Default)]
pub struct Batch {
    /// Its samples, in the order of its memory.
    pub filled: Vec<Filled>,
    /// Those that were left out or replaced.
    pub left: Vec<Left>,
}

/// What has been done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Images that were decoded.
    pub images: u64,
    /// Bytes of files that they came from.
    pub bytes: u64,
    /// Samples that were left out or replaced.
    pub left: u64,
    /// The most bytes that images took at one time, beyond what threads keep.
    pub shared_peak: u64,
    /// The most bytes that one image took.
    pub largest: u64,
    /// What the cache of small copies did, for all who share it.
    pub cache: CacheCounts,
}

struct Work {
    samples: Vec<u64>,
    slot: Slot,
    next: AtomicUsize,
    left: AtomicUsize,
    outcomes: Mutex<Vec<Option<Outcome>>>,
}

#[derive(Debug)]
struct Outcome {
    filled: Result<Filled, LoaderError>,
    left: Vec<Left>,
}

struct Shared {
    source: Arc<dyn Source>,
    job: Job,
    gate: Gate,
    state: Mutex<State>,
    /// Work has come, or the end.
    work: Condvar,
    /// A batch is ready.
    ready: Condvar,
    images: AtomicU64,
    bytes: AtomicU64,
    left: AtomicU64,
    largest: AtomicU64,
}

#[derive(Default)]
struct State {
    batches: VecDeque<Arc<Work>>,
    closed: bool,
}

/// Threads that fill batches, until it is dropped.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    process: u32,
}

impl Engine {
    /// Starts the threads.
    pub fn start(source: Arc<dyn Source>, job: Job) -> Result<Self, LoaderError> {
        let shared = Arc::new(Shared {
            source,
            gate: Gate::new(job.shared),
            job,
            state: Mutex::default(),
            work: Condvar::new(),
            ready: Condvar::new(),
            images: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            left: AtomicU64::new(0),
            largest: AtomicU64::new(0),
        });
        let mut engine = Self { shared, threads: Vec::new(), process: std::process::id() };
        for number in 0..engine.shared.job.threads {
            let shared = engine.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("memfit-data-{number}"))
                .spawn(move || shared.run())?;
            engine.threads.push(thread);
        }
        Ok(engine)
    }

    /// Gives the next batch its samples and its memory.
    pub fn offer(&self, samples: Vec<u64>, slot: Slot) -> Result<(), LoaderError> {
        if samples.is_empty() || samples.len() * self.shared.job.bytes() > slot.length() {
            return Err(LoaderError::Bug(format!("{} samples in {} bytes", samples.len(), slot.length())));
        }
        let count = samples.len();
        let work = Work {
            samples,
            slot,
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(count),
            outcomes: Mutex::new((0..count).map(|_| None).collect()),
        };
        self.shared.lock().batches.push_back(Arc::new(work));
        self.shared.work.notify_all();
        Ok(())
    }

    /// The batch that was offered first, once it is ready; `None` if that takes longer than this.
    ///
    /// Nothing was offered, or a sample failed that is not to be passed over: an error.
    pub fn take(&self, patience: Duration) -> Result<Option<Batch>, LoaderError> {
        let mut state = self.shared.lock();
        let Some(first) = state.batches.front().cloned() else {
            return Err(LoaderError::Bug("no batch was offered".to_owned()));
        };
        if first.left.load(Ordering::Acquire) > 0 {
            state = self
                .shared
                .ready
                .wait_timeout_while(state, patience, |_| first.left.load(Ordering::Acquire) > 0)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if first.left.load(Ordering::Acquire) > 0 {
                return Ok(None);
            }
        }
        state.batches.pop_front();
        drop(state);
        self.gather(&first).map(Some)
    }

    /// Whether the first batch is ready.
    pub fn ready(&self) -> bool {
        self.shared.lock().batches.front().is_some_and(|work| work.left.load(Ordering::Acquire) == 0)
    }

    /// What has been done so far.
    pub fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            images: read(&self.shared.images),
            bytes: read(&self.shared.bytes),
            left: read(&self.shared.left),
            shared_peak: self.shared.gate.peak(),
            largest: read(&self.shared.largest),
            cache: self.shared.job.cache.as_ref().map(|cache| cache.counts()).unwrap_or_default(),
        }
    }

    /// Brings a batch's samples together, and closes the gaps of those that were left out.
    fn gather(&self, work: &Work) -> Result<Batch, LoaderError> {
        let outcomes = std::mem::take(&mut *work.outcomes.lock().unwrap_or_else(PoisonError::into_inner));
        let mut batch = Batch::default();
        let bytes = self.shared.job.bytes();
        for (place, outcome) in outcomes.into_iter().enumerate() {
            let Some(outcome) = outcome else {
                return Err(LoaderError::Bug("a thread ended before its sample".to_owned()));
            };
            batch.left.extend(outcome.left);
            match outcome.filled {
                Ok(filled) => {
                    let to = batch.filled.len();
                    if to != place {
                        // SAFETY: the batch is ready, so no thread borrows from it.
                        unsafe { work.slot.shift(place, to, bytes) };
                    }
                    batch.filled.push(filled);
                }
                Err(LoaderError::Sample { name, error })
                    if self.shared.job.policy(&error) == Policy::Skip =>
                {
                    batch.left.push(Left { name, error: *error });
                }
                Err(error) => return Err(error),
            }
        }
        self.shared.left.fetch_add(batch.left.len() as u64, Ordering::Relaxed);
        Ok(batch)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // After a fork the threads are not here, and their locks may be held for ever.
            std::mem::forget(self.shared.clone());
            std::mem::take(&mut self.threads).into_iter().for_each(std::mem::forget);
            return;
        }
        self.shared.lock().closed = true;
        self.shared.gate.close();
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Job {
    fn policy(&self, error: &LoaderError) -> Policy {
        if matches!(error, LoaderError::Oversize { .. }) { self.oversize } else { self.broken }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut decoder = Decoder::new();
        while let Some((work, place)) = self.next() {
            let outcome = self.sample(&mut decoder, &work, place);
            work.outcomes.lock().unwrap_or_else(PoisonError::into_inner)[place] = Some(outcome);
            if work.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                // Under the lock, or who waits could miss it between looking and sleeping.
                let _state = self.lock();
                self.ready.notify_all();
            }
        }
    }

    /// The first sample that no thread has taken up; `None` at the end.
    fn next(&self) -> Option<(Arc<Work>, usize)> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            for work in &state.batches {
                let place = work.next.fetch_add(1, Ordering::Relaxed);
                if place < work.samples.len() {
                    return Some((work.clone(), place));
                }
                // It stays at the end, so that it cannot come round.
                work.next.store(work.samples.len(), Ordering::Relaxed);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn sample(&self, decoder: &mut Decoder, work: &Work, place: usize) -> Outcome {
        let index = work.samples[place];
        let Some(out) =
            // SAFETY: `next` gives each place of a batch to one thread, once.
            (unsafe { work.slot.part(place, self.job.bytes()) })
        else {
            return Outcome { filled: Err(LoaderError::Bug("a slot is too short".to_owned())), left: Vec::new() };
        };
        let mut left = Vec::new();
        let mut stream = Stream::new(&[REPLACE, self.job.seed, self.job.epoch, index]);
        let mut asked = index;
        loop {
            let error = match self.fill(decoder, asked, out) {
                Ok(filled) => return Outcome { filled: Ok(filled), left },
                Err(error) => error,
            };
            let name = self.source.name(asked);
            if self.job.policy(&error) != Policy::Replace || left.len() >= REPLACEMENTS {
                return Outcome { filled: Err(LoaderError::Sample { name, error: Box::new(error) }), left };
            }
            left.push(Left { name, error });
            asked = stream.below(u32::try_from(self.source.count()).unwrap_or(u32::MAX)).into();
        }
    }

    fn fill(&self, decoder: &mut Decoder, index: u64, out: &mut [u8]) -> Result<Filled, LoaderError> {
        let (input, target) = self.source.open(index)?;
        self.decode(decoder, index, input, out).map(|mapping| Filled { index, target, mapping })
    }

    fn decode(
        &self,
        decoder: &mut Decoder,
        index: u64,
        input: Input,
        out: &mut [u8],
    ) -> Result<[f64; 4], LoaderError> {
        let job = &self.job;
        let (length, place) = (input.length(), [VIEW, job.seed, job.epoch, index]);
        let framing = match self.source.part(index)? {
            Some(part) => Framing { crop: Crop::Part(part), ..job.framing },
            None => job.framing,
        };
        let image = Prepared::new(input, &framing, &job.rendering, &place)?;
        let header = image.header();
        if !job.convert && header.layout.sample != job.layout.sample {
            return Err(LoaderError::OtherType {
                found: header.layout.sample.name(),
                wanted: job.layout.sample.name(),
            });
        }
        if image.layout().bands.count() != job.layout.bands.count() {
            return Err(LoaderError::OtherBands {
                found: image.layout().bands.count(),
                wanted: job.layout.bands.count(),
            });
        }
        let mapping = image.mapping();
        let image = match &job.cache {
            Some(cache) if cache.serves(&image) => self.copied(decoder, cache, &image)?,
            _ => image,
        };
        self.admitted(decoder, &image, 0, |decoder| decoder.decode(&image, job.planar, out))?;
        self.images.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(length, Ordering::Relaxed);
        Ok(mapping)
    }

    /// The same view out of a small copy, which is made if there is none.
    fn copied(
        &self,
        decoder: &mut Decoder,
        cache: &Cache,
        image: &Prepared,
    ) -> Result<Prepared, LoaderError> {
        let rendering = &self.job.rendering;
        let (upright, page) = (rendering.upright, image.page());
        let key = cache.key(image.input(), upright, page)?;
        if let Some(copy) = cache.get(key)
            && let Ok(small) = image.out_of(Input::Memory(copy.into()), rendering)
        {
            return Ok(small);
        }
        let (framing, how) = cache.recipe(upright, page);
        let large = Prepared::new(image.input().clone(), &framing, &how, &[])?;
        let copy =
            self.admitted(decoder, &large, Cache::beside(&large), |decoder| Cache::make(decoder, &large))?;
        cache.put(key, &copy);
        image.out_of(Input::Memory(copy.into()), rendering)
    }

    /// Does what decodes an image once there is room for it, and for `beside` bytes more.
    fn admitted<T>(
        &self,
        decoder: &mut Decoder,
        image: &Prepared,
        beside: u64,
        work: impl FnOnce(&mut Decoder) -> Result<T, LoaderError>,
    ) -> Result<T, LoaderError> {
        let (job, header) = (&self.job, image.header());
        let input = image.input();
        let held = beside + if input.in_memory() { input.length() } else { 0 };
        let needs = image.cost().total().saturating_add(held);
        self.largest.fetch_max(needs, Ordering::Relaxed);
        let beyond = needs.saturating_sub(job.kept);
        if beyond > self.gate.total() {
            return Err(LoaderError::Oversize {
                format: header.format.name(),
                width: header.width,
                height: header.height,
                needs,
                has: self.gate.total() + job.kept,
            });
        }
        let Some(permit) = self.gate.enter(beyond) else {
            return Err(LoaderError::Bug("the loader was closed".to_owned()));
        };
        decoder.make_room(image.cost(), job.kept.saturating_add(beyond).saturating_sub(held));
        let result = work(decoder);
        let trimmed = decoder.trim(usize::try_from(job.kept).unwrap_or(usize::MAX));
        if trimmed || image.cost().decoder > LARGE {
            give_back();
        }
        drop(permit);
        result
    }
}

/// Has the C library return what was freed: decoders' large blocks would stay in its heaps.
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}
