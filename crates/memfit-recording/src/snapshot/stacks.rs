//! Interned call stacks: most events of a training run come from a few thousand call sites.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::TextId;

/// Index of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// Id of a stack. Zero is the empty stack, which stands for "not known".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

impl StackId {
    /// The empty stack.
    pub const NONE: Self = Self(0);
}

/// Source line of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Function name.
    pub name: TextId,
    /// File path.
    pub file: TextId,
    /// Line number.
    pub line: u32,
}

/// Number of recently seen frames in the fast lookup, a power of two.
const RECENT_FRAMES: usize = 256;

fn recent_slot(frame: Frame) -> usize {
    (frame.name.0 ^ frame.file.0.wrapping_mul(31) ^ frame.line.wrapping_mul(7)) as usize % RECENT_FRAMES
}

/// All stacks, the innermost frame first.
#[derive(Clone, Debug)]
pub struct Stacks {
    frames: Vec<Frame>,
    /// Indices of frames by their hashes.
    frame_numbers: HashTable<u32>,
    /// Recently seen frames, indexed by [`recent_slot`]: some writers repeat a frame at every use.
    recent_frames: [u32; RECENT_FRAMES],
    /// Frames of all stacks, one stack after another.
    elements: Vec<u32>,
    /// Offset of each stack in `elements`, and the end of the last one.
    starts: Vec<u32>,
    /// Ids of stacks by the hashes of their frames.
    numbers: HashTable<u32>,
    /// Randomly keyed, so that a hostile file cannot cause collisions.
    hasher: DefaultHashBuilder,
}

impl Default for Stacks {
    fn default() -> Self {
        Self {
            frames: Vec::new(),
            frame_numbers: HashTable::new(),
            recent_frames: [0; RECENT_FRAMES],
            elements: Vec::new(),
            starts: vec![0, 0],
            numbers: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl PartialEq for Stacks {
    fn eq(&self, other: &Self) -> bool {
        // The other fields are lookup tables.
        self.frames == other.frames && self.elements == other.elements && self.starts == other.starts
    }
}

impl Eq for Stacks {}

impl Stacks {
    /// Number of stacks, including the empty one.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns `true` if there is no stack but the empty one.
    pub fn is_empty(&self) -> bool {
        self.len() <= 1
    }

    /// Frames of a stack, the innermost first.
    pub fn get(&self, id: StackId) -> impl ExactSizeIterator<Item = Frame> + '_ {
        self.elements_of(id).iter().map(|frame| self.frames[*frame as usize])
    }

    /// All frames by index.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Creates an empty table with capacity for `frames` frames.
    pub(super) fn with_capacity(frames: usize) -> Self {
        Self {
            frames: Vec::with_capacity(frames),
            frame_numbers: HashTable::with_capacity(frames),
            elements: Vec::with_capacity(frames),
            ..Self::default()
        }
    }

    /// Interns a frame.
    pub fn intern_frame(&mut self, frame: Frame) -> FrameId {
        let Self { frames, frame_numbers, recent_frames, hasher, .. } = self;
        let lately = &mut recent_frames[recent_slot(frame)];
        if frames.get(*lately as usize) == Some(&frame) {
            return FrameId(*lately);
        }
        let hash = hasher.hash_one(frame);
        if let Some(&number) = frame_numbers.find(hash, |number| frames[*number as usize] == frame) {
            *lately = number;
            return FrameId(number);
        }
        let number = frames.len() as u32;
        *lately = number;
        frames.push(frame);
        frame_numbers.insert_unique(hash, number, |number| hasher.hash_one(frames[*number as usize]));
        FrameId(number)
    }

    /// Interns a stack.
    pub fn intern(&mut self, frames: &[FrameId]) -> StackId {
        let numbers: Vec<u32> = frames.iter().map(|frame| frame.0).collect();
        self.intern_numbers(&numbers)
    }

    /// Interns a stack from frame indices.
    pub(crate) fn intern_numbers(&mut self, frames: &[u32]) -> StackId {
        if frames.is_empty() {
            return StackId::NONE;
        }
        let Self { elements, starts, numbers, hasher, .. } = self;
        let hash = hasher.hash_one(frames);
        if let Some(&number) = numbers.find(hash, |number| elements_at(elements, starts, *number) == frames) {
            return StackId(number);
        }
        let number = (starts.len() - 1) as u32;
        elements.extend_from_slice(frames);
        starts.push(elements.len() as u32);
        numbers.insert_unique(hash, number, |number| hasher.hash_one(elements_at(elements, starts, *number)));
        StackId(number)
    }

    /// Frame indices of a stack.
    pub(crate) fn elements_of(&self, id: StackId) -> &[u32] {
        elements_at(&self.elements, &self.starts, id.0)
    }

    /// Approximate memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let bytes =
            self.frames.len() * 3 * size_of::<Frame>() + self.elements.len() * 4 + self.starts.len() * 24;
        bytes as u64
    }
}

fn elements_at<'a>(elements: &'a [u32], starts: &[u32], stack: u32) -> &'a [u32] {
    let place = stack as usize;
    match (starts.get(place), starts.get(place + 1)) {
        (Some(&start), Some(&end)) => &elements[start as usize..end as usize],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stack_is_kept_once() {
        let mut stacks = Stacks::default();
        let frames: Vec<FrameId> =
            (0..3).map(|line| stacks.intern_frame(Frame { line, ..Frame::default() })).collect();
        assert_eq!(stacks.intern_frame(Frame { line: 1, ..Frame::default() }), frames[1]);
        let whole = stacks.intern(&frames);
        let part = stacks.intern(&frames[1..]);
        assert_ne!(whole, part);
        assert_eq!(stacks.intern(&frames), whole);
        assert_eq!(stacks.intern(&[]), StackId::NONE);
        assert_eq!(stacks.get(part).map(|frame| frame.line).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(stacks.get(StackId::NONE).len(), 0);
        assert_eq!(stacks.get(StackId(99)).len(), 0);
        assert_eq!(stacks.len(), 3);
    }
}
