//! Binary layout of events in a log.
//!
//! A record is a kind, three bytes, then numbers of 4 and of 8 bytes, all little-endian; the kind determines
//! the fields. A text and a stack are followed by raw records with their bytes.

use super::{Event, EventContext, RECORD_BYTES, SegmentChange};

/// Bytes of a record.
pub(super) type Raw = [u8; RECORD_BYTES];

/// Kind of an event. The codes are part of the channel's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Alloc = 1,
    Free = 2,
    Note = 3,
    Text = 4,
    ScopeEnter = 5,
    ScopeExit = 6,
    Phase = 7,
    Step = 8,
    Oom = 9,
    Requested = 10,
    Frame = 11,
    Stack = 12,
    Traced = 13,
    Segment = 14,
}

impl Kind {
    /// In the order of their codes.
    const ALL: [Self; 14] = [
        Self::Alloc,
        Self::Free,
        Self::Note,
        Self::Text,
        Self::ScopeEnter,
        Self::ScopeExit,
        Self::Phase,
        Self::Step,
        Self::Oom,
        Self::Requested,
        Self::Frame,
        Self::Stack,
        Self::Traced,
        Self::Segment,
    ];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// A decoded record.
pub(super) enum Decoded {
    /// A complete event.
    Event(Event),
    /// A text, whose bytes follow in raw records.
    Text {
        /// Number.
        id: u32,
        /// Length of the text in bytes.
        length: u64,
    },
    /// A stack, whose frames follow in raw records.
    Stack {
        /// Number.
        id: u32,
        /// Bytes of its frames' numbers.
        length: u64,
    },
}

/// Encodes an event as a record. For a text and a stack, this is the first record, which says how many bytes
/// follow.
#[inline]
pub(super) fn encode(event: &Event) -> Raw {
    let block = |kind, place: &EventContext, address, bytes, allocated, reserved| {
        Encoder::with_context(kind, place).u64(address).u64(bytes).u64(allocated).u64(reserved)
    };
    let encoder = match event {
        Event::Alloc { place, address, bytes, allocated, reserved } => {
            block(Kind::Alloc, place, *address, *bytes, *allocated, *reserved)
        }
        Event::Free { place, address, bytes, allocated, reserved } => {
            block(Kind::Free, place, *address, *bytes, *allocated, *reserved)
        }
        Event::Note { address, category, owner } => {
            Encoder::new(Kind::Note, [*category, 0, 0]).u32(*owner).u64(*address)
        }
        Event::Text { id, text } => return text_head(*id, text.len()),
        Event::ScopeEnter { place } => Encoder::with_context(Kind::ScopeEnter, place),
        Event::ScopeExit { place } => Encoder::with_context(Kind::ScopeExit, place),
        Event::Phase { place } => Encoder::with_context(Kind::Phase, place),
        Event::Step { step } => Encoder::new(Kind::Step, [0; 3]).u32(*step),
        Event::Oom { place, bytes, allocated, reserved } => {
            Encoder::with_context(Kind::Oom, place).u64(*bytes).u64(*allocated).u64(*reserved)
        }
        Event::Requested { device, number, address, bytes } => {
            Encoder::new(Kind::Requested, [*device, 0, 0]).u64(*number).u64(*address).u64(*bytes)
        }
        Event::Frame { id, name, file, line } => {
            Encoder::new(Kind::Frame, [0; 3]).u32(*id).u32(*name).u32(*file).u32(*line)
        }
        Event::Stack { id, frames } => return stack_head(*id, frames.len()),
        Event::Traced { device, number, stack, stream, time_us } => {
            Encoder::new(Kind::Traced, [*device, 0, 0]).u32(*stack).u64(*number).u64(*stream).u64(*time_us)
        }
        Event::Segment { device, change, number, address, bytes, stack, stream, time_us } => {
            Encoder::new(Kind::Segment, [*device, *change as u8, 0])
                .u32(*stack)
                .u64(*number)
                .u64(*address)
                .u64(*bytes)
                .u64(*stream)
                .u64(*time_us)
        }
    };
    encoder.raw
}

/// Encodes the first record of a text of `length` bytes.
pub(super) fn text_head(id: u32, length: usize) -> Raw {
    Encoder::new(Kind::Text, [0; 3]).u32(id).u64(length as u64).raw
}

/// Encodes the first record of a stack of `frames` frames.
pub(super) fn stack_head(id: u32, frames: usize) -> Raw {
    Encoder::new(Kind::Stack, [0; 3]).u32(id).u64((frames * size_of::<u32>()) as u64).raw
}

/// Decodes a record, or returns the reason why it is invalid. Fields are read in the order in which they are
/// written.
pub(super) fn decode(raw: &Raw) -> Result<Decoded, &'static str> {
    let kind = Kind::from_code(raw[0]).ok_or("its kind is unknown")?;
    let [device, second, _] = [raw[1], raw[2], raw[3]];
    let mut numbers = Decoder { raw, at: HEAD_BYTES };
    Ok(Decoded::Event(match kind {
        Kind::Alloc => Event::Alloc {
            place: numbers.context(),
            address: numbers.u64(),
            bytes: numbers.size()?,
            allocated: numbers.u64(),
            reserved: numbers.u64(),
        },
        Kind::Free => Event::Free {
            place: numbers.context(),
            address: numbers.u64(),
            bytes: numbers.size()?,
            allocated: numbers.u64(),
            reserved: numbers.u64(),
        },
        Kind::Note => Event::Note { category: raw[1], owner: numbers.u32(), address: numbers.u64() },
        Kind::Text => return Ok(Decoded::Text { id: numbers.u32(), length: numbers.u64() }),
        Kind::ScopeEnter => Event::ScopeEnter { place: numbers.context() },
        Kind::ScopeExit => Event::ScopeExit { place: numbers.context() },
        Kind::Phase => Event::Phase { place: numbers.context() },
        Kind::Step => Event::Step { step: numbers.u32() },
        Kind::Oom => Event::Oom {
            place: numbers.context(),
            bytes: numbers.size()?,
            allocated: numbers.u64(),
            reserved: numbers.u64(),
        },
        Kind::Requested => {
            Event::Requested { device, number: numbers.u64(), address: numbers.u64(), bytes: numbers.size()? }
        }
        Kind::Frame => {
            Event::Frame { id: numbers.u32(), name: numbers.u32(), file: numbers.u32(), line: numbers.u32() }
        }
        Kind::Stack => return Ok(Decoded::Stack { id: numbers.u32(), length: numbers.u64() }),
        Kind::Traced => Event::Traced {
            device,
            stack: numbers.u32(),
            number: numbers.u64(),
            stream: numbers.u64(),
            time_us: numbers.u64(),
        },
        Kind::Segment => Event::Segment {
            device,
            change: SegmentChange::from_code(second).ok_or("what became of the segment is unknown")?,
            stack: numbers.u32(),
            number: numbers.u64(),
            address: numbers.u64(),
            bytes: numbers.size()?,
            stream: numbers.u64(),
            time_us: numbers.u64(),
        },
    }))
}

