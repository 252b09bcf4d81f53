//! Streams and events.
//!
//! Nothing is computed, so a stream keeps no queue, only the time when its work will be done (see
//! [`crate::clock`]); beside that it has a card, flags and a priority, and may be capturing.

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

/// The stream that synchronises with all others of the old kind; also 0.
pub(crate) const LEGACY: u64 = 1;
/// Each thread's own default stream.
pub(crate) const PER_THREAD: u64 = 2;
/// `cudaStreamNonBlocking`.
pub(crate) const NON_BLOCKING: u32 = 1;
/// Least and greatest priority of a stream: lower numbers go first.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

/// A stream that a program made.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) card: AtomicU32,
    pub(crate) flags: AtomicU32,
    pub(crate) priority: AtomicI32,
    pub(crate) id: AtomicU64,
    /// The capture it takes part in; 0 if in none.
    pub(crate) capture: AtomicU64,
    line: Timeline,
    /// When what it has captured is done, from the start of the graph.
    captured: Timeline,
}

/// `cudaEventDisableTiming`.
pub(crate) const DISABLE_TIMING: u32 = 2;
/// `cudaEventInterprocess`.
pub(crate) const INTERPROCESS: u32 = 4;

/// What recording takes on the stream.
const RECORD: u64 = 500;

/// An event.
#[derive(Default)]
pub(crate) struct Event {
    pub(crate) card: AtomicU32,
    pub(crate) flags: AtomicU32,
    /// When the work before its last record is done; 0 if it was never recorded.
    recorded: AtomicU64,
    /// The capture it was last recorded in; 0 if in none.
    pub(crate) capture: AtomicU64,
    /// When what was captured before it is done, from the start of the graph.
    captured: AtomicU64,
}

static STREAMS: Table<Stream> = Table::new(1);
static EVENTS: Table<Event> = Table::new(2);
/// What each card's streams share.
static CARDS: [CardLines; MAX_CARDS] = [const { CardLines::new() }; MAX_CARDS];
/// Ids 1 and 2 are the default streams'.
static NEXT_ID: AtomicU64 = AtomicU64::new(3);

struct CardLines {
    /// The default stream.
    default: Timeline,
    /// The latest end of any stream that waits for the default one, and that the default one waits for.
    blocking: Timeline,
    /// The latest end of any stream.
    all: Timeline,
    /// What kernels of all streams have between them.
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

    fn of(card: u32) -> &'static Self {
        &CARDS[card as usize % MAX_CARDS]
    }
}

/// What a stream handle stands for.
#[derive(Clone, Copy)]
pub(crate) enum StreamRef {
    /// A default stream of the current card.
    Default(u64),
    /// A stream that a program made.
    Made(&'static Stream),
}

/// Makes a stream on a card.
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
            // The slot may have had a tenant, whose work is not this stream's.
            stream.line.clear();
            stream.captured.clear();
        })
        .ok_or(Status::OUT_OF_MEMORY)
}

/// Destroys a stream. Its work goes on, and the card remembers when it will be done.
pub(crate) fn destroy(stream: u64) -> Outcome {
    if STREAMS.remove(stream) { Ok(()) } else { Err(Status::INVALID_HANDLE) }
}

/// What a handle stands for; a default stream also needs a context on the current card.
#[inline]
pub(crate) fn resolve(stream: u64) -> Outcome<StreamRef> {
    if stream <= PER_THREAD {
        machine::current_context()?;
        return Ok(StreamRef::Default(stream.max(LEGACY)));
    }
    machine::get()?;
    STREAMS.get(stream).map(StreamRef::Made).ok_or(Status::INVALID_HANDLE)
}

/// Work is queued on a stream: what is captured becomes a node, everything else takes its time.
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

/// A kernel is launched on a stream, which must be one of the current card's; gives the capture that the
/// stream takes part in.
#[inline]
pub(crate) fn launch(stream: u64, work: Work, effort: Effort) -> Outcome<u64> {
    let stream = queue(stream, work, effort)?;
    if stream.card() == thread::device() { Ok(stream.capture()) } else { Err(Status::INVALID_HANDLE) }
}

