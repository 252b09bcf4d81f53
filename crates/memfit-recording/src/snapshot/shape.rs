//! Conversion of dicts to rows: frames, events, blocks, segments and annotations are recognised by their
//! keys.

use std::num::NonZeroU16;

use super::keys;
use super::{
    Annotation, Frame, Segment, SegmentBlock, SegmentBlockState, Snapshot, StackId, Stacks, TraceAction,
    TraceEvent,
};
use crate::TextId;
use crate::pickle::{Heap, Object, Row, RowKind, Shape, Value};

pub(super) const FRAME: RowKind = RowKind(0);
pub(super) const EVENT: RowKind = RowKind(1);
pub(super) const BLOCK: RowKind = RowKind(2);
pub(super) const SEGMENT: RowKind = RowKind(3);
pub(super) const ANNOTATION: RowKind = RowKind(4);
pub(super) const HISTORY: RowKind = RowKind(5);

const fn bit(key: u32) -> u64 {
    1 << key
}

/// Keys that identify a frame, an event and so on.
const NAME_KEY: Value = Value::Text(keys::NAME as u64);
const FILENAME_KEY: Value = Value::Text(keys::FILENAME as u64);
const LINE_KEY: Value = Value::Text(keys::LINE as u64);
const FRAME_KEYS: u64 = bit(keys::NAME) | bit(keys::FILENAME) | bit(keys::LINE);
const EVENT_KEYS: u64 = bit(keys::ACTION) | bit(keys::SIZE) | bit(keys::STREAM);
const BLOCK_KEYS: u64 = bit(keys::STATE) | bit(keys::SIZE);
const SEGMENT_KEYS: u64 = bit(keys::TOTAL_SIZE) | bit(keys::ADDRESS) | bit(keys::BLOCKS);
const ANNOTATION_KEYS: u64 = bit(keys::STAGE) | bit(keys::NAME);
const HISTORY_KEYS: u64 = bit(keys::REAL_SIZE);

/// Tables built while a pickle is read.
#[derive(Debug)]
pub(super) struct Builder {
    pub(super) snapshot: Snapshot,
    histories: Vec<StackId>,
    /// Number of dicts with the keys of a known row but invalid values.
    pub(super) malformed: u64,
    /// Number of events of unknown kinds.
    pub(super) unknown_actions: u64,
    /// Recently seen texts, indexed by their length and their first and last bytes. Most releases write the
    /// same few short texts with every event.
    recent_texts: [u32; RECENT_TEXTS],
}

/// Initial capacity for frames, enough for a small file.
const INITIAL_FRAMES: usize = 256;

/// Maximum number of frames in a stack. No program calls deeper, and a hostile file could otherwise create
/// one stack for each length of a long list.
const MAX_FRAMES: usize = 4096;

/// Number of recently seen texts, a power of two.
const RECENT_TEXTS: usize = 64;

fn recent_slot(text: &[u8]) -> usize {
    let (first, last) = (text.first().copied().unwrap_or(0), text.last().copied().unwrap_or(0));
    (text.len() ^ usize::from(first) ^ (usize::from(last) << 2)) % RECENT_TEXTS
}

impl Builder {
    pub(super) fn new() -> Self {
        let stacks = Stacks::with_capacity(INITIAL_FRAMES);
        let snapshot = Snapshot { texts: keys::texts(), stacks, pools: vec![(0, 0)], ..Snapshot::default() };
        Self {
            snapshot,
            histories: Vec::new(),
            malformed: 0,
            unknown_actions: 0,
            recent_texts: [0; RECENT_TEXTS],
        }
    }

    fn frame(&mut self, pairs: &[Value]) -> Option<Row> {
        let mut frame = Frame::default();
        for (key, value) in entries(pairs) {
            match key {
                keys::NAME => frame.name = TextId(value.as_text()?),
                keys::FILENAME => frame.file = TextId(value.as_text()?),
                // Native frames have line 0; some releases wrote -1.
                keys::LINE => {
                    frame.line = value.as_u64().and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
                }
                _ => {}
            }
        }
        Some(Row { kind: FRAME, index: self.snapshot.stacks.intern_frame(frame).0 })
    }

