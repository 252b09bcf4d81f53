//! Graphs, and the captures that fill them.
//!
//! Kernels do nothing, so a graph needs to know no more of its work than how many nodes it has, how long they
//! take, and what they do to contents that are known, which each launch does again. What matters is that the
//! calls around it behave: which are allowed while a stream is being captured, what a capture's status is,
//! and that whatever a graph keeps alive lives as long as the graph.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::status::{Outcome, Status};
use memfit_abi::Ptr;
use memfit_kernels::cost::Work;

/// A capture that is under way.
#[derive(Debug)]
struct Capture {
    /// The stream it began on, where it has to end.
    origin: u64,
    graph: u64,
    /// `cudaStreamCaptureModeGlobal`, `ThreadLocal`, `Relaxed`.
    mode: i32,
    /// Something happened that a capture cannot bear.
    invalid: bool,
    /// The call that began it named the graph, which stays its caller's.
    into_existing: bool,
}

/// What a node does to the contents of memory, each time that its graph is launched.
#[derive(Clone)]
pub(crate) struct Act(Arc<dyn Fn() + Send + Sync>);

impl Act {
    pub(crate) fn new(act: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(act))
    }

    /// Does it.
    pub(crate) fn run(&self) {
        self.0();
    }
}

impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Act")
    }
}

/// A graph.
#[derive(Debug, Default)]
struct Graph {
    nodes: Vec<u64>,
    work: GraphWork,
    acts: Vec<Act>,
    objects: BTreeMap<u64, u32>,
}

/// What a graph's nodes do, all together.
#[derive(Clone, Debug, Default)]
pub(crate) struct GraphWork {
    /// Nanoseconds of the longest way through it.
    pub(crate) length: u64,
    /// For how long its kernels have the card, one after the other.
    pub(crate) demand: u64,
    /// How much there is of each kind.
    pub(crate) parts: Vec<Work>,
}

impl GraphWork {
    fn add(&mut self, work: Work, end: u64) {
        self.length = self.length.max(end);
        self.demand = self.demand.saturating_add(work.demand());
        match self.parts.iter_mut().find(|part| part.kind == work.kind) {
            Some(part) => part.length = part.length.saturating_add(work.length),
            None => self.parts.push(work),
        }
    }
}

/// Something that graphs keep alive.
#[derive(Debug)]
struct UserObject {
    address: usize,
    destroy: extern "C" fn(Ptr),
    references: u32,
}

/// A graph as it was when it was instantiated.
#[derive(Debug)]
struct Executable {
    objects: BTreeMap<u64, u32>,
    work: GraphWork,
    acts: Arc<[Act]>,
}

#[derive(Debug, Default)]
struct Graphs {
    captures: BTreeMap<u64, Capture>,
    made: BTreeMap<u64, Graph>,
    /// Executable graphs.
    executables: BTreeMap<u64, Executable>,
    objects: BTreeMap<u64, UserObject>,
}

static GRAPHS: Mutex<Graphs> = Mutex::new(Graphs {
    captures: BTreeMap::new(),
    made: BTreeMap::new(),
    executables: BTreeMap::new(),
    objects: BTreeMap::new(),
});
/// Captures under way, so that the rest of the device need not look when there is none.
static ACTIVE: AtomicU64 = AtomicU64::new(0);
static NEXT: AtomicU64 = AtomicU64::new(1);

/// `cudaStreamCaptureStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureStatus {
    None = 0,
    Active = 1,
    Invalidated = 2,
}

fn lock() -> MutexGuard<'static, Graphs> {
    GRAPHS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn handle() -> u64 {
    0x7e04_0000_0000_0000 | NEXT.fetch_add(1, Relaxed) << 4
}

/// Whether any stream is being captured in a mode that forbids waiting for the card.
pub(crate) fn any_capture() -> bool {
    ACTIVE.load(Relaxed) != 0 && lock().captures.values().any(|capture| capture.mode == 0)
}

