//! A reader of pickles that executes nothing.
//!
//! A pickle is a program for a small stack machine. The one here knows the two dozen operations that plain
//! data needs (lists, dicts, tuples, texts, numbers) in protocols 2 to 5, and refuses those that name or call
//! anything. It reads a stream once, keeps each text once, and hands each dict to a [`Shape`] as soon as that
//! is complete, which may keep it as a row of a table of its own: so a file of gigabytes never stands in
//! memory as a tree of objects.
//!
//! It knows pickles. It does not know what is in them.

mod common;
mod error;
mod heap;
mod input;
mod machine;
mod memo;
mod op;
mod repeats;

pub use error::{PickleError, PickleErrorKind};
pub(crate) use heap::{Heap, Object, Row, RowKind, Shape, Value};
pub(crate) use machine::Machine;

/// How much a file may ask of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickleLimits {
    /// Bytes of memory, roughly.
    pub memory: u64,
    /// Bytes of memory for each byte that was read, beside [`PickleLimits::FLOOR`]: so a small file that asks
    /// for much is refused, whatever the machine has.
    pub for_each_byte: u64,
    /// Bytes of one text.
    pub text: u64,
    /// Containers within containers.
    pub depth: usize,
}

impl Default for PickleLimits {
    fn default() -> Self {
        Self { memory: 8 << 30, for_each_byte: 64, text: 16 << 20, depth: 512 }
    }
}

impl PickleLimits {
    /// Bytes of memory that every file may ask for, however small.
    pub const FLOOR: u64 = 64 << 20;

    /// Bytes of memory that may be in use once so many of the file were read.
    pub(crate) fn memory_after(&self, read: u64) -> u64 {
        self.memory.min(Self::FLOOR.saturating_add(self.for_each_byte.saturating_mul(read)))
    }
}