    fn event(&mut self, pairs: &[Value], heap: &Heap) -> Option<Row> {
        let mut event = TraceEvent {
            address: 0,
            size: 0,
            time_us: 0,
            stack: StackId::NONE,
            metadata: TextId::NONE,
            stream: 0,
            pool: None,
            category: None,
            action: TraceAction::Snapshot,
        };
        let mut forward = Value::None;
        for (key, value) in entries(pairs) {
            match key {
                keys::ACTION => {
                    let known = action(value.as_text()?);
                    self.unknown_actions += u64::from(known.is_none());
                    event.action = known?;
                }
                keys::ADDR | keys::DEVICE_FREE => event.address = value.as_u64()?,
                keys::SIZE => event.size = value.as_u64()?,
                keys::STREAM => event.stream = number_of(&mut self.snapshot.streams, stream(value)?)?,
                keys::TIME_US => event.time_us = value.as_u64()?,
                keys::FRAMES => event.stack = stack(value, heap)?,
                keys::FORWARD_FRAMES => forward = value,
                keys::USER_METADATA => event.metadata = TextId(value.as_text().unwrap_or(0)),
                keys::CATEGORY => {
                    let name = self.snapshot.texts.get(TextId(value.as_text().unwrap_or(0)));
                    event.category = super::category_named(name);
                }
                keys::POOL_ID => {
                    let place = number_of(&mut self.snapshot.pools, pool(value, heap)?)?;
                    event.pool = NonZeroU16::new(place + 1);
                }
                _ => {}
            }
        }
        event.stack = self.with_forward(event.stack, heap.elements(forward));
        self.snapshot.events.push(event);
        row(EVENT, self.snapshot.events.len())
    }

    /// Combines the stack of an allocation in a backward pass with that of the forward operation. Since
    /// release 2.13, anomaly mode writes the latter as lines of a traceback, the outermost first.
    fn with_forward(&mut self, own: StackId, lines: &[Value]) -> StackId {
        let mut numbers = Vec::new();
        for line in lines.iter().rev().take(MAX_FRAMES).filter_map(|line| line.as_text()) {
            let Some(traced) = line_of_traceback(self.snapshot.texts.get(TextId(line))) else { continue };
            let (file, line, name) = (traced.0.to_owned(), traced.1, traced.2.to_owned());
            let frame = Frame { name: TextId(self.text(&name)), file: TextId(self.text(&file)), line };
            numbers.push(self.snapshot.stacks.intern_frame(frame).0);
        }
        if numbers.is_empty() {
            return own;
        }
        let stacks = &mut self.snapshot.stacks;
        let mut whole = [stacks.elements_of(own), &numbers].concat();
        whole.truncate(MAX_FRAMES);
        stacks.intern_numbers(&whole)
    }

    fn block(&mut self, pairs: &[Value], heap: &Heap) -> Option<Row> {
        let mut block = SegmentBlock {
            address: 0,
            size: 0,
            requested: 0,
            state: SegmentBlockState::Inactive,
            stack: StackId::NONE,
        };
        for (key, value) in entries(pairs) {
            match key {
                keys::ADDRESS => block.address = value.as_u64()?,
                keys::SIZE => block.size = value.as_u64()?,
                keys::REQUESTED_SIZE => block.requested = value.as_u64()?,
                keys::STATE => {
                    block.state = match value.as_text()? {
                        keys::ACTIVE_ALLOCATED => SegmentBlockState::Allocated,
                        keys::ACTIVE_PENDING_FREE | keys::ACTIVE_AWAITING_FREE => SegmentBlockState::Pending,
                        keys::INACTIVE => SegmentBlockState::Inactive,
                        _ => return None,
                    }
                }
                keys::FRAMES => block.stack = stack(value, heap)?,
                keys::HISTORY => {
                    // Release 2.0 wrote the allocations that a block had served, the latest first.
                    if let Some(run) = heap.run(value).filter(|run| run.kind == HISTORY) {
                        block.stack = self.histories[run.start as usize];
                    }
                }
                _ => {}
            }
        }
        self.snapshot.blocks.push(block);
        row(BLOCK, self.snapshot.blocks.len())
    }

