//! Worker threads that fill batches.
//!
//! Samples are processed in delivery order, so that the next batch is always completed first. No decision
//! depends on timing: the selection of samples, crops, and the replacement of broken samples are functions of
//! (seed, epoch, index).

#![allow(unsafe_code, reason = "calls a C decoder, and fills memory that torch owns")]

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

/// Tags that separate random streams for different purposes.
const VIEW: u64 = 0x7669_6577;
const REPLACE: u64 = 0x7265_706c;
/// Maximum number of samples tried in place of a broken one.
const MAX_REPLACEMENTS: usize = 16;
/// Decoder allocations from which free memory of the C library is returned to the system afterwards.
const TRIM_THRESHOLD_BYTES: u64 = 4 << 20;

/// Treatment of a sample that cannot be loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Stop with an error that names it.
    #[default]
    Raise,
    /// Leave it out, and count it.
    Skip,
    /// Take another sample, and count it.
    Replace,
}

impl Policy {
    /// Policy with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "raise" => Some(Self::Raise),
            "skip" => Some(Self::Skip),
            "replace" => Some(Self::Replace),
            _ => None,
        }
    }
}

/// Settings for filling batches.
#[derive(Clone, Debug)]
pub struct Job {
    /// Number of decoding threads.
    pub threads: usize,
    /// Crop and size of each image.
    pub framing: Framing,
    /// Bands, sample type and filter of the pixels.
    pub rendering: Rendering,
    /// Layout of the batch.
    pub layout: Layout,
    /// `true` if other sample types are converted to the batch's; otherwise they are an error.
    pub convert: bool,
    /// Width and height of every image of the batch.
    pub size: (u32, u32),
    /// `true` for band by band (`CHW`), `false` for pixel by pixel (`HWC`).
    pub planar: bool,
    /// Treatment of broken images.
    pub broken: Policy,
    /// Treatment of images that exceed the budget.
    pub oversize: Policy,
    /// Seed of random choices.
    pub seed: u64,
    /// Epoch number.
    pub epoch: u64,
    /// Bytes that each thread may keep in buffers between images.
    pub kept: u64,
    /// Bytes that all threads share for images that need more.
    pub shared: u64,
    /// Disk cache of downscaled copies, if there is one.
    pub cache: Option<Arc<Cache>>,
}

impl Job {
    /// Bytes of one image.
    pub fn bytes(&self) -> usize {
        self.size.0 as usize * self.size.1 as usize * self.layout.pixel()
    }
}

/// Sample of a filled batch.
#[derive(Debug)]
pub struct Filled {
    /// Index of the sample.
    pub index: u64,
    /// Target of the sample.
    pub target: Target,
    /// Mapping of points of the original to the image; see [`Prepared::mapping`].
    pub mapping: [f64; 4],
}

/// Sample that was left out or replaced.
#[derive(Debug)]
pub struct Left {
    /// Name given by its source.
    pub name: String,
    /// Reason.
    pub error: LoaderError,
}

/// Finished batch.
#[derive(Debug, Default)]
pub struct Batch {
    /// Samples in the order of its memory.
    pub filled: Vec<Filled>,
    /// Samples that were left out or replaced.
    pub left: Vec<Left>,
}

/// Statistics so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Decoded images.
    pub images: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Samples that were left out or replaced.
    pub left: u64,
    /// Maximum shared bytes in use at one time.
    pub shared_peak: u64,
    /// Maximum bytes that one image needed.
    pub largest: u64,
    /// Statistics of the disk cache, over all its users.
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
    /// Signals new work, or the end.
    work: Condvar,
    /// Signals a finished batch.
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

/// Worker threads, which run until it is dropped.
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

    /// Queues a batch with its samples and its memory.
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

    /// Returns the first queued batch once it is ready, or `None` after `patience`.
    ///
    /// Fails if nothing is queued, or if a sample failed and the policy is to stop.
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

    /// Returns `true` if the first batch is ready.
    pub fn ready(&self) -> bool {
        self.shared.lock().batches.front().is_some_and(|work| work.left.load(Ordering::Acquire) == 0)
    }

    /// Statistics so far.
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

    /// Collects a batch's samples, and closes the gaps left by omitted ones.
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
            // After a fork, the threads do not exist in the child, and their locks may stay locked.
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
                // The lock is held, since a waiting thread could otherwise miss the notification.
                let _state = self.lock();
                self.ready.notify_all();
            }
        }
    }

    /// Takes the next sample that no thread has taken. Returns `None` at the end.
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
                // Clamped, so that the counter cannot overflow.
                work.next.store(work.samples.len(), Ordering::Relaxed);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn sample(&self, decoder: &mut Decoder, work: &Work, place: usize) -> Outcome {
        let index = work.samples[place];
        let Some(out) =
            // SAFETY: `next` assigns each place of a batch to one thread, once.
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
            if self.job.policy(&error) != Policy::Replace || left.len() >= MAX_REPLACEMENTS {
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
            Some(cache) if cache.serves(&image) => self.prepare_copy(decoder, cache, &image)?,
            _ => image,
        };
        self.run_admitted(decoder, &image, 0, |decoder| decoder.decode(&image, job.planar, out))?;
        self.images.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(length, Ordering::Relaxed);
        Ok(mapping)
    }

    /// Prepares the same view of a downscaled copy, which is created if necessary.
    fn prepare_copy(
        &self,
        decoder: &mut Decoder,
        cache: &Cache,
        image: &Prepared,
    ) -> Result<Prepared, LoaderError> {
        let rendering = &self.job.rendering;
        let (upright, page) = (rendering.upright, image.page());
        let key = cache.key(image.input(), upright, page)?;
        if let Some(copy) = cache.get(key)
            && let Ok(small) = image.view_of_copy(Input::Memory(copy.into()), rendering)
        {
            return Ok(small);
        }
        let (framing, how) = cache.recipe(upright, page);
        let large = Prepared::new(image.input().clone(), &framing, &how, &[])?;
        let copy = self.run_admitted(decoder, &large, Cache::creation_bytes(&large), |decoder| {
            Cache::make(decoder, &large)
        })?;
        cache.store(key, &copy);
        image.view_of_copy(Input::Memory(copy.into()), rendering)
    }

    /// Runs `work` once the image's cost and `beside` additional bytes are available.
    fn run_admitted<T>(
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
        if trimmed || image.cost().decoder > TRIM_THRESHOLD_BYTES {
            trim_heap();
        }
        drop(permit);
        result
    }
}

/// Makes the C library return freed memory to the system, since large blocks of decoders would stay in its
/// heaps.
fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and touches only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}
