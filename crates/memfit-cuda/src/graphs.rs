//! Graphs, and the captures that fill them.
//!
//! Kernels compute nothing, so a graph stores only the number of its nodes, their durations, and their
//! effects on known contents, which each launch repeats. The calls around a graph must behave as CUDA's do:
//! calls that a capture forbids fail, a capture reports its status, and user objects live as long as their
//! graph.

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

/// A stream capture in progress.
#[derive(Debug)]
struct Capture {
    /// Stream that the capture began on and must end on.
    origin: u64,
    graph: u64,
    /// `cudaStreamCaptureModeGlobal`, `ThreadLocal`, `Relaxed`.
    mode: i32,
    /// Set by a call that a capture forbids.
    invalid: bool,
    /// `true` if the capture adds to a graph that its caller made, which outlives an invalidated capture
    /// (`cudaStreamBeginCaptureToGraph`).
    into_existing: bool,
}

/// Effect of a node on the contents of memory, applied at each launch of its graph.
#[derive(Clone)]
pub(crate) struct Effect(Arc<dyn Fn() + Send + Sync>);

impl Effect {
    pub(crate) fn new(effect: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(effect))
    }

    /// Applies the effect.
    pub(crate) fn apply(&self) {
        self.0();
    }
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Effect")
    }
}

/// A graph under construction.
#[derive(Debug, Default)]
struct Graph {
    nodes: Vec<u64>,
    work: GraphWork,
    effects: Vec<Effect>,
    objects: BTreeMap<u64, u32>,
}

/// Combined work of a graph's nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct GraphWork {
    /// Length of its critical path in nanoseconds.
    pub(crate) length: u64,
    /// Total time in nanoseconds for which its kernels occupy the device.
    pub(crate) demand: u64,
    /// Work of each kind.
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

/// A user object that graphs keep alive.
#[derive(Debug)]
struct UserObject {
    address: usize,
    destroy: extern "C" fn(Ptr),
    references: u32,
}

/// A graph in the state in which it was instantiated.
#[derive(Debug)]
struct Executable {
    objects: BTreeMap<u64, u32>,
    work: GraphWork,
    effects: Arc<[Effect]>,
}

#[derive(Debug, Default)]
struct Graphs {
    captures: BTreeMap<u64, Capture>,
    made: BTreeMap<u64, Graph>,
    executables: BTreeMap<u64, Executable>,
    objects: BTreeMap<u64, UserObject>,
}

static GRAPHS: Mutex<Graphs> = Mutex::new(Graphs {
    captures: BTreeMap::new(),
    made: BTreeMap::new(),
    executables: BTreeMap::new(),
    objects: BTreeMap::new(),
});
/// Number of captures in progress, so that the rest of the device skips the lock when there is none.
static ACTIVE: AtomicU64 = AtomicU64::new(0);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

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
    0x7e04_0000_0000_0000 | NEXT_ID.fetch_add(1, Relaxed) << 4
}

/// Returns `true` if any stream is being captured in a mode that forbids synchronising with the device.
pub(crate) fn any_capture() -> bool {
    ACTIVE.load(Relaxed) != 0 && lock().captures.values().any(|capture| capture.mode == 0)
}

/// Opens a capture that began on a stream, into a new graph or a given one; returns its id.
pub(crate) fn open_capture(origin: u64, mode: i32, into: Option<u64>) -> Outcome<u64> {
    let mut all = lock();
    let graph = into.unwrap_or_else(handle);
    if into.is_none() {
        all.made.insert(graph, Graph::default());
    } else if !all.made.contains_key(&graph) {
        return Err(Status::INVALID_VALUE);
    }
    let id = NEXT_ID.fetch_add(1, Relaxed);
    all.captures.insert(id, Capture { origin, graph, mode, invalid: false, into_existing: into.is_some() });
    ACTIVE.fetch_add(1, Relaxed);
    Ok(id)
}