    fn segment(&mut self, pairs: &[Value], heap: &Heap) -> Option<Row> {
        let mut segment = Segment {
            device: 0,
            address: 0,
            size: 0,
            stream: 0,
            small: false,
            pool: (0, 0),
            expandable: false,
            blocks: 0..0,
        };
        for (key, value) in entries(pairs) {
            match key {
                keys::DEVICE => {
                    let device = u32::try_from(value.as_u64()?).ok();
                    segment.device = device.filter(|device| *device < 1024)?;
                }
                keys::ADDRESS => segment.address = value.as_u64()?,
                keys::TOTAL_SIZE => segment.size = value.as_u64()?,
                keys::STREAM => segment.stream = stream(value)?,
                keys::SEGMENT_TYPE => {
                    segment.small = match value.as_text()? {
                        keys::SMALL => true,
                        keys::LARGE => false,
                        _ => return None,
                    }
                }
                keys::SEGMENT_POOL_ID => segment.pool = pool(value, heap)?,
                keys::IS_EXPANDABLE => segment.expandable = value == Value::True,
                keys::BLOCKS => segment.blocks = blocks(value, heap)?,
                _ => {}
            }
        }
        // Release 2.0 wrote no block addresses.
        let mut next = segment.address;
        for block in &mut self.snapshot.blocks[segment.blocks.clone()] {
            if block.address == 0 {
                block.address = next;
            }
            next = block.address.checked_add(block.size)?;
        }
        self.snapshot.segments.push(segment);
        row(SEGMENT, self.snapshot.segments.len())
    }

    fn annotation(&mut self, pairs: &[Value]) -> Option<Row> {
        let mut annotation = Annotation { name: TextId::NONE, begins: false, device: None, time_us: 0 };
        for (key, value) in entries(pairs) {
            match key {
                keys::NAME => annotation.name = TextId(value.as_text()?),
                keys::STAGE => {
                    annotation.begins = match value.as_text()? {
                        keys::START => true,
                        keys::END => false,
                        _ => return None,
                    }
                }
                keys::DEVICE => annotation.device = value.as_u64().map(|device| device as u32),
                keys::TIME_US => annotation.time_us = value.as_u64()?,
                _ => {}
            }
        }
        self.snapshot.annotations.push(annotation);
        row(ANNOTATION, self.snapshot.annotations.len())
    }

    fn history(&mut self, pairs: &[Value], heap: &Heap) -> Option<Row> {
        let frames = entries(pairs).find(|(key, _)| *key == keys::FRAMES).map(|(_, frames)| frames);
        self.histories.push(frames.map_or(Some(StackId::NONE), |frames| stack(frames, heap))?);
        row(HISTORY, self.histories.len())
    }
}

impl Shape for Builder {
    fn text(&mut self, text: &str) -> u32 {
        let place = recent_slot(text.as_bytes());
        let id = self.snapshot.texts.intern(text);
        self.recent_texts[place] = id.0;
        id.0
    }

    fn text_seen(&self, bytes: &[u8]) -> Option<u32> {
        let recent_texts = self.recent_texts[recent_slot(bytes)];
        (self.snapshot.texts.get(TextId(recent_texts)).as_bytes() == bytes).then_some(recent_texts)
    }

    fn text_of(&self, id: u32) -> &str {
        self.snapshot.texts.get(TextId(id))
    }

    fn dict(&mut self, pairs: &[Value], heap: &Heap) -> Option<Row> {
        // The frame layout of every release. Most dicts of a small file are frames.
        if let [NAME_KEY, Value::Text(name), FILENAME_KEY, Value::Text(file), LINE_KEY, Value::Int(line)] =
            *pairs
        {
            let line = u32::try_from(line).unwrap_or(0);
            let frame = Frame { name: TextId(name as u32), file: TextId(file as u32), line };
            return Some(Row { kind: FRAME, index: self.snapshot.stacks.intern_frame(frame).0 });
        }
        let known = entries(pairs)
            .fold(0, |known, (key, _)| if key < keys::COUNT { known | bit(key) } else { known });
        let has = |keys: u64| known & keys == keys;
        let row = if has(FRAME_KEYS) {
            self.frame(pairs)
        } else if has(EVENT_KEYS) {
            self.event(pairs, heap)
        } else if has(SEGMENT_KEYS) {
            self.segment(pairs, heap)
        } else if has(BLOCK_KEYS) {
            self.block(pairs, heap)
        } else if has(ANNOTATION_KEYS) {
            self.annotation(pairs)
        } else if has(HISTORY_KEYS) {
            self.history(pairs, heap)
        } else {
            return None;
        };
        self.malformed += u64::from(row.is_none());
        row
    }

    fn keeps(&self, kind: RowKind) -> bool {
        kind == FRAME
    }

    fn keep(&mut self, before: Option<u32>, rows: &[u32]) -> u32 {
        let stacks = &mut self.snapshot.stacks;
        let Some(before) = before else {
            return stacks.intern_numbers(rows).0;
        };
        let mut frames = stacks.elements_of(StackId(before)).to_vec();
        let room = MAX_FRAMES.saturating_sub(frames.len()).min(rows.len());
        frames.extend_from_slice(&rows[..room]);
        stacks.intern_numbers(&frames).0
    }

