//! Store of known device memory contents.
//!
//! The device has addresses without bytes behind them. Small pieces of its contents are known all the same:
//! uploads of the script, and what follows from them. They are kept here by address, bounded in total size;
//! anything not kept is unknown.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use memfit_kernels::memory::{Extremes, Found, MAX_PIECE_BYTES, Origin};

use super::MAX_VALUE_BYTES;

/// Total bytes of larger and of short pieces, above which the oldest of them are evicted.
const MAX_TOTAL_BYTES: [usize; 2] = [64 << 20, 16 << 20];
/// Pieces that cost no bytes still cost an entry.
const MAX_PIECES: usize = 1 << 16;

/// A piece of known contents. Its address is its key in the store.
#[derive(Clone, Debug)]
struct Piece {
    bytes: Content,
    origin: Origin,
    /// Order of writing; distinguishes a queue entry from a later piece at the same address.
    serial: u64,
}

#[derive(Clone, Debug)]
enum Content {
    /// A window into bytes that pieces cut from the same write share.
    Window { whole: Arc<[u8]>, start: usize, length: usize },
    /// One repeated byte: costs no memory, so it may be long.
    Repeat { byte: u8, length: usize },
}

impl Content {
    fn len(&self) -> usize {
        match self {
            Self::Window { length, .. } | Self::Repeat { length, .. } => *length,
        }
    }

    /// Bytes of memory that it occupies.
    fn cost(&self) -> usize {
        match self {
            Self::Window { length, .. } => *length,
            Self::Repeat { .. } => 0,
        }
    }

    fn slice(&self, from: usize, to: usize) -> Self {
        match self {
            Self::Window { whole, start, .. } => {
                let (start, length) = (start + from, to - from);
                // A small remainder must not keep a large buffer alive: memory use stays within twice the
                // counted bytes.
                if length < whole.len() / 2 {
                    return Self::Window {
                        whole: Arc::from(&whole[start..start + length]),
                        start: 0,
                        length,
                    };
                }
                Self::Window { whole: Arc::clone(whole), start, length }
            }
            Self::Repeat { byte, .. } => Self::Repeat { byte: *byte, length: to - from },
        }
    }

    /// Copies the content from `from` on to `out`, all of which it covers.
    fn read(&self, from: usize, out: &mut [u8]) {
        match self {
            Self::Window { whole, start, .. } => {
                out.copy_from_slice(&whole[start + from..start + from + out.len()]);
            }
            Self::Repeat { byte, .. } => out.fill(*byte),
        }
    }
}

/// Known contents of all device memory of the process.
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// By address; no two overlap, none is empty.
    pieces: BTreeMap<u64, Piece>,
    /// Larger pieces, and those short enough that a script may decide on them: the weights of a model do not
    /// evict the flag that says whether it is initialised.
    shelves: [Shelf; 2],
    serial: u64,
}

/// Pieces that share a bound.
#[derive(Debug, Default)]
struct Shelf {
    /// Addresses in order of writing; entries of removed pieces are skipped.
    ages: VecDeque<(u64, u64)>,
    pieces: usize,
    kept: usize,
}

fn shelf_of(content: &Content) -> usize {
    usize::from(content.len() as u64 <= MAX_VALUE_BYTES)
}

/// Observer of the addresses that the store covers; every operation keeps it up to date.
pub(crate) trait Cover {
    /// Reports an added piece.
    fn add(&self, address: u64, length: usize);
    /// Reports a removed piece.
    fn remove(&self, address: u64, length: usize);
}

/// Implementation for a store without a filter.
impl Cover for () {
    fn add(&self, _: u64, _: usize) {}
    fn remove(&self, _: u64, _: usize) {}
}