/// Bytes of the kind and the three bytes after it.
const HEAD_BYTES: usize = 4;

/// Writes the fields of a record in sequence.
struct Encoder {
    raw: Raw,
    at: usize,
}

impl Encoder {
    #[inline]
    fn new(kind: Kind, bytes: [u8; 3]) -> Self {
        let mut raw = [0; RECORD_BYTES];
        raw[0] = kind as u8;
        raw[1..HEAD_BYTES].copy_from_slice(&bytes);
        Self { raw, at: HEAD_BYTES }
    }

    /// Creates a record that begins with a context.
    #[inline]
    fn with_context(kind: Kind, place: &EventContext) -> Self {
        Self::new(kind, [place.device, place.phase, 0]).u32(place.thread).u32(place.module).u32(place.step)
    }

    #[inline]
    fn u32(self, number: u32) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    #[inline]
    fn u64(self, number: u64) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    #[inline]
    fn bytes(mut self, bytes: &[u8]) -> Self {
        let end = self.at + bytes.len();
        self.raw[self.at..end].copy_from_slice(bytes);
        self.at = end;
        self
    }
}

/// Reads the fields of a record in sequence.
struct Decoder<'raw> {
    raw: &'raw Raw,
    at: usize,
}

impl Decoder<'_> {
    fn context(&mut self) -> EventContext {
        let [device, phase] = [self.raw[1], self.raw[2]];
        EventContext { device, phase, thread: self.u32(), module: self.u32(), step: self.u32() }
    }

    fn u32(&mut self) -> u32 {
        self.at += size_of::<u32>();
        u32_at(self.raw, self.at - size_of::<u32>())
    }

    fn u64(&mut self) -> u64 {
        self.at += size_of::<u64>();
        u64_at(self.raw, self.at - size_of::<u64>())
    }

    /// Reads a size that memory can have.
    fn size(&mut self) -> Result<u64, &'static str> {
        let bytes = self.u64();
        if i64::try_from(bytes).is_ok() { Ok(bytes) } else { Err("its size is impossible") }
    }
}

/// Reads a little-endian number at `offset`; 0 if the bytes end before it does.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..offset + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// Reads a little-endian number at `offset`; 0 if the bytes end before it does.
pub(super) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..offset + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_le_bytes)
}
