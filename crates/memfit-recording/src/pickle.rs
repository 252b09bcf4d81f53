//! Pickle reader that executes nothing.
//!
//! A pickle is a program for a small stack machine. This one implements the two dozen operations that plain
//! data needs (lists, dicts, tuples, texts, numbers) in protocols 2 to 5, and refuses those that import or
//! call anything. It reads a stream once, interns texts, and hands each dict to a [`Shape`] as soon as it is
//! complete, which may store it as a table row. A file of gigabytes is therefore never held in memory as a
//! tree of objects.
//!
//! The reader does not know the meaning of the data.

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

/// Limits on the resources that a file may consume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickleLimits {
    /// Approximate memory in bytes.
    pub memory: u64,
    /// Bytes of memory for each byte read, in addition to [`PickleLimits::FLOOR`]. A small file that needs
    /// much memory is refused even on a large machine.
    pub for_each_byte: u64,
    /// Maximum bytes of one text.
    pub text: u64,
    /// Maximum nesting of containers.
    pub depth: usize,
}

impl Default for PickleLimits {
    fn default() -> Self {
        Self { memory: 8 << 30, for_each_byte: 64, text: 16 << 20, depth: 512 }
    }
}

impl PickleLimits {
    /// Bytes of memory that any file may use, however small.
    pub const FLOOR: u64 = 64 << 20;

    /// Maximum memory in bytes after `read` bytes of the file.
    pub(crate) fn memory_after(&self, read: u64) -> u64 {
        self.memory.min(Self::FLOOR.saturating_add(self.for_each_byte.saturating_mul(read)))
    }
}
