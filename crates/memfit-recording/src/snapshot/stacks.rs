//! Stacks of calls, each kept once: most events of a training run come from a few thousand places.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use crate::TextId;

/// The number of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// The number of a stack. Zero is the empty one, which stands for "not known".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

impl StackId {
    /// No stack.
    pub const NONE: Self = Self(0);
}

/// A place in a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function.
    pub name: TextId,
    /// The file.
    pub file: TextId,
    /// The line.
    pub line: u32,
}

/// All stacks, the innermost frame first.
#[derive(Clone, Debug)]
pub struct Stacks {
    frames: Vec<Frame>,
    frame_numbers: HashMap<Frame, FrameId>,
    /// The frames of all stacks, one stack after another.
    elements: Vec<u32>,
    /// Where each stack begins, and where the last one ends.
    starts: Vec<u32>,
    /// Stacks by the hash of their frames; the rare others with the same hash follow in `collisions`.
    numbers: HashMap<u64, StackId, BuildHasherDefault<Identity>>,
    collisions: Vec<(u64, StackId)>,
}

impl Default for Stacks {
    fn default() -> Self {
        Self {
            frames: Vec::new(),
            frame_numbers: HashMap::new(),
            elements: Vec::new(),
            starts: vec![0, 0],
            numbers: HashMap::default(),
            collisions: Vec::new(),
        }
    }
}

impl PartialEq for Stacks {
    fn eq(&self, other: &Self) -> bool {
        // The rest is only how they are found.
        self.frames == other.frames && self.elements == other.elements && self.starts == other.starts
    }
}

impl Eq for Stacks {}

/// The keys are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl Stacks {
    /// How many stacks there are, the empty one included.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether there is no stack but the empty one.
    pub fn is_empty(&self) -> bool {
        self.len() <= 1
    }

    /// The frames of a stack, the innermost first.
    pub fn get(&self, id: StackId) -> impl ExactSizeIterator<Item = Frame> + '_ {
        self.elements_of(id).iter().map(|frame| self.frames[*frame as usize])
    }

    /// All frames, in the order of their numbers.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The number of a frame, which is kept if it is new.
    pub fn intern_frame(&mut self, frame: Frame) -> FrameId {
        let next = FrameId(self.frames.len() as u32);
        let id = *self.frame_numbers.entry(frame).or_insert(next);
        if id == next {
            self.frames.push(frame);
        }
        id
    }

    /// The number of a stack, which is kept if it is new.
    pub fn intern(&mut self, frames: &[FrameId]) -> StackId {
        let numbers: Vec<u32> = frames.iter().map(|frame| frame.0).collect();
        self.intern_numbers(&numbers)
    }

    /// The same, for frames by their bare numbers.
    pub(crate) fn intern_numbers(&mut self, frames: &[u32]) -> StackId {
        if frames.is_empty() {
            return StackId::NONE;
        }
        let hash = hash(frames);
        match self.numbers.get(&hash) {
            Some(&id) if self.elements_of(id) == frames => return id,
            Some(_) => {
                let known = self
                    .collisions
                    .iter()
                    .find(|(other, id)| *other == hash && self.elements_of(*id) == frames);
                if let Some((_, id)) = known {
                    return *id;
                }
            }
            None => {}
        }
        let id = StackId(self.len() as u32);
        self.elements.extend_from_slice(frames);
        self.starts.push(self.elements.len() as u32);
        match self.numbers.entry(hash) {
            Entry::Vacant(place) => {
                place.insert(id);
            }
            Entry::Occupied(_) => self.collisions.push((hash, id)),
        }
        id
    }

    /// The frames of a stack by their bare numbers.
    pub(crate) fn elements_of(&self, id: StackId) -> &[u32] {
        let place = id.0 as usize;
        match (self.starts.get(place), self.starts.get(place + 1)) {
            (Some(&start), Some(&end)) => &self.elements[start as usize..end as usize],
            _ => &[],
        }
    }

    /// Roughly how many bytes this holds.
    pub(crate) fn memory(&self) -> u64 {
        let bytes =
            self.frames.len() * 3 * size_of::<Frame>() + self.elements.len() * 4 + self.starts.len() * 24;
        bytes as u64
    }
}

/// Two frames at a time.
fn hash(frames: &[u32]) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    let mut pairs = frames.chunks_exact(2);
    let hash = pairs
        .by_ref()
        .fold(frames.len() as u64, |hash, pair| mix(hash, u64::from(pair[0]) << 32 | u64::from(pair[1])));
    pairs.remainder().iter().fold(hash, |hash, frame| mix(hash, u64::from(*frame)))
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
