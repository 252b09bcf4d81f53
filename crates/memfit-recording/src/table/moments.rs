//! Table of events in order, in some eighteen bytes each.

use std::collections::BTreeMap;

use memfit_vocabulary::Phase;

use super::packed::{Packed, Sparse, Times};
use crate::{Moment, MomentKind, StackId};

/// Moments of a track.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    kinds: Vec<u8>,
    devices: Vec<u8>,
    /// Subject of the kind: a block, a call, a phase, a count.
    subjects: Packed<0>,
    allocated: Packed<9>,
    /// Changes of the reserved bytes by device, as moment and new value; they are rare.
    reserved: BTreeMap<u8, Vec<(u32, u64)>>,
    times: Times,
    stacks: Sparse<u32>,
    /// Moments at which steps completed, and the number of steps completed then.
    steps: Vec<(u32, u32)>,
}

impl Moments {
    /// Number of moments.
    pub const fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Returns `true` if there are no moments.
    pub const fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Adds a moment and returns its index.
    pub fn push(&mut self, moment: Moment) -> u32 {
        let row = self.kinds.len();
        let (code, subject) = encode(moment.kind);
        self.kinds.push(code);
        self.devices.push(moment.device);
        self.subjects.push(subject);
        let totals = moment.kind.has_totals();
        self.allocated.push(if totals { moment.allocated } else { 0 });
        if totals {
            let changes = self.reserved.entry(moment.device).or_default();
            if changes.last().map_or(0, |(_, reserved)| *reserved) != moment.reserved {
                changes.push((row as u32, moment.reserved));
            }
        }
        self.times.set(row, moment.time_us.unwrap_or(0));
        self.stacks.set(row, moment.stack.0);
        if let MomentKind::Step(complete) = moment.kind {
            self.steps.push((row as u32, complete));
        }
        row as u32
    }

    /// Moment with this index.
    pub fn get(&self, index: u32) -> Option<Moment> {
        let row = index as usize;
        let kind = decode(*self.kinds.get(row)?, self.subjects.get(row))?;
        let device = self.devices[row];
        let reserved = if kind.has_totals() { self.reserved_at(device, index) } else { 0 };
        Some(Moment {
            kind,
            device,
            allocated: self.allocated.get(row),
            reserved,
            time_us: Some(self.times.get(row)).filter(|time| *time != 0),
            stack: StackId(self.stacks.get(row)),
        })
    }

    /// All moments, in order.
    pub const fn iter(&self) -> MomentIter<'_> {
        MomentIter { moments: self, next: 0, end: self.kinds.len() as u32 }
    }

    /// Moments at which steps completed, and the number of steps completed then.
    pub fn steps(&self) -> &[(u32, u32)] {
        &self.steps
    }

    /// Number of steps completed at a moment.
    pub fn steps_at(&self, moment: u32) -> u32 {
        let passed = self.steps.partition_point(|(when, _)| *when < moment);
        passed.checked_sub(1).map_or(0, |last| self.steps[last].1)
    }

    /// Device of a moment.
    pub(super) fn device_of(&self, index: u32) -> u8 {
        self.devices.get(index as usize).copied().unwrap_or(0)
    }

    /// Stack of a moment.
    pub(super) fn stack_of(&self, index: u32) -> StackId {
        StackId(self.stacks.get(index as usize))
    }

    fn reserved_at(&self, device: u8, index: u32) -> u64 {
        let Some(changes) = self.reserved.get(&device) else { return 0 };
        let passed = changes.partition_point(|(when, _)| *when <= index);
        passed.checked_sub(1).map_or(0, |last| changes[last].1)
    }

    /// Releases unused capacity.
    pub fn shrink(&mut self) {
        self.kinds.shrink_to_fit();
        self.devices.shrink_to_fit();
        self.subjects.shrink();
        self.allocated.shrink();
        self.reserved.values_mut().for_each(Vec::shrink_to_fit);
        self.times.shrink();
        self.stacks.shrink();
        self.steps.shrink_to_fit();
    }

    /// Memory in bytes.
    pub fn memory(&self) -> usize {
        let reserved: usize = self.reserved.values().map(|changes| changes.capacity() * 16).sum();
        self.kinds.capacity()
            + self.devices.capacity()
            + self.subjects.memory()
            + self.allocated.memory()
            + reserved
            + self.times.memory()
            + self.stacks.memory()
            + self.steps.capacity() * 8
    }
}