/// Closes a capture on the stream that it began on. Returns its graph, or an inner error if the capture was
/// invalidated.
pub(crate) fn close_capture(id: u64, stream: u64) -> Outcome<Outcome<u64>> {
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

/// Returns `true` if the capture is in progress.
pub(crate) fn is_open(id: u64) -> bool {
    lock().captures.contains_key(&id)
}

/// Status and graph of a capture.
pub(crate) fn status(id: u64) -> (CaptureStatus, u64) {
    match lock().captures.get(&id) {
        Some(capture) if capture.invalid => (CaptureStatus::Invalidated, 0),
        Some(capture) => (CaptureStatus::Active, capture.graph),
        None => (CaptureStatus::None, 0),
    }
}

/// Invalidates a capture after a call that captures forbid; returns the error for that call.
pub(crate) fn invalidate(capture: u64) -> Status {
    if let Some(capture) = lock().captures.get_mut(&capture) {
        capture.invalid = true;
    }
    Status::STREAM_CAPTURE_UNSUPPORTED
}

/// Adds a node for work that was queued on a capturing stream. It ends `end` nanoseconds after the graph's
/// start.
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

/// Ids of the captures in progress.
pub(crate) fn active_captures() -> Vec<u64> {
    if ACTIVE.load(Relaxed) == 0 { Vec::new() } else { lock().captures.keys().copied().collect() }
}

/// Adds an effect on memory to the graph that is being captured.
pub(crate) fn add_effect(capture: u64, effect: Effect) {
    let mut all = lock();
    if let Some(graph) = all.captures.get(&capture).map(|capture| capture.graph)
        && let Some(graph) = all.made.get_mut(&graph)
    {
        graph.effects.push(effect);
    }
}

/// Adds the nodes of another graph that was launched on a capturing stream. The last one ends `end`
/// nanoseconds after the graph's start.
pub(crate) fn add_nodes(capture: u64, parts: &[Work], end: u64) {
    for part in parts {
        add_node(capture, *part, end);
    }
}

/// Creates an empty graph (`cudaGraphCreate`).
pub(crate) fn create() -> u64 {
    let graph = handle();
    lock().made.insert(graph, Graph::default());
    graph
}

/// Adds an empty node to a graph.
pub(crate) fn add_empty_node(graph: u64) -> Outcome<u64> {
    let node = handle();
    lock().made.get_mut(&graph).ok_or(Status::INVALID_VALUE)?.nodes.push(node);
    Ok(node)
}

/// Nodes of a graph.
pub(crate) fn nodes(graph: u64) -> Outcome<Vec<u64>> {
    lock().made.get(&graph).map(|graph| graph.nodes.clone()).ok_or(Status::INVALID_VALUE)
}

/// Destroys a graph (`cudaGraphDestroy`).
pub(crate) fn destroy(graph: u64) -> Outcome {
    let removed = lock().made.remove(&graph).ok_or(Status::INVALID_VALUE)?;
    removed.objects.into_iter().try_for_each(|(object, count)| release(object, count))
}

/// Instantiates a graph (`cudaGraphInstantiate`).
pub(crate) fn instantiate(graph: u64) -> Outcome<u64> {
    let mut all = lock();
    let made = all.made.get(&graph).ok_or(Status::INVALID_VALUE)?;
    let (objects, work) = (made.objects.clone(), made.work.clone());
    let effects = made.effects.iter().cloned().collect();
    for (object, count) in &objects {
        if let Some(object) = all.objects.get_mut(object) {
            object.references += count;
        }
    }
    let executable = handle();
    all.executables.insert(executable, Executable { objects, work, effects });
    Ok(executable)
}

/// Checks that an executable graph is alive.
pub(crate) fn check_executable(executable: u64) -> Outcome {
    if lock().executables.contains_key(&executable) { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// Work of an executable graph and its effects on memory.
pub(crate) fn work_and_effects(executable: u64) -> Outcome<(GraphWork, Arc<[Effect]>)> {
    let all = lock();
    let found = all.executables.get(&executable).ok_or(Status::INVALID_VALUE)?;
    Ok((found.work.clone(), Arc::clone(&found.effects)))
}

/// Destroys an executable graph (`cudaGraphExecDestroy`).
pub(crate) fn destroy_executable(executable: u64) -> Outcome {
    let executable = lock().executables.remove(&executable).ok_or(Status::INVALID_VALUE)?;
    executable.objects.into_iter().try_for_each(|(object, count)| release(object, count))
}

/// Creates a user object (`cudaUserObjectCreate`).
pub(crate) fn create_object(address: Ptr, destroy: extern "C" fn(Ptr), references: u32) -> u64 {
    let object = handle();
    lock().objects.insert(object, UserObject { address: address as usize, destroy, references });
    object
}

/// Adds references to a user object (`cudaUserObjectRetain`).
pub(crate) fn retain(object: u64, count: u32) -> Outcome {
    lock().objects.get_mut(&object).ok_or(Status::INVALID_VALUE)?.references += count;
    Ok(())
}

/// Releases references to a user object (`cudaUserObjectRelease`); the last one destroys it.
pub(crate) fn release(object: u64, count: u32) -> Outcome {
    let mut all = lock();
    let found = all.objects.get_mut(&object).ok_or(Status::INVALID_VALUE)?;
    found.references = found.references.checked_sub(count).ok_or(Status::INVALID_VALUE)?;
    if found.references == 0 {
        let last = all.objects.remove(&object).ok_or(Status::INVALID_VALUE)?;
        // The destructor belongs to the program and may call back, so the lock is released first.
        drop(all);
        (last.destroy)(last.address as Ptr);
    }
    Ok(())
}

/// Makes a graph keep a user object alive (`cudaGraphRetainUserObject`). With `moved`, it takes over
/// references that the caller held.
pub(crate) fn graph_retain(graph: u64, object: u64, count: u32, moved: bool) -> Outcome {
    if !moved {
        retain(object, count)?;
    }
    let mut all = lock();
    *all.made.get_mut(&graph).ok_or(Status::INVALID_VALUE)?.objects.entry(object).or_default() += count;
    Ok(())
}

/// Releases a graph's references to a user object (`cudaGraphReleaseUserObject`).
pub(crate) fn graph_release(graph: u64, object: u64, count: u32) -> Outcome {
    {
        let mut all = lock();
        let held = all.made.get_mut(&graph).ok_or(Status::INVALID_VALUE)?;
        let references = held.objects.get_mut(&object).ok_or(Status::INVALID_VALUE)?;
        *references = references.checked_sub(count).ok_or(Status::INVALID_VALUE)?;
    }
    release(object, count)
}
