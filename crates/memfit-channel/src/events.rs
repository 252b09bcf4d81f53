//! The event log of a process: what PyTorch's allocator did, and what the script was doing meanwhile.
//!
//! A log is a file that the process writes through shared memory, so that a killed process loses nothing that
//! it had committed. It begins with a header in a page of its own; after that come records of
//! [`RECORD_BYTES`] bytes each. The header's count of committed records is raised only after a record is
//! whole, so a reader that believes the count never sees half a record, even while the process is still
//! writing.
//!
//! [`Writer`] is the process's end. [`read`] is the watcher's: it trusts nothing, and says what it had to
//! leave out.

mod codec;
mod reader;
mod writer;

pub use reader::{EventLog, Problem, parse, read};
pub use writer::{DEFAULT_CAP, Writer};

/// The first bytes of every log.
pub const MAGIC: [u8; 8] = *b"MFEVENT\n";
/// The bytes before the first record.
pub const HEADER_BYTES: usize = 4096;
/// The bytes of one record.
pub const RECORD_BYTES: usize = 48;

/// Where the fields of the header are.
pub(crate) mod header {
    /// `u32`: [`crate::PROTOCOL`].
    pub(crate) const PROTOCOL: usize = 8;
    /// `u32`: the process.
    pub(crate) const PID: usize = 12;
    /// `u64`, raised atomically: how many records are whole.
    pub(crate) const COMMITTED: usize = 16;
    /// `u32`: [`TRUNCATED`], or nothing.
    pub(crate) const FLAGS: usize = 24;
    /// `u32`: the bytes of one record.
    pub(crate) const RECORD: usize = 28;
    /// The flag that says that later records were dropped.
    pub(crate) const TRUNCATED: u32 = 1;
}

/// Set in the number of an [`Event::Traced`] whose request failed: the next request that is served has the
/// same number.
pub const REFUSED: u64 = 1 << 63;

/// What became of a segment. The codes are part of the channel's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentChange {
    /// The device gave it.
    Alloc = 0,
    /// It went back.
    Free = 1,
    /// A part of an expandable one was given memory.
    Map = 2,
    /// A part of an expandable one lost its memory.
    Unmap = 3,
}

impl SegmentChange {
    /// The change with this code, if there is one.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Alloc,
            1 => Self::Free,
            2 => Self::Map,
            3 => Self::Unmap,
            _ => return None,
        })
    }
}

/// Where and when something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The device.
    pub device: u8,
    /// The phase's code.
    pub phase: u8,
    /// The thread, numbered from 1.
    pub thread: u32,
    /// The innermost module's name as a text number; 0 for none.
    pub module: u32,
    /// Optimizer steps complete before it.
    pub step: u32,
}

/// One event, in the order in which they were logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block was handed out.
    Alloc {
        /// Where and when.
        place: Place,
        /// Its address.
        address: u64,
        /// Its size, rounded up as the allocator does.
        bytes: u64,
        /// Bytes in blocks on the device, with it.
        allocated: u64,
        /// Bytes in segments on the device.
        reserved: u64,
    },
    /// A block was given back.
    Free {
        /// Where and when.
        place: Place,
        /// Its address.
        address: u64,
        /// Its size.
        bytes: u64,
        /// Bytes in blocks on the device, without it.
        allocated: u64,
        /// Bytes in segments on the device.
        reserved: u64,
    },
    /// The block that holds `address` belongs to a category.
    Note {
        /// An address in the block.
        address: u64,
        /// The category's code.
        category: u8,
        /// The owner's name as a text number; 0 for none.
        owner: u32,
    },
    /// A text gets its number.
    Text {
        /// The number.
        id: u32,
        /// The text.
        text: String,
    },
    /// A module's call begins.
    ScopeEnter {
        /// Where and when; its `module` is the one that is entered.
        place: Place,
    },
    /// A module's call ends.
    ScopeExit {
        /// Where and when; its `module` is the one that is left.
        place: Place,
    },
    /// The process enters a phase.
    Phase {
        /// Where and when; its `phase` is the one that is entered.
        place: Place,
    },
    /// An optimizer step is complete.
    Step {
        /// How many are complete now.
        step: u32,
    },
    /// A request could not be served.
    Oom {
        /// Where and when.
        place: Place,
        /// What was asked for.
        bytes: u64,
        /// Bytes in blocks on the device.
        allocated: u64,
        /// Bytes in segments on the device.
        reserved: u64,
    },
    /// What was asked for, for a block that was handed out.
    Requested {
        /// The device.
        device: u8,
        /// Which allocation of that device in this process, counted from 1; 0 for the block that is live at
        /// the address.
        number: u64,
        /// The block.
        address: u64,
        /// What was asked for.
        bytes: u64,
    },
    /// A frame of stacks gets its number.
    Frame {
        /// The number.
        id: u32,
        /// The function, as a text number.
        name: u32,
        /// The file, as a text number.
        file: u32,
        /// The line.
        line: u32,
    },
    /// A stack gets its number.
    Stack {
        /// The number.
        id: u32,
        /// The numbers of its frames, the innermost first.
        frames: Vec<u32>,
    },
    /// From where a block was asked for.
    Traced {
        /// The device.
        device: u8,
        /// Which allocation of that device in this process, counted from 1; with [`REFUSED`] where the
        /// request failed.
        number: u64,
        /// The number of the stack; 0 for none.
        stack: u32,
        /// The stream's handle.
        stream: u64,
        /// When, in microseconds; 0 where that is not known.
        time_us: u64,
    },
    /// The device gave memory or took it back.
    Segment {
        /// The device.
        device: u8,
        /// What became of it.
        change: SegmentChange,
        /// The last allocation of that device before it, counted from 1; 0 where it comes before all.
        number: u64,
        /// Where it begins.
        address: u64,
        /// Its bytes.
        bytes: u64,
        /// The number of the stack; 0 for none.
        stack: u32,
        /// The stream's handle.
        stream: u64,
        /// When, in microseconds; 0 where that is not known.
        time_us: u64,
    },
}

#[cfg(test)]
mod tests;