/// Opens a capture that began on a stream, into a new graph or a given one; gives its number.
pub(crate) fn open(origin: u64, mode: i32, into: Option<u64>) -> Outcome<u64> {
    let mut all = lock();
    let graph = into.unwrap_or_else(handle);
    if into.is_none() {
        all.made.insert(graph, Graph::default());
    } else if !all.made.contains_key(&graph) {
        return Err(Status::INVALID_VALUE);
    }
    let id = NEXT.fetch_add(1, Relaxed);
    all.captures.insert(id, Capture { origin, graph, mode, invalid: false, into_existing: into.is_some() });
    ACTIVE.fetch_add(1, Relaxed);
    Ok(id)
}

/// Closes a capture on the stream that it began on. Its graph; an error where the capture became invalid.
pub(crate) fn close(id: u64, stream: u64) -> Outcome<Outcome<u64>> {
    let mut all = lock();
    let Some(capture) = all.captures.get(&id) else { return Err(Status::ILLEGAL_STATE) };
    if capture.origin != stream {
        return Err(Status::STREAM_CAPTURE_UNMATCHED);
    }
    let capture = all.captures.remove(&id).ok_or(Status::ILLEGAL_STATE)?;
    ACTIVE.fetch_sub(1, Relaxed);
    if !capture.invalid {
        return Ok(Ok(capture.graph));
    }
    if !capture.into_existing {
        all.made.remove(&capture.graph);
    }
    Ok(Err(Status::STREAM_CAPTURE_INVALIDATED))
}

/// Whether a capture is under way.
pub(crate) fn is_open(id: u64) -> bool {
    lock().captures.contains_key(&id)
}

/// The status of a capture, and its graph.
pub(crate) fn status(id: u64) -> (CaptureStatus, u64) {
    match lock().captures.get(&id) {
        Some(capture) if capture.invalid => (CaptureStatus::Invalidated, 0),
        Some(capture) => (CaptureStatus::Active, capture.graph),
        None => (CaptureStatus::None, 0),
    }
}

/// A call was made on a capturing stream that a capture cannot bear.
pub(crate) fn violate(capture: u64) -> Status {
    if let Some(capture) = lock().captures.get_mut(&capture) {
        capture.invalid = true;
    }
    Status::STREAM_CAPTURE_UNSUPPORTED
}

/// Work was queued on a capturing stream.
pub(crate) fn add_node(capture: u64, work: Work, end: u64) {
    if capture != 0 {
        let mut all = lock();
        if let Some(graph) = all.captures.get(&capture).map(|capture| capture.graph)
            && let Some(graph) = all.made.get_mut(&graph)
        {
            graph.nodes.push(handle());
            graph.work.add(work, end);
        }
    }
}

/// The captures that are under way.
pub(crate) fn under_way() -> Vec<u64> {
    if ACTIVE.load(Relaxed) == 0 { Vec::new() } else { lock().captures.keys().copied().collect() }
}

/// A node that is being captured does this to memory.
pub(crate) fn add_act(capture: u64, act: Act) {
    let mut all = lock();
    if let Some(graph) = all.captures.get(&capture).map(|capture| capture.graph)
        && let Some(graph) = all.made.get_mut(&graph)
    {
        graph.acts.push(act);
    }
}

/// The nodes of another graph were queued on a capturing stream.
pub(crate) fn add_nodes(capture: u64, parts: &[Work], end: u64) {
    for part in parts {
        add_node(capture, *part, end);
    }
}

/// `cudaGraphCreate`.
pub(crate) fn create() -> u64 {
    let graph = handle();
    lock().made.insert(graph, Graph::default());
    graph
}

/// A node without a meaning, in a graph.
pub(crate) fn add_empty_node(graph: u64) -> Outcome<u64> {
    let node = handle();
    lock().made.get_mut(&graph).ok_or(Status::INVALID_VALUE)?.nodes.push(node);
    Ok(node)
}

