//! Conversion of a pickle to a snapshot.

use std::io::Read;
use std::ops::Range;

use super::shape::{ANNOTATION, Builder, EVENT, SEGMENT};
use super::{Snapshot, TraceEvent, TracedSettings, keys};
use crate::pickle::{Heap, Machine, Object, PickleError, PickleLimits, RowKind, Value};
use crate::{RecordingError, TextId};

/// Error for a file of which nothing could be read as a snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Not a pickle, or damaged before any useful content.
    #[error("the snapshot cannot be read: {0}")]
    Pickle(#[from] PickleError),
    /// A pickle of something else.
    #[error("this pickle holds {0}, not a PyTorch memory snapshot")]
    NotASnapshot(&'static str),
}

impl SnapshotError {
    /// Advice for the user.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Pickle(error) => error.hint(),
            Self::NotASnapshot(_) => {
                Some("`torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")` writes a memory snapshot")
            }
        }
    }
}

/// Problem with a file that was read nevertheless.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The snapshot could not be read to its end.
    #[error("the snapshot could not be read to its end: {0}")]
    Broken(PickleError),
    /// Entries that lack a field or have one of the wrong type.
    #[error("{0} entries are not valid and were left out")]
    Malformed(u64),
    /// Values in place of events or lists of events.
    #[error("{0} values are not events and were left out")]
    Strangers(u64),
    /// Entries that the file lists more than once.
    #[error("{0} entries are duplicates, which no allocator writes; each was used once")]
    Shared(u64),
    /// Events of unknown kinds.
    #[error("{0} events of unknown kinds were left out")]
    UnknownActions(u64),
    /// A recording could not be read to its end.
    #[error("the recording could not be read to its end: {0}")]
    Recording(RecordingError),
    /// A trace could not be read to its end.
    #[error("the trace could not be read to its end: {0}")]
    Trace(String),
    /// A file that looks like a notebook is not valid JSON.
    #[error("{0}; its bytes were searched for error messages")]
    Notebook(String),
    /// A database could not be read to its end.
    #[error("the database could not be read to its end: {0}")]
    Database(String),
    /// Segments whose blocks do not fill them.
    #[error("{0} segments have blocks that do not fill them and were left out")]
    UnevenSegments(u64),
}

impl Snapshot {
    /// Reads a pickle without executing it. Content before an error is kept, and the error is among the
    /// problems.
    pub fn read(mut reader: impl Read, limits: PickleLimits) -> Result<(Self, Vec<Problem>), SnapshotError> {
        Self::read_parts(&mut reader, limits)
    }

    /// Implements [`Snapshot::read`] for a trait object, so that the machine is compiled once.
    fn read_parts(
        reader: &mut dyn Read,
        limits: PickleLimits,
    ) -> Result<(Self, Vec<Problem>), SnapshotError> {
        let mut builder = Builder::new();
        let (value, heap, error) = Machine::new(reader, &mut builder, limits).run();
        let Builder { mut snapshot, malformed, unknown_actions, .. } = builder;
        let mut found = Found::default();
        if let Some(value) = value {
            found.look_at(value, &heap);
        }
        if !found.anything {
            return Err(match error {
                Some(error) => SnapshotError::Pickle(error),
                None => SnapshotError::NotASnapshot(describe(value)),
            });
        }
        let mut problems: Vec<Problem> = error.map(Problem::Broken).into_iter().collect();
        found.settle(&mut snapshot, &heap, &mut problems);
        if malformed > unknown_actions {
            problems.push(Problem::Malformed(malformed - unknown_actions));
        }
        if unknown_actions > 0 {
            problems.push(Problem::UnknownActions(unknown_actions));
        }
        Ok((snapshot, problems))
    }
}

const fn describe(value: Option<Value>) -> &'static str {
    match value {
        Some(Value::Object(_)) => "other data",
        Some(Value::Text(_)) => "a text",
        Some(Value::Int(_) | Value::Unsigned(_) | Value::Huge | Value::Float(_)) => "a number",
        _ => "nothing",
    }
}

/// Parts of a snapshot among the values of a pickle.
#[derive(Default)]
struct Found {
    anything: bool,
    segments: Option<Value>,
    traces: Option<Value>,
    annotations: Option<Value>,
    settings: Option<Value>,
}

impl Found {
    fn look_at(&mut self, whole: Value, heap: &Heap) {
        // `torch.cuda.memory_snapshot()` alone is a list of segments. Invalid entries leave gaps in it.
        let is_segment = |element: &Value| heap.row(*element).is_some_and(|row| row.kind == SEGMENT);
        if heap.run(whole).is_some_and(|run| run.kind == SEGMENT)
            || heap.elements(whole).iter().any(is_segment)
        {
            self.segments = Some(whole);
            self.anything = true;
        }
        for (key, value) in heap.pairs(whole) {
            let is_list =
                matches!(heap.object(value), Some(Object::EmptyList | Object::List(_) | Object::Run(_)));
            let place = match key.as_text() {
                Some(keys::SEGMENTS) => &mut self.segments,
                Some(keys::DEVICE_TRACES) => &mut self.traces,
                Some(keys::EXTERNAL_ANNOTATIONS) => &mut self.annotations,
                Some(keys::ALLOCATOR_SETTINGS) => &mut self.settings,
                _ => continue,
            };
            *place = Some(value);
            let holds_memory = matches!(key.as_text(), Some(keys::SEGMENTS | keys::DEVICE_TRACES));
            self.anything |= holds_memory && is_list;
        }
    }

    fn settle(&self, snapshot: &mut Snapshot, heap: &Heap, problems: &mut Vec<Problem>) {
        let Traces { ranges, strangers, mut shared } =
            self.traces.map_or_else(Traces::default, |traces| device_traces(traces, heap, snapshot));
        snapshot.traces = ranges;
        if strangers > 0 {
            problems.push(Problem::Strangers(strangers));
        }
        shared += keep_rows(&mut snapshot.segments, self.segments, SEGMENT, heap);
        shared += keep_rows(&mut snapshot.annotations, self.annotations, ANNOTATION, heap);
        snapshot.settings = self.settings.map(|settings| traced_settings(settings, heap, snapshot));
        let blocks = &snapshot.blocks;
        let mut room = blocks.len();
        snapshot.segments.retain(|segment| {
            let fresh = room.checked_sub(segment.blocks.len());
            room = fresh.unwrap_or(room);
            shared += u64::from(fresh.is_none());
            fresh.is_some()
        });
        if shared > 0 {
            problems.push(Problem::Shared(shared));
        }
        let before = snapshot.segments.len();
        snapshot.segments.retain(|segment| {
            let mut next = Some(segment.address);
            for block in &blocks[segment.blocks.clone()] {
                next =
                    next.filter(|next| *next == block.address).and_then(|next| next.checked_add(block.size));
            }
            next.is_some() && next == segment.address.checked_add(segment.size)
        });
        let uneven = (before - snapshot.segments.len()) as u64;
        if uneven > 0 {
            problems.push(Problem::UnevenSegments(uneven));
        }
    }
}

/// Keeps the rows of a table that are in `list`; others belong to lists that are not needed. Returns the
/// number of repeated rows, since a list may contain one row any number of times.
fn keep_rows<T: Clone>(table: &mut Vec<T>, list: Option<Value>, kind: RowKind, heap: &Heap) -> u64 {
    let Some(list) = list else {
        table.clear();
        return 0;
    };
    if let Some(run) = heap.run(list).filter(|run| run.kind == kind) {
        table.truncate((run.start + run.length) as usize);
        table.drain(..run.start as usize);
        return 0;
    }
    let rows = heap.elements(list).iter().filter_map(|element| heap.row(*element));
    let rows = rows.filter(|row| row.kind == kind && (row.index as usize) < table.len());
    let shared = rows.clone().count().saturating_sub(table.len());
    *table = rows.take(table.len()).map(|row| table[row.index as usize].clone()).collect();
    shared as u64
}

/// Maximum number of devices.
const MAX_DEVICES: usize = 1024;

/// Events of each device.
#[derive(Default)]
struct Traces {
    /// Range of each device's events in the table.
    ranges: Vec<Range<usize>>,
    /// Values in place of events or lists of events.
    strangers: u64,
    /// Events in lists that the file names more than once.
    shared: u64,
}

/// Finds each device's events. They are stored one device after another unless the file was crafted. A list
/// may be named any number of times, and so may an event; all lists together yield no more events than were
/// read.
fn device_traces(traces: Value, heap: &Heap, snapshot: &mut Snapshot) -> Traces {
    let lists = heap.elements(traces);
    let mut strangers = u64::from(!heap.is_list(traces));
    let mut shared = 0;
    let mut room = snapshot.events.len();
    let mut ranges = Vec::with_capacity(lists.len().min(MAX_DEVICES));
    for list in lists.iter().take(MAX_DEVICES) {
        let is_event = |element: &&Value| heap.row(**element).is_some_and(|row| row.kind == EVENT);
        let events = heap
            .run(*list)
            .filter(|run| run.kind == EVENT)
            .map_or_else(|| heap.elements(*list).iter().filter(is_event).count(), |run| run.length as usize);
        let Some(left) = room.checked_sub(events) else {
            shared += events as u64;
            ranges.push(0..0);
            continue;
        };
        room = left;
        let range = if let Some(run) = heap.run(*list).filter(|run| run.kind == EVENT) {
            run.start as usize..(run.start + run.length) as usize
        } else {
            // Invalid entries leave gaps in a list.
            let elements = heap.elements(*list);
            strangers += u64::from(!heap.is_list(*list));
            strangers += elements.iter().filter(|element| heap.object(**element).is_none()).count() as u64;
            let rows = elements.iter().filter_map(|element| heap.row(*element));
            let rows = rows.filter(|row| row.kind == EVENT).map(|row| row.index as usize);
            let events: Vec<TraceEvent> = rows.map(|row| snapshot.events[row]).collect();
            let start = snapshot.events.len();
            snapshot.events.extend(events);
            start..snapshot.events.len()
        };
        ranges.push(range);
    }
    strangers += lists.len().saturating_sub(MAX_DEVICES) as u64;
    Traces { ranges, strangers, shared }
}

fn traced_settings(settings: Value, heap: &Heap, snapshot: &Snapshot) -> TracedSettings {
    let mut traced = TracedSettings::default();
    for (key, value) in heap.pairs(settings) {
        match key.as_text() {
            Some(keys::CONF) => {
                let text = value.as_text().map_or("", |id| snapshot.texts.get(TextId(id)));
                text.clone_into(&mut traced.text);
            }
            // No limit is stored as -1.
            Some(keys::MAX_SPLIT_SIZE) => {
                traced.max_split_size = value.as_u64().filter(|size| *size < i64::MAX as u64);
            }
            Some(keys::GC_THRESHOLD) => {
                if let Value::Float(threshold) = value {
                    traced.garbage_collection_threshold = threshold;
                }
            }
            Some(keys::EXPANDABLE_SEGMENTS) => traced.expandable_segments = value == Value::True,
            Some(keys::ROUNDUP) if matches!(heap.object(value), Some(Object::Dict(_))) => {
                for (power, divisions) in heap.pairs(value) {
                    let power = power.as_text().and_then(|id| snapshot.texts.get(TextId(id)).parse().ok());
                    if let (Some(power), Some(divisions)) = (power, divisions.as_u64()) {
                        traced.roundup_power2_divisions.insert(power, divisions);
                    }
                }
            }
            _ => {}
        }
    }
    traced
}