/// A graph of a length is launched on a stream, which has the card for `demand` of it.
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

/// When all work of all cards that is queued now will be done.
pub(crate) fn all_end() -> u64 {
    CARDS.iter().map(|card| card.all.end()).max().unwrap_or(0)
}

/// When all work of a card that is queued now will be done.
pub(crate) fn card_end(card: u32) -> u64 {
    CardLines::of(card).all.end()
}

impl StreamRef {
    fn line(&self) -> &'static Timeline {
        match self {
            Self::Default(_) => &CardLines::of(self.card()).default,
            Self::Made(stream) => &stream.line,
        }
    }

    /// Queues work of a length, which has the card for `demand` of it. The default stream and streams of the
    /// blocking kind wait for each other.
    #[inline]
    fn work(&self, nanoseconds: u64, demand: u64, effort: Effort) {
        let (line, card) = (self.line(), CardLines::of(self.card()));
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
            // It may have held up others.
            card.all.wait_for(card.shared.latest());
        }
        if is_blocking && matches!(self, Self::Made(_)) {
            card.blocking.wait_for(end);
        }
        card.all.wait_for(end);
    }

    /// When its work will be done. The default stream's is done when that of the streams it waits for is,
    /// too.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Self::Default(_) => self.line().end().max(CardLines::of(self.card()).blocking.end()),
            Self::Made(stream) => stream.line.end(),
        }
    }

    /// What is queued from here on waits for an event. What is captured waits for what was captured:
    /// everything else is over when the graph is launched.
    pub(crate) fn wait_for(&self, event: &Event) {
        if event.capture.load(Relaxed) == 0 {
            self.line().wait_for(event.recorded.load(Relaxed));
        } else if let Some(line) = self.captured() {
            line.wait_for(event.captured.load(Relaxed));
        }
    }

    /// What it has captured.
    fn captured(&self) -> Option<&Timeline> {
        match self {
            Self::Default(_) => None,
            Self::Made(stream) => Some(&stream.captured),
        }
    }

    /// A capture begins on it.
    pub(crate) fn begin_capture(&self) {
        self.captured().inspect(|line| line.clear());
    }

    /// The ordinal of its card.
    pub(crate) fn card(&self) -> u32 {
        match self {
            Self::Default(_) => thread::device(),
            Self::Made(stream) => stream.card.load(Relaxed),
        }
    }

    /// A number that no other stream of the process has.
    pub(crate) fn id(&self) -> u64 {
        match self {
            Self::Default(stream) => *stream,
            Self::Made(stream) => stream.id.load(Relaxed),
        }
    }

    /// Its flags.
    pub(crate) fn flags(&self) -> u32 {
        match self {
            Self::Default(_) => 0,
            Self::Made(stream) => stream.flags.load(Relaxed),
        }
    }

    /// Its priority.
    pub(crate) fn priority(&self) -> i32 {
        match self {
            Self::Default(_) => 0,
            Self::Made(stream) => stream.priority.load(Relaxed),
        }
    }

    /// The capture it takes part in; 0 if in none. The default streams cannot be captured.
    pub(crate) fn capture(&self) -> u64 {
        match self {
            Self::Default(_) => 0,
            Self::Made(stream) => stream.capture.load(Relaxed),
        }
    }
}

/// Every stream that is part of a capture leaves it.
pub(crate) fn end_capture(capture: u64) {
    for handle in STREAMS.alive() {
        if let Some(stream) = STREAMS.get(handle) {
            let _ = stream.capture.compare_exchange(capture, 0, Relaxed, Relaxed);
        }
    }
}

/// Makes an event on the current card.
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

/// The event of a handle.
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
            stream.work(RECORD, 0, Effort::Call);
            self.recorded.store(stream.end(), Relaxed);
        } else {
            self.captured.store(stream.captured().map_or(0, Timeline::end), Relaxed);
        }
        Ok(())
    }

    /// When the work before its last record will be done; 0 if it was never recorded.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.recorded.load(Relaxed)
    }

    /// Milliseconds from one event to another.
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