/// A graph's nodes.
pub(crate) fn nodes(graph: u64) -> Outcome<Vec<u64>> {
    lock().made.get(&graph).map(|graph| graph.nodes.clone()).ok_or(Status::INVALID_VALUE)
}

/// `cudaGraphDestroy`.
pub(crate) fn destroy(graph: u64) -> Outcome {
    let removed = lock().made.remove(&graph).ok_or(Status::INVALID_VALUE)?;
    removed.objects.into_iter().try_for_each(|(object, count)| release(object, count))
}

/// `cudaGraphInstantiate`.
pub(crate) fn instantiate(graph: u64) -> Outcome<u64> {
    let mut all = lock();
    let made = all.made.get(&graph).ok_or(Status::INVALID_VALUE)?;
    let (objects, work) = (made.objects.clone(), made.work.clone());
    let acts = made.acts.iter().cloned().collect();
    for (object, count) in &objects {
        if let Some(object) = all.objects.get_mut(object) {
            object.references += count;
        }
    }
    let executable = handle();
    all.executables.insert(executable, Executable { objects, work, acts });
    Ok(executable)
}

/// Whether an executable graph is alive.
pub(crate) fn executable(executable: u64) -> Outcome {
    if lock().executables.contains_key(&executable) { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// The work of an executable graph, and its effects on memory.
pub(crate) fn launched(executable: u64) -> Outcome<(GraphWork, Arc<[Act]>)> {
    let all = lock();
    let found = all.executables.get(&executable).ok_or(Status::INVALID_VALUE)?;
    Ok((found.work.clone(), Arc::clone(&found.acts)))
}

/// `cudaGraphExecDestroy`.
pub(crate) fn destroy_executable(executable: u64) -> Outcome {
    let executable = lock().executables.remove(&executable).ok_or(Status::INVALID_VALUE)?;
    executable.objects.into_iter().try_for_each(|(object, count)| release(object, count))
}

/// `cudaUserObjectCreate`.
pub(crate) fn create_object(address: Ptr, destroy: extern "C" fn(Ptr), references: u32) -> u64 {
    let object = handle();
    lock().objects.insert(object, UserObject { address: address as usize, destroy, references });
    object
}

/// `cudaUserObjectRetain`.
pub(crate) fn retain(object: u64, count: u32) -> Outcome {
    lock().objects.get_mut(&object).ok_or(Status::INVALID_VALUE)?.references += count;
    Ok(())
}

/// `cudaUserObjectRelease`: the last reference takes the object with it.
pub(crate) fn release(object: u64, count: u32) -> Outcome {
    let mut all = lock();
    let found = all.objects.get_mut(&object).ok_or(Status::INVALID_VALUE)?;
    found.references = found.references.checked_sub(count).ok_or(Status::INVALID_VALUE)?;
    if found.references == 0 {
        let last = all.objects.remove(&object).ok_or(Status::INVALID_VALUE)?;
        // The destructor is the program's own, and may call back.
        drop(all);
        (last.destroy)(last.address as Ptr);
    }
    Ok(())
}

/// `cudaGraphRetainUserObject`; `moved` takes over references that the caller had.
pub(crate) fn graph_retain(graph: u64, object: u64, count: u32, moved: bool) -> Outcome {
    if !moved {
        retain(object, count)?;
    }
    let mut all = lock();
    *all.made.get_mut(&graph).ok_or(Status::INVALID_VALUE)?.objects.entry(object).or_default() += count;
    Ok(())
}

/// `cudaGraphReleaseUserObject`.
pub(crate) fn graph_release(graph: u64, object: u64, count: u32) -> Outcome {
    {
        let mut all = lock();
        let held = all.made.get_mut(&graph).ok_or(Status::INVALID_VALUE)?;
        let references = held.objects.get_mut(&object).ok_or(Status::INVALID_VALUE)?;
        *references = references.checked_sub(count).ok_or(Status::INVALID_VALUE)?;
    }
    release(object, count)
}