impl Store {
    /// Records that `bytes` were written at `address`.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8], origin: Origin, cover: &impl Cover) {
        self.forget(address, bytes.len() as u64, cover);
        if bytes.len() <= MAX_PIECE_BYTES {
            let content = Content::Window { whole: Arc::from(bytes), start: 0, length: bytes.len() };
            self.insert(address, content, origin, cover);
            self.evict(cover);
        }
    }

    /// Records that every one of `length` bytes at `address` was set to `byte`.
    pub(crate) fn fill(&mut self, address: u64, byte: u8, length: u64, origin: Origin, cover: &impl Cover) {
        self.forget(address, length, cover);
        // Long fills initialise buffers that kernels then write unobserved; keeping them would be wrong too
        // often.
        if let Some(length) = usize::try_from(length).ok().filter(|length| *length <= MAX_PIECE_BYTES) {
            self.insert(address, Content::Repeat { byte, length }, origin, cover);
            self.evict(cover);
        }
    }

    /// Records only the extremes of `length` bytes that were written at `address`.
    pub(crate) fn summarise(&mut self, address: u64, length: u64, extremes: Extremes, cover: &impl Cover) {
        self.forget(address, length, cover);
        if let Ok(length) = usize::try_from(length) {
            self.insert(address, Content::Repeat { byte: 0, length }, Origin::Within(extremes), cover);
        }
    }

    /// Extremes of integers of `size` bytes within a range, and whether both certainly occur in it.
    pub(crate) fn extremes(&self, address: u64, length: u64, size: usize) -> Option<((i64, i64), bool)> {
        let mut found = None;
        self.overlapping(address, length, |_, piece, from, to| {
            if let Origin::Within(extremes) = piece.origin
                && (to - from) as u64 == length
            {
                found = extremes.as_integers_of(size).map(|range| (range, extremes.bytes == length));
            }
        });
        found
    }

    /// Records that `length` bytes were copied from `source` to `destination`.
    pub(crate) fn copy(&mut self, destination: u64, source: u64, length: u64, cover: &impl Cover) {
        let mut moved = Vec::new();
        self.overlapping(source, length, |start, piece, from, to| {
            moved.push((start + from as u64 - source, piece.bytes.slice(from, to), piece.origin));
        });
        self.forget(destination, length, cover);
        for (offset, content, origin) in moved {
            self.insert(destination + offset, content, origin, cover);
        }
        self.evict(cover);
    }

    /// Forgets the contents of `length` bytes at `address`.
    pub(crate) fn forget(&mut self, address: u64, length: u64, cover: &impl Cover) {
        let mut hit = Vec::new();
        self.overlapping(address, length, |start, _, from, to| hit.push((start, from, to)));
        for (start, from, to) in hit {
            let Some(piece) = self.remove(start, cover) else { continue };
            if from > 0 {
                self.insert(start, piece.bytes.slice(0, from), piece.origin, cover);
            }
            if to < piece.bytes.len() {
                let rest = piece.bytes.slice(to, piece.bytes.len());
                self.insert(start + to as u64, rest, piece.origin, cover);
            }
        }
    }

    /// Forgets the rest of the piece at `address` after a write of unknown length.
    pub(crate) fn forget_from(&mut self, address: u64, cover: &impl Cover) {
        let mut rest = 0;
        self.overlapping(address, 1, |_, piece, from, _| rest = piece.bytes.len() - from);
        self.forget(address, rest as u64, cover);
    }

    /// Reads `out.len()` bytes at `address`; unknown bytes of `out` are left unchanged.
    pub(crate) fn read(&self, address: u64, out: &mut [u8]) -> Found {
        let mut found = Found::default();
        self.overlapping(address, out.len() as u64, |start, piece, from, to| {
            if matches!(piece.origin, Origin::Within(_)) {
                return;
            }
            let at = (start + from as u64 - address) as usize;
            piece.bytes.read(from, &mut out[at..at + (to - from)]);
            found.known += to - from;
            found.guessed |= !piece.origin.is_known();
            if let Some(name) = piece.origin.rule().filter(|name| !found.answers.contains(name)) {
                found.answers.push(name);
            }
        });
        found
    }

    /// Known stretches of a range except very long ones: address, bytes, and whether a rule answered.
    pub(crate) fn stretches(&self, address: u64, length: u64) -> Vec<(u64, Vec<u8>, bool)> {
        let mut found = Vec::new();
        self.overlapping(address, length, |start, piece, from, to| {
            if to - from <= MAX_PIECE_BYTES && !matches!(piece.origin, Origin::Within(_)) {
                let mut bytes = vec![0; to - from];
                piece.bytes.read(from, &mut bytes);
                found.push((start + from as u64, bytes, piece.origin != Origin::True));
            }
        });
        found
    }

    /// Contents of a whole range, if all of it is known.
    pub(crate) fn get(&self, address: u64, length: usize) -> Option<(Vec<u8>, Origin)> {
        if length > MAX_PIECE_BYTES {
            return None;
        }
        let mut bytes = vec![0; length];
        let found = self.read(address, &mut bytes);
        let origin = found.answers.first().map_or(Origin::True, |rule| Origin::Answer(*rule));
        (found.known == length && !found.guessed).then_some((bytes, origin))
    }

    /// Origin of the contents at an address, if they are known.
    pub(crate) fn origin(&self, address: u64) -> Option<Origin> {
        let mut origin = None;
        self.overlapping(address, 1, |_, piece, _, _| origin = Some(piece.origin));
        origin
    }

    /// Bytes kept in memory.
    #[cfg(test)]
    pub(crate) fn kept_bytes(&self) -> usize {
        self.shelves.iter().map(|shelf| shelf.kept).sum()
    }

    /// Calls `each` with every piece that overlaps a range: its start, and the overlap as offsets into it.
    fn overlapping(&self, address: u64, length: u64, mut each: impl FnMut(u64, &Piece, usize, usize)) {
        let end = address.saturating_add(length);
        // Pieces do not overlap: of those that start before the range, only the last can reach into it.
        let before = self.pieces.range(..address).next_back();
        for (&start, piece) in before.into_iter().chain(self.pieces.range(address..end)) {
            let stop = start + piece.bytes.len() as u64;
            if stop > address {
                let from = address.saturating_sub(start) as usize;
                let to = (end.min(stop) - start) as usize;
                each(start, piece, from, to);
            }
        }
    }

    fn insert(&mut self, address: u64, bytes: Content, origin: Origin, cover: &impl Cover) {
        let length = bytes.len();
        if length == 0 {
            return;
        }
        self.serial += 1;
        let shelf = &mut self.shelves[shelf_of(&bytes)];
        shelf.kept += bytes.cost();
        shelf.pieces += 1;
        shelf.ages.push_back((address, self.serial));
        cover.add(address, length);
        self.pieces.insert(address, Piece { bytes, origin, serial: self.serial });
    }

    fn remove(&mut self, address: u64, cover: &impl Cover) -> Option<Piece> {
        let piece = self.pieces.remove(&address)?;
        let shelf = &mut self.shelves[shelf_of(&piece.bytes)];
        shelf.kept -= piece.bytes.cost();
        shelf.pieces -= 1;
        cover.remove(address, piece.bytes.len());
        Some(piece)
    }

    /// Evicts the oldest pieces until the bounds hold again.
    fn evict(&mut self, cover: &impl Cover) {
        for (index, most) in MAX_TOTAL_BYTES.into_iter().enumerate() {
            while self.shelves[index].kept > most || self.shelves[index].pieces > MAX_PIECES {
                let Some((address, serial)) = self.shelves[index].ages.pop_front() else { break };
                if self.pieces.get(&address).is_some_and(|piece| piece.serial == serial) {
                    self.remove(address, cover);
                }
            }
            // The queue keeps entries of overwritten pieces; drop them before they outnumber the rest.
            let shelf = &mut self.shelves[index];
            if shelf.ages.len() > 2 * shelf.pieces + 1024 {
                let pieces = &self.pieces;
                shelf.ages.retain(|(address, serial)| {
                    pieces.get(address).is_some_and(|piece| piece.serial == *serial)
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
