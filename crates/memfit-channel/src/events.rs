//! The event log of a process: the operations of PyTorch's allocator, and the script's activity meanwhile.
//!
//! A log is a file that the process writes through shared memory, so a killed process loses nothing that it
//! had committed. It begins with a header in a page of its own, followed by records of [`RECORD_BYTES`] bytes
//! each. The header's count of committed records is raised only after a record is complete, so a reader that
//! respects the count never sees half a record, even while the process is still writing.
//!
//! The watcher in the process uses [`Writer`]. The command uses [`read`], which trusts nothing and reports
//! what it had to skip.

mod codec;
mod reader;
mod writer;

pub use reader::{EventLog, Problem, parse, read};
pub use writer::{DEFAULT_CAP, Writer};

/// First bytes of every log.
pub const MAGIC: [u8; 8] = *b"MFEVENT\n";
/// Bytes before the first record.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 48;

/// Offsets of the header's fields.
pub(crate) mod header {
    /// `u32`: [`crate::PROTOCOL`].
    pub(crate) const PROTOCOL: usize = 8;
    /// `u32`: process id.
    pub(crate) const PID: usize = 12;
    /// `u64`, raised atomically: number of complete records.
    pub(crate) const COMMITTED: usize = 16;
    /// `u32`: [`TRUNCATED`], or 0.
    pub(crate) const FLAGS: usize = 24;
    /// `u32`: the bytes of one record.
    pub(crate) const RECORD: usize = 28;
    /// Flag: later records were dropped.
    pub(crate) const TRUNCATED: u32 = 1;
}

/// Marks the `number` of an [`Event::Traced`] whose request failed: the next successful request has the same
/// number without this flag.
pub const REFUSED_FLAG: u64 = 1 << 63;

/// Change of a segment. The codes are part of the channel's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentChange {
    /// Allocated from the device.
    Alloc = 0,
    /// Returned to the device.
    Free = 1,
    /// Memory was mapped into a part of an expandable segment.
    Map = 2,
    /// Memory was unmapped from a part of an expandable segment.
    Unmap = 3,
}

impl SegmentChange {
    /// Decodes a change; `None` for unknown codes.
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

/// Device, thread, module, phase and step of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventContext {
    /// Index of the device.
    pub device: u8,
    /// Code of the phase.
    pub phase: u8,
    /// Thread, numbered from 1.
    pub thread: u32,
    /// Text number of the innermost module's name; 0 for none.
    pub module: u32,
    /// Optimizer steps completed before it.
    pub step: u32,
}

/// One event, in the order in which they were logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block was allocated.
    Alloc {
        /// Context of the allocation.
        place: EventContext,
        /// Address.
        address: u64,
        /// Size, rounded up as the allocator does.
        bytes: u64,
        /// Bytes in blocks on the device, including this one.
        allocated: u64,
        /// Bytes in segments on the device.
        reserved: u64,
    },
    /// A block was freed.
    Free {
        /// Context of the free.
        place: EventContext,
        /// Address.
        address: u64,
        /// Size.
        bytes: u64,
        /// Bytes in blocks on the device, excluding this one.
        allocated: u64,
        /// Bytes in segments on the device.
        reserved: u64,
    },
    /// Assigns a category to the block that contains `address`.
    Note {
        /// An address in the block.
        address: u64,
        /// Code of the category.
        category: u8,
        /// Text number of the owner's name; 0 for none.
        owner: u32,
    },
    /// Assigns a number to a text.
    Text {
        /// The number.
        id: u32,
        /// The text.
        text: String,
    },
    /// A module's call begins.
    ScopeEnter {
        /// Context; its `module` is the one that is entered.
        place: EventContext,
    },
    /// A module's call ends.
    ScopeExit {
        /// Context; its `module` is the one that is left.
        place: EventContext,
    },
    /// The process enters a phase.
    Phase {
        /// Context; its `phase` is the one that is entered.
        place: EventContext,
    },
    /// An optimizer step is complete.
    Step {
        /// Number of completed steps.
        step: u32,
    },
    /// A request failed.
    Oom {
        /// Context of the request.
        place: EventContext,
        /// Bytes requested.
        bytes: u64,
        /// Bytes in blocks on the device.
        allocated: u64,
        /// Bytes in segments on the device.
        reserved: u64,
    },
    /// Requested size of a block that was allocated.
    Requested {
        /// Index of the device.
        device: u8,
        /// Number of the allocation on that device in this process, counted from 1; 0 means the block that is
        /// live at `address`.
        number: u64,
        /// Address of the block.
        address: u64,
        /// Bytes requested.
        bytes: u64,
    },
    /// Assigns a number to a stack frame.
    Frame {
        /// The number.
        id: u32,
        /// Function, as a text number.
        name: u32,
        /// File, as a text number.
        file: u32,
        /// Line number.
        line: u32,
    },
    /// Assigns a number to a stack.
    Stack {
        /// The number.
        id: u32,
        /// Numbers of its frames, innermost first.
        frames: Vec<u32>,
    },
    /// Stack and stream of an allocation.
    Traced {
        /// Index of the device.
        device: u8,
        /// Number of the allocation on that device in this process, from 1; with [`REFUSED_FLAG`] if the
        /// request failed.
        number: u64,
        /// Number of the stack; 0 for none.
        stack: u32,
        /// Handle of the stream.
        stream: u64,
        /// Time in microseconds; 0 if unknown.
        time_us: u64,
    },
    /// The allocator took memory from the device or returned it.
    Segment {
        /// Index of the device.
        device: u8,
        /// Kind of change.
        change: SegmentChange,
        /// Number of the last allocation on that device before it, counted from 1; 0 if there is none.
        number: u64,
        /// Start address.
        address: u64,
        /// Size in bytes.
        bytes: u64,
        /// Number of the stack; 0 for none.
        stack: u32,
        /// Handle of the stream.
        stream: u64,
        /// Time in microseconds; 0 if unknown.
        time_us: u64,
    },
}

#[cfg(test)]
mod tests;
