//! The calls of a recording apart from where their blocks came to lie: what can be made once more under other
//! settings, on another card, or with some of the blocks gone, smaller, or given back earlier.

use memfit_recording::{Moment, MomentKind, NEVER, Track};

use super::{ELSEWHERE, Given, pool_id};
use crate::{
    Address, AllocationError, Allocator, OutOfMemory, PoolId, PoolOptions, SimulatedDevice, Stats, Stream,
};

/// The calls that a track tells of on one device.
#[derive(Clone, Debug, Default)]
pub struct Program {
    calls: Vec<Call>,
    streams: Vec<Stream>,
    pools: Vec<PoolId>,
    /// How many blocks the track has, those of other devices included.
    blocks: usize,
}

/// One call, and the moment of the track that it was made at.
#[derive(Clone, Copy, Debug)]
struct Call {
    moment: u32,
    block: u32,
    size: u64,
    stream: u16,
    pool: u16,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Malloc,
    /// A request that had failed.
    Fail,
    /// Given back and free.
    Free,
    /// Given back, and still in use on another stream.
    GiveBack,
    /// What was given back is free.
    Complete,
    EmptyCache,
}

/// What is different about a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Nothing.
    Keep,
    /// It is not asked for.
    Drop,
    /// So many bytes are asked for.
    Resize(u64),
    /// It is given back at this moment of the track, if it is still there.
    FreeAt(u32),
    /// So many bytes are asked for, and given back at this moment of the track, if they are still there.
    ResizeUntil {
        /// How many.
        bytes: u64,
        /// The moment.
        until: u32,
    },
}

/// What comes of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The statistics at the end, peaks among them.
    pub stats: Stats,
    /// The moment at which memory ran out, and the figures of it. Calls after it were not made.
    pub died: Option<(u32, OutOfMemory)>,
}

impl Outcome {
    /// The most bytes in segments.
    pub const fn reserved(&self) -> u64 {
        self.stats.reserved_bytes.all.peak as u64
    }

    /// The most bytes in blocks.
    pub const fn allocated(&self) -> u64 {
        self.stats.allocated_bytes.all.peak as u64
    }
}

/// Whether a moment is one of the allocator's own events.
const fn is_call(kind: MomentKind) -> bool {
    matches!(
        kind,
        MomentKind::Alloc(_)
            | MomentKind::Free(_)
            | MomentKind::FreeCompleted(_)
            | MomentKind::Oom(_)
            | MomentKind::SegmentAlloc(_)
            | MomentKind::SegmentFree(_)
            | MomentKind::SegmentMap(_)
            | MomentKind::SegmentUnmap(_)
    )
}

impl Program {
    /// The calls that a track tells of on one device.
    pub fn of(track: &Track, device: u8) -> Self {
        let mut program = Self {
            calls: Vec::new(),
            streams: track.streams.iter().map(|handle| Stream(*handle)).collect(),
            pools: track.pools.iter().map(|pool| pool_id(*pool)).collect(),
            blocks: track.blocks().len(),
        };
        let of_device = |(_, moment): &(u32, Moment)| moment.device == device && is_call(moment.kind);
        let completed = |moment: Moment| matches!(moment.kind, MomentKind::FreeCompleted(_));
        // A source that tells when blocks became free tells it of all: one of which it does not is waited for
        // at the end.
        let tells_apart = track.moments().iter().any(completed);
        let mut moments = (0..).zip(track.moments()).filter(of_device).peekable();
        while let Some((place, moment)) = moments.next() {
            let next = moments.peek().map(|(_, next)| next.kind);
            program.add(track, place, moment, next, tells_apart);
        }
        program
    }

    fn add(&mut self, track: &Track, moment: u32, what: Moment, next: Option<MomentKind>, tells_apart: bool) {
        let mut call = Call { moment, block: NEVER, size: 0, stream: 0, pool: 0, what: What::EmptyCache };
        match what.kind {
            MomentKind::Alloc(index) => {
                let Some(block) = track.block(index) else { return };
                let size = block.requested.unwrap_or(block.bytes).max(1);
                call = Call {
                    block: index,
                    size,
                    stream: block.stream.0,
                    pool: block.pool.0,
                    what: What::Malloc,
                    ..call
                };
            }
            MomentKind::Oom(size) => call = Call { size, what: What::Fail, ..call },
            MomentKind::Free(index) => {
                let at_once = next == Some(MomentKind::FreeCompleted(index));
                let what = if at_once || !tells_apart { What::Free } else { What::GiveBack };
                call = Call { block: index, what, ..call };
            }
            MomentKind::FreeCompleted(index) => call = Call { block: index, what: What::Complete, ..call },
            MomentKind::SegmentFree(_) | MomentKind::SegmentUnmap(_) if empties_cache(next) => {}
            _ => return,
        }
        self.calls.push(call);
    }

    /// The same calls with all blocks in the default pool.
    #[must_use]
    pub fn with_one_pool(&self) -> Self {
        let calls = self.calls.iter().map(|call| Call { pool: 0, ..*call }).collect();
        Self { calls, pools: vec![PoolId::DEFAULT], ..self.clone() }
    }