    fn memory(&self) -> u64 {
        let snapshot = &self.snapshot;
        let rows = snapshot.events.len() * size_of::<TraceEvent>()
            + snapshot.blocks.len() * size_of::<SegmentBlock>()
            + snapshot.segments.len() * size_of::<Segment>()
            + snapshot.annotations.len() * size_of::<Annotation>()
            + self.histories.len() * size_of::<StackId>();
        rows as u64 + snapshot.stacks.memory() + snapshot.texts.memory()
    }
}

/// Parses file, line and function of `  File "train.py", line 12, in main`, with any text after it.
fn line_of_traceback(text: &str) -> Option<(&str, u32, &str)> {
    let (file, rest) = text.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let (line, name) = rest.split_once(", in ")?;
    Some((file, line.parse().ok()?, name.lines().next()?))
}

/// Pairs whose keys are texts.
fn entries(pairs: &[Value]) -> impl Iterator<Item = (u32, Value)> + '_ {
    pairs.chunks_exact(2).filter_map(|pair| pair[0].as_text().map(|key| (key, pair[1])))
}

fn row(kind: RowKind, count: usize) -> Option<Row> {
    u32::try_from(count - 1).ok().map(|index| Row { kind, index })
}

const fn action(text: u32) -> Option<TraceAction> {
    Some(match text {
        keys::ALLOC => TraceAction::Alloc,
        keys::FREE_REQUESTED => TraceAction::FreeRequested,
        keys::FREE_COMPLETED => TraceAction::FreeCompleted,
        keys::SEGMENT_ALLOC => TraceAction::SegmentAlloc,
        keys::SEGMENT_FREE => TraceAction::SegmentFree,
        keys::SEGMENT_MAP => TraceAction::SegmentMap,
        keys::SEGMENT_UNMAP => TraceAction::SegmentUnmap,
        keys::SNAPSHOT => TraceAction::Snapshot,
        keys::OOM => TraceAction::Oom,
        keys::ANNOTATE => TraceAction::Annotate,
        _ => return None,
    })
}

/// Stream handle. Some releases wrote it as a signed number.
const fn stream(value: Value) -> Option<u64> {
    match value {
        Value::Int(handle) => Some(handle.cast_unsigned()),
        Value::Unsigned(handle) => Some(handle),
        _ => None,
    }
}

fn stack(frames: Value, heap: &Heap) -> Option<StackId> {
    match heap.object(frames) {
        Some(Object::Kept(stack)) => Some(StackId(stack)),
        Some(Object::EmptyList) => Some(StackId::NONE),
        None if frames == Value::None => Some(StackId::NONE),
        _ => None,
    }
}

/// Range of a segment's blocks in the table.
fn blocks(list: Value, heap: &Heap) -> Option<std::ops::Range<usize>> {
    if heap.object(list)? == Object::EmptyList {
        return Some(0..0);
    }
    let run = heap.run(list).filter(|run| run.kind == BLOCK)?;
    Some(run.start as usize..(run.start + run.length) as usize)
}

fn pool(value: Value, heap: &Heap) -> Option<(u64, u64)> {
    match heap.elements(value) {
        [first, second] => Some((first.as_u64()?, second.as_u64()?)),
        _ => None,
    }
}

/// Maximum number of different streams or pools.
const MAX_NUMBERED: usize = 4096;

/// Returns the index of an element in a short list, and adds it if it is new.
fn number_of<T: PartialEq>(known: &mut Vec<T>, element: T) -> Option<u16> {
    let place = known.iter().position(|other| *other == element).or_else(|| {
        // A hostile file may name any number of them, which would make the linear search slow.
        (known.len() < MAX_NUMBERED).then(|| {
            known.push(element);
            known.len() - 1
        })
    });
    place.and_then(|place| u16::try_from(place).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tracebacks_are_read() {
        for (text, expected) in [
            (
                "  File \"/me/train.py\", line 12, in main\n    loss = model(x)\n           ^^^^^^^^\n",
                Some(("/me/train.py", 12, "main")),
            ),
            ("File \"a \\\"b\\\".py\", line 3, in <module>", Some(("a \\\"b\\\".py", 3, "<module>"))),
            ("  File \"/me/train.py\", line many, in main", None),
            ("  File \"/me/train.py\"", None),
            ("", None),
        ] {
            assert_eq!(line_of_traceback(text), expected, "{text}");
        }
    }
}