/// Iterator over moments.
#[derive(Clone, Debug)]
pub struct MomentIter<'moments> {
    moments: &'moments Moments,
    next: u32,
    end: u32,
}

impl Iterator for MomentIter<'_> {
    type Item = Moment;

    fn next(&mut self) -> Option<Moment> {
        if self.next >= self.end {
            return None;
        }
        self.next += 1;
        self.moments.get(self.next - 1)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end - self.next) as usize;
        (left, Some(left))
    }

    fn nth(&mut self, count: usize) -> Option<Moment> {
        self.next =
            u32::try_from(count).map_or(self.end, |count| self.next.saturating_add(count)).min(self.end);
        self.next()
    }
}

impl DoubleEndedIterator for MomentIter<'_> {
    fn next_back(&mut self) -> Option<Moment> {
        if self.next >= self.end {
            return None;
        }
        self.end -= 1;
        self.moments.get(self.end)
    }
}

impl ExactSizeIterator for MomentIter<'_> {}

impl<'moments> IntoIterator for &'moments Moments {
    type Item = Moment;
    type IntoIter = MomentIter<'moments>;

    fn into_iter(self) -> MomentIter<'moments> {
        self.iter()
    }
}

impl Extend<Moment> for Moments {
    fn extend<T: IntoIterator<Item = Moment>>(&mut self, moments: T) {
        for moment in moments {
            self.push(moment);
        }
    }
}

/// Encodes a kind as a code and a subject. The codes are also those of the file format.
pub(crate) fn encode(kind: MomentKind) -> (u8, u64) {
    match kind {
        MomentKind::Alloc(block) => (1, u64::from(block)),
        MomentKind::Free(block) => (2, u64::from(block)),
        MomentKind::Phase(phase) => (3, u64::from(phase.code())),
        MomentKind::Step(step) => (4, u64::from(step)),
        MomentKind::Enter(call) => (5, u64::from(call)),
        MomentKind::Exit(call) => (6, u64::from(call)),
        MomentKind::Oom(bytes) => (7, bytes),
        MomentKind::FreeCompleted(block) => (8, u64::from(block)),
        MomentKind::SegmentAlloc(span) => (9, u64::from(span)),
        MomentKind::SegmentFree(span) => (10, u64::from(span)),
        MomentKind::SegmentMap(span) => (11, u64::from(span)),
        MomentKind::SegmentUnmap(span) => (12, u64::from(span)),
        MomentKind::RangeBegin(range) => (13, u64::from(range)),
        MomentKind::RangeEnd(range) => (14, u64::from(range)),
        MomentKind::Snapshot => (15, 0),
    }
}

/// Decodes a kind. Returns `None` if the code is unknown.
pub(crate) fn decode(code: u8, subject: u64) -> Option<MomentKind> {
    let index = || u32::try_from(subject).ok();
    Some(match code {
        1 => MomentKind::Alloc(index()?),
        2 => MomentKind::Free(index()?),
        3 => MomentKind::Phase(Phase::from_code(u8::try_from(subject).ok()?)?),
        4 => MomentKind::Step(index()?),
        5 => MomentKind::Enter(index()?),
        6 => MomentKind::Exit(index()?),
        7 => MomentKind::Oom(subject),
        8 => MomentKind::FreeCompleted(index()?),
        9 => MomentKind::SegmentAlloc(index()?),
        10 => MomentKind::SegmentFree(index()?),
        11 => MomentKind::SegmentMap(index()?),
        12 => MomentKind::SegmentUnmap(index()?),
        13 => MomentKind::RangeBegin(index()?),
        14 => MomentKind::RangeEnd(index()?),
        15 => MomentKind::Snapshot,
        _ => return None,
    })
}