    /// Makes the calls, as `given`, with addresses of their own and what `edit` says of each block changed. A
    /// request that had failed and now succeeds is given back at once: nothing is known of what would
    /// have come after it.
    pub fn run(&self, given: &Given, edit: impl Fn(u32) -> Edit) -> Outcome {
        let mut device = SimulatedDevice::new(given.capacity);
        device.hold_events();
        let mut allocator = Allocator::new(device, given.settings, given.release);
        for pool in self.pools.iter().filter(|pool| **pool != PoolId::DEFAULT) {
            allocator.hold_pool(*pool, PoolOptions::default()).unwrap_or_default();
        }
        let mut runner = Runner {
            allocator,
            places: vec![Place::Nowhere; self.blocks],
            early: std::collections::BinaryHeap::new(),
        };
        for call in &self.calls {
            if let Err(error) = runner.make(self, call, &edit) {
                return Outcome { stats: *runner.allocator.stats(), died: Some((call.moment, error)) };
            }
        }
        Outcome { stats: *runner.allocator.stats(), died: None }
    }
}

/// Whether the program emptied the cache: the last of a run of segments that are given back, with no segment
/// got behind it. With one behind it, a request had failed at first, and in other circumstances it may not.
const fn empties_cache(next: Option<MomentKind>) -> bool {
    !matches!(
        next,
        Some(
            MomentKind::SegmentFree(_)
                | MomentKind::SegmentUnmap(_)
                | MomentKind::SegmentAlloc(_)
                | MomentKind::SegmentMap(_)
                | MomentKind::Oom(_)
        )
    )
}

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    At(Address),
    /// Given back, and in use elsewhere.
    Waiting(Address),
}

struct Runner {
    allocator: Allocator<SimulatedDevice>,
    places: Vec<Place>,
    /// Blocks that are to be given back earlier than they were, the earliest first.
    early: std::collections::BinaryHeap<std::cmp::Reverse<(u32, u32)>>,
}

impl Runner {
    fn make(
        &mut self,
        program: &Program,
        call: &Call,
        edit: &impl Fn(u32) -> Edit,
    ) -> Result<(), OutOfMemory> {
        self.give_back_early(call.moment);
        match call.what {
            What::Malloc => return self.malloc(program, call, edit(call.block)),
            What::Fail => {
                let address = self.request(program, call, call.size)?;
                self.allocator.free(address).unwrap_or_default();
            }
            What::Free => {
                if let Place::At(address) = self.take(call.block) {
                    self.allocator.free(address).unwrap_or_default();
                }
            }
            What::GiveBack => {
                if let Place::At(address) = self.take(call.block)
                    && self.allocator.record_stream(address, ELSEWHERE).is_ok()
                {
                    self.allocator.free(address).unwrap_or_default();
                    self.places[call.block as usize] = Place::Waiting(address);
                }
            }
            What::Complete => {
                if let Place::Waiting(address) = self.take(call.block) {
                    // It may be free already: a request that was tried again waited for it.
                    self.allocator.finish_pending(address).unwrap_or_default();
                }
            }
            What::EmptyCache => self.allocator.empty_cache(),
        }
        Ok(())
    }

    fn malloc(&mut self, program: &Program, call: &Call, edit: Edit) -> Result<(), OutOfMemory> {
        let size = match edit {
            Edit::Drop => return Ok(()),
            Edit::Resize(bytes) | Edit::ResizeUntil { bytes, .. } => bytes.max(1),
            Edit::Keep | Edit::FreeAt(_) => call.size,
        };
        let address = self.request(program, call, size)?;
        if let Some(place) = self.places.get_mut(call.block as usize) {
            *place = Place::At(address);
        }
        if let Edit::FreeAt(moment) | Edit::ResizeUntil { until: moment, .. } = edit {
            self.early.push(std::cmp::Reverse((moment, call.block)));
        }
        Ok(())
    }

    /// What is no lack of memory (a size that no device has, in a damaged file) passes for an empty block.
    fn request(&mut self, program: &Program, call: &Call, size: u64) -> Result<Address, OutOfMemory> {
        let stream = program.streams.get(usize::from(call.stream)).copied().unwrap_or(Stream(0));
        let pool = program.pools.get(usize::from(call.pool)).copied().unwrap_or(PoolId::DEFAULT);
        match self.allocator.malloc_in(pool, size, stream) {
            Ok(address) => Ok(address),
            Err(AllocationError::OutOfMemory(error)) => Err(error),
            Err(_) => Ok(Address::NULL),
        }
    }

    fn take(&mut self, block: u32) -> Place {
        self.places
            .get_mut(block as usize)
            .map_or(Place::Nowhere, |place| std::mem::replace(place, Place::Nowhere))
    }

    fn give_back_early(&mut self, moment: u32) {
        while let Some(std::cmp::Reverse((when, block))) = self.early.peek().copied() {
            if when > moment {
                return;
            }
            self.early.pop();
            if let Place::At(address) = self.take(block) {
                self.allocator.free(address).unwrap_or_default();
            }
        }
    }
}
