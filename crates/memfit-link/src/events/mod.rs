//! The event log of a process: what PyTorch's allocator did, and what the script was doing meanwhile.
//!
//! A log is a file that the process writes through shared memory, so that a killed process loses nothing that it had
//! committed. It begins with a header in a page of its own; after that come records of [`RECORD_BYTES`] bytes each.
//! The header's count of committed records is raised only after a record is whole, so a reader that believes the count
//! never sees half a record, even while the process is still writing.
//!
//! [`Writer`] is the process's end. [`read`] is the watcher's: it trusts nothing, and says what it had to leave out.

mod reader;
mod writer;

pub use reader::{Event, EventLog, Place, Problem, parse, read};
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

/// What a record tells. The codes are part of the channel's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A block was handed out.
    Alloc = 1,
    /// A block was given back.
    Free = 2,
    /// The block that holds an address belongs to a category, and perhaps has a name.
    Note = 3,
    /// A text gets its number; its bytes follow in raw records.
    Text = 4,
    /// A module's call begins on a thread.
    ScopeEnter = 5,
    /// A module's call ends on a thread.
    ScopeExit = 6,
    /// The process enters a phase.
    Phase = 7,
    /// An optimizer step is complete.
    Step = 8,
    /// A request could not be served.
    Oom = 9,
    /// What was asked for, for the block that a device's so-manieth allocation handed out, or that is live at an address.
    Requested = 10,
    /// A frame of stacks gets its number.
    Frame = 11,
    /// A stack gets its number; the numbers of its frames follow in raw records, the innermost first.
    Stack = 12,
    /// From where in the program, on which stream and when the block of a device's so-manieth allocation was asked for; with
    /// [`REFUSED`] in the number, what would have been that allocation.
    Traced = 13,
    /// The device gave a segment or a part of one, or took it back.
    Segment = 14,
}

/// Set in the number of a [`Kind::Traced`] where the request came to nothing: the next one that is served has the same number.
pub const REFUSED: u64 = 1 << 63;

impl Kind {
    /// The kind with this code, if there is one.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Alloc,
            2 => Self::Free,
            3 => Self::Note,
            4 => Self::Text,
            5 => Self::ScopeEnter,
            6 => Self::ScopeExit,
            7 => Self::Phase,
            8 => Self::Step,
            9 => Self::Oom,
            10 => Self::Requested,
            11 => Self::Frame,
            12 => Self::Stack,
            13 => Self::Traced,
            14 => Self::Segment,
            _ => return None,
        })
    }
}

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

/// One record, as it lies in the file (little-endian).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// A [`Kind`].
    pub kind: u8,
    /// The device, for what concerns one.
    pub device: u8,
    /// The phase, as a `memfit_levers::Phase` code; in a note, the category.
    pub phase: u8,
    /// In a segment, a [`SegmentChange`]'s code.
    pub flags: u8,
    /// The thread, numbered from 1 in the order in which threads first appear; in a segment, the stream's lower half.
    pub thread: u32,
    /// The number of the innermost module's name, 0 for none; in a text, a frame or a stack, its own number; in a note, the
    /// owner's name; where something is traced, and in a segment, the stack's number.
    pub module: u32,
    /// Optimizer steps complete so far; in a segment, the stream's upper half.
    pub step: u32,
    /// The block, an address in one, or the segment; in a frame, the function's name; where something is traced, the stream.
    pub address: u64,
    /// The block's bytes, what was asked for, or the length of a text or of a stack's numbers; in a frame, the line.
    pub bytes: i64,
    /// Bytes in blocks on that device, after the event; in a request and where something is traced, the allocation's
    /// number, 0 for what is live now; in a segment, that of the last allocation before; in a frame, the file's name.
    pub allocated: u64,
    /// Bytes in segments on that device, after the event; where something is traced, and in a segment, the time.
    pub reserved: u64,
}

impl Record {
    /// The record's bytes.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = self.kind;
        bytes[1] = self.device;
        bytes[2] = self.phase;
        bytes[3] = self.flags;
        bytes[4..8].copy_from_slice(&self.thread.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.module.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.step.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.address.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.allocated.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.reserved.to_le_bytes());
        bytes
    }

    /// The record that these bytes are.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Self {
        Self {
            kind: bytes[0],
            device: bytes[1],
            phase: bytes[2],
            flags: bytes[3],
            thread: u32_at(bytes, 4),
            module: u32_at(bytes, 8),
            step: u32_at(bytes, 12),
            address: u64_at(bytes, 16),
            bytes: u64_at(bytes, 24).cast_signed(),
            allocated: u64_at(bytes, 32),
            reserved: u64_at(bytes, 40),
        }
    }
}

/// The little-endian number at `offset`; 0 where the bytes end before it does.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..offset + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// The little-endian number at `offset`; 0 where the bytes end before it does.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..offset + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests;
