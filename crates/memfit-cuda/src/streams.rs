//! Streams and events.
//!
//! Nothing is computed, so a stream keeps no queue, only the completion time of its work (see
//! [`crate::clock`]), with its device, flags, priority and capture.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

use memfit_channel::ledger::MAX_CARDS;

use crate::{
    beside,
    clock::{self, Effort, Timeline},
    graphs,
    machine::{self, Card},
    sharing::Shared,
    status::{Outcome, Status},
    thread,
};
use memfit_abi::handles::Table;
use memfit_kernels::cost::Work;

/// Handle of the legacy default stream, which synchronises with all blocking streams; 0 means the same.
pub(crate) const LEGACY: u64 = 1;
/// Handle of the per-thread default stream.
pub(crate) const PER_THREAD: u64 = 2;
/// `cudaStreamNonBlocking`.
pub(crate) const NON_BLOCKING: u32 = 1;
/// Lowest and highest priority of a stream: lower numbers run first.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

/// A stream created by the program.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) card: AtomicU32,
    pub(crate) flags: AtomicU32,
    pub(crate) priority: AtomicI32,
    pub(crate) id: AtomicU64,
    /// Capture that it takes part in; 0 if none.
    pub(crate) capture: AtomicU64,
    line: Timeline,
    /// Completion time of its captured work, from the start of the graph.
    captured: Timeline,
}

/// `cudaEventDisableTiming`.
pub(crate) const DISABLE_TIMING: u32 = 2;
/// `cudaEventInterprocess`.
pub(crate) const INTERPROCESS: u32 = 4;

/// Nanoseconds that recording an event takes on the stream.
const RECORD_NANOSECONDS: u64 = 500;

/// An event.
#[derive(Default)]
pub(crate) struct Event {
    pub(crate) card: AtomicU32,
    pub(crate) flags: AtomicU32,
    /// Completion time of the work before its last record; 0 if it was never recorded.
    recorded: AtomicU64,
    /// Capture that it was last recorded in; 0 if none.
    pub(crate) capture: AtomicU64,
    /// Completion time of the work captured before it, from the start of the graph.
    captured: AtomicU64,
}

static STREAMS: Table<Stream> = Table::new(1);
static EVENTS: Table<Event> = Table::new(2);
/// State shared by the streams of each device.
static CARDS: [CardLines; MAX_CARDS] = [const { CardLines::new() }; MAX_CARDS];
/// Ids 1 and 2 belong to the default streams.
static NEXT_ID: AtomicU64 = AtomicU64::new(3);

struct CardLines {
    /// Timeline of the default stream.
    default: Timeline,
    /// Latest end of all blocking streams: those that wait for the default stream, and that it waits for.
    blocking: Timeline,
    /// Latest end of all streams.
    all: Timeline,
    /// Sharing of the device between kernels on different streams.
    shared: Shared,
}

impl CardLines {
    const fn new() -> Self {
        Self {
            default: Timeline::new(),
            blocking: Timeline::new(),
            all: Timeline::new(),
            shared: Shared::new(),
        }
    }

    fn for_card(card: u32) -> &'static Self {
        &CARDS[card as usize % MAX_CARDS]
    }
}

/// A resolved stream handle.
#[derive(Clone, Copy)]
pub(crate) enum StreamRef {
    /// A default stream of the current device.
    Default(u64),
    /// A stream created by the program.
    Made(&'static Stream),
}

/// Creates a stream on a device.
pub(crate) fn create(card: &Card, flags: u32, priority: i32) -> Outcome<u64> {
    if flags & !NON_BLOCKING != 0 {
        return Err(Status::INVALID_VALUE);
    }
    card.need_context()?;
    STREAMS
        .insert(|stream| {
            stream.card.store(card.ordinal, Relaxed);
            stream.flags.store(flags, Relaxed);
            stream.priority.store(priority.clamp(PRIORITIES.1, PRIORITIES.0), Relaxed);
            stream.id.store(NEXT_ID.fetch_add(1, Relaxed), Relaxed);
            stream.capture.store(0, Relaxed);
            // The slot may have held an earlier stream, whose work is not this one's.
            stream.line.clear();
            stream.captured.clear();
        })
        .ok_or(Status::OUT_OF_MEMORY)
}

/// Destroys a stream. Its work continues, and the device keeps its completion time.
pub(crate) fn destroy(stream: u64) -> Outcome {
    if STREAMS.remove(stream) { Ok(()) } else { Err(Status::INVALID_HANDLE) }
}

/// Resolves a handle. A default stream also needs a context on the current device.
#[inline]
pub(crate) fn resolve(stream: u64) -> Outcome<StreamRef> {
    if stream <= PER_THREAD {
        machine::current_context()?;
        return Ok(StreamRef::Default(stream.max(LEGACY)));
    }
    machine::get()?;
    STREAMS.get(stream).map(StreamRef::Made).ok_or(Status::INVALID_HANDLE)
}

/// Queues work on a stream: in a capture it becomes a node, otherwise it takes its time.
#[inline]
pub(crate) fn queue(stream: u64, work: Work, effort: Effort) -> Outcome<StreamRef> {
    let stream = resolve(stream)?;
    match stream.capture() {
        0 => {
            clock::count(work);
            stream.work(work.length, work.demand(), effort);
        }
        capture => {
            beside::forget();
            let end = stream.captured().map_or(work.length, |line| line.append(0, work.length));
            graphs::add_node(capture, work, end);
        }
    }
    Ok(stream)
}

/// Queues a kernel launch on a stream, which must belong to the current device. Returns the capture that the
/// stream takes part in.
#[inline]
pub(crate) fn launch(stream: u64, work: Work, effort: Effort) -> Outcome<u64> {
    let stream = queue(stream, work, effort)?;
    if stream.card() == thread::device() { Ok(stream.capture()) } else { Err(Status::INVALID_HANDLE) }
}

/// Launches a graph of `length` on a stream; it occupies the device for `demand` of that.
pub(crate) fn launch_graph(stream: u64, length: u64, demand: u64, parts: &[Work]) -> Outcome {
    let stream = resolve(stream)?;
    match stream.capture() {
        0 => {
            for part in parts {
                clock::count(*part);
            }
            beside::lose();
            stream.work(length, demand, Effort::Operator);
        }
        capture => {
            let end = stream.captured().map_or(length, |line| line.append(0, length));
            graphs::add_nodes(capture, parts, end);
        }
    }
    Ok(())
}

/// Completion time of all work queued on all devices.
pub(crate) fn all_end() -> u64 {
    CARDS.iter().map(|card| card.all.end()).max().unwrap_or(0)
}

/// Completion time of all work queued on a device.
pub(crate) fn card_end(card: u32) -> u64 {
    CardLines::for_card(card).all.end()
}

impl StreamRef {
    fn line(&self) -> &'static Timeline {
        match self {
            Self::Default(_) => &CardLines::for_card(self.card()).default,
            Self::Made(stream) => &stream.line,
        }
    }

    /// Queues work of a duration, which occupies the device for `demand` of it. The default stream and
    /// blocking streams wait for each other.
    #[inline]
    fn work(&self, nanoseconds: u64, demand: u64, effort: Effort) {
        let (line, card) = (self.line(), CardLines::for_card(self.card()));
        let is_blocking = self.flags() & NON_BLOCKING == 0;
        match self {
            Self::Default(_) => line.wait_for(card.blocking.end()),
            Self::Made(_) if is_blocking => line.wait_for(card.default.end()),
            Self::Made(_) => {}
        }
        beside::queue(nanoseconds, effort.nanoseconds());
        let mut end = line.queue(nanoseconds, effort);
        if demand > 0 && clock::is_running() {
            end = card.shared.take(line, end, nanoseconds, demand);
            // It may have delayed other streams.
            card.all.wait_for(card.shared.latest());
        }
        if is_blocking && matches!(self, Self::Made(_)) {
            card.blocking.wait_for(end);
        }
        card.all.wait_for(end);
    }

    /// Completion time of its work. The default stream's includes that of the blocking streams it waits for.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Self::Default(_) => self.line().end().max(CardLines::for_card(self.card()).blocking.end()),
            Self::Made(stream) => stream.line.end(),
        }
    }

    /// Makes later work wait for an event. Captured work waits only for captured work: everything else is
    /// complete when the graph is launched.
    pub(crate) fn wait_for(&self, event: &Event) {
        if event.capture.load(Relaxed) == 0 {
            self.line().wait_for(event.recorded.load(Relaxed));
        } else if let Some(line) = self.captured() {
            line.wait_for(event.captured.load(Relaxed));
        }
    }

    /// Timeline of its captured work; `None` for default streams.
    fn captured(&self) -> Option<&Timeline> {
        match self {
            Self::Default(_) => None,
            Self::Made(stream) => Some(&stream.captured),
        }
    }

    /// Starts a capture on the stream.
    pub(crate) fn begin_capture(&self) {
        self.captured().inspect(|line| line.clear());
    }

    /// Ordinal of its device.
    pub(crate) fn card(&self) -> u32 {
        match self {
            Self::Default(_) => thread::device(),
            Self::Made(stream) => stream.card.load(Relaxed),
        }
    }

    /// Id that no other stream of the process has.
    pub(crate) fn id(&self) -> u64 {
        match self {
            Self::Default(stream) => *stream,
            Self::Made(stream) => stream.id.load(Relaxed),
        }
    }

    /// Creation flags.
    pub(crate) fn flags(&self) -> u32 {
        match self {
            Self::Default(_) => 0,
            Self::Made(stream) => stream.flags.load(Relaxed),
        }
    }

    /// Priority.
    pub(crate) fn priority(&self) -> i32 {
        match self {
            Self::Default(_) => 0,
            Self::Made(stream) => stream.priority.load(Relaxed),
        }
    }

    /// Capture that it takes part in; 0 if none. The default streams cannot be captured.
    pub(crate) fn capture(&self) -> u64 {
        match self {
            Self::Default(_) => 0,
            Self::Made(stream) => stream.capture.load(Relaxed),
        }
    }
}

/// Removes every stream from a capture.
pub(crate) fn end_capture(capture: u64) {
    for handle in STREAMS.alive() {
        if let Some(stream) = STREAMS.get(handle) {
            let _ = stream.capture.compare_exchange(capture, 0, Relaxed, Relaxed);
        }
    }
}

/// Creates an event on the current device.
pub(crate) fn create_event(flags: u32) -> Outcome<u64> {
    const KNOWN: u32 = 1 | DISABLE_TIMING | INTERPROCESS;
    if flags & !KNOWN != 0 || flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let card = machine::current_context()?;
    EVENTS
        .insert(|event| {
            event.card.store(card.ordinal, Relaxed);
            event.flags.store(flags, Relaxed);
            event.recorded.store(0, Relaxed);
            event.capture.store(0, Relaxed);
            event.captured.store(0, Relaxed);
        })
        .ok_or(Status::OUT_OF_MEMORY)
}

/// Destroys an event.
pub(crate) fn destroy_event(event: u64) -> Outcome {
    if EVENTS.remove(event) { Ok(()) } else { Err(Status::INVALID_HANDLE) }
}

/// Resolves an event handle.
#[inline]
pub(crate) fn event(event: u64) -> Outcome<&'static Event> {
    machine::get()?;
    EVENTS.get(event).ok_or(Status::INVALID_HANDLE)
}

impl Event {
    /// Records the work that its stream has now.
    #[inline]
    pub(crate) fn record(&self, stream: &StreamRef) -> Outcome {
        if self.card.load(Relaxed) != stream.card() {
            return Err(Status::INVALID_HANDLE);
        }
        let capture = stream.capture();
        self.capture.store(capture, Relaxed);
        if capture == 0 {
            stream.work(RECORD_NANOSECONDS, 0, Effort::Call);
            self.recorded.store(stream.end(), Relaxed);
        } else {
            self.captured.store(stream.captured().map_or(0, Timeline::end), Relaxed);
        }
        Ok(())
    }

    /// Completion time of the work before its last record; 0 if it was never recorded.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.recorded.load(Relaxed)
    }

    /// Milliseconds between two events.
    pub(crate) fn elapsed(&self, end: &Self) -> Outcome<f32> {
        if (self.flags.load(Relaxed) | end.flags.load(Relaxed)) & DISABLE_TIMING != 0 {
            return Err(Status::INVALID_HANDLE);
        }
        let (start, end) = (self.recorded.load(Relaxed), end.recorded.load(Relaxed));
        if start == 0 || end == 0 {
            return Err(Status::INVALID_HANDLE);
        }
        Ok((end as f64 - start as f64) as f32 / 1e6)
    }
}
