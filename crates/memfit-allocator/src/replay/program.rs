//! Recorded calls without the addresses of their blocks. They can be replayed with other settings, on another
//! GPU, or with some blocks dropped, resized or freed earlier.

use memfit_recording::{Moment, MomentKind, NEVER, Track};

use super::{OTHER_STREAM, ReplayConditions, pool_id};
use crate::{
    Address, AllocationError, Allocator, OutOfMemory, PoolId, PoolOptions, SimulatedDevice, Stats, Stream,
};

/// Recorded calls of a track on one device.
#[derive(Clone, Debug, Default)]
pub struct Program {
    calls: Vec<Call>,
    streams: Vec<Stream>,
    pools: Vec<PoolId>,
    /// Number of blocks of the track on all devices.
    blocks: usize,
}

/// A call and its moment in the track.
#[derive(Clone, Copy, Debug)]
struct Call {
    moment: u32,
    block: u32,
    size: u64,
    stream: u16,
    pool: u16,
    kind: CallKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKind {
    Malloc,
    /// Request that failed.
    Fail,
    /// Free with immediate completion.
    Free,
    /// Free of a block that is still in use on another stream.
    FreeLater,
    /// Completion of such a free.
    Complete,
    EmptyCache,
}

/// Edit of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// No change.
    Keep,
    /// The block is not allocated.
    Drop,
    /// The block has another requested size.
    Resize(u64),
    /// The block is freed at this moment of the track, if it is still allocated.
    FreeAt(u32),
    /// The block has another requested size and is freed at this moment of the track, if it is still
    /// allocated.
    ResizeUntil {
        /// Requested bytes.
        bytes: u64,
        /// Moment of the free.
        until: u32,
    },
}

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Statistics at the end, including peaks.
    pub stats: Stats,
    /// Moment at which memory ran out, with the error. Later calls were not made.
    pub died: Option<(u32, OutOfMemory)>,
}

impl Outcome {
    /// Peak reserved bytes.
    pub const fn reserved(&self) -> u64 {
        self.stats.reserved_bytes.all.peak as u64
    }

    /// Peak allocated bytes.
    pub const fn allocated(&self) -> u64 {
        self.stats.allocated_bytes.all.peak as u64
    }
}

/// Returns `true` if a moment is a call of the allocator.
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
    /// Extracts the calls of a track on one device.
    pub fn from_track(track: &Track, device: u8) -> Self {
        let mut program = Self {
            calls: Vec::new(),
            streams: track.streams.iter().map(|handle| Stream(*handle)).collect(),
            pools: track.pools.iter().map(|pool| pool_id(*pool)).collect(),
            blocks: track.blocks().len(),
        };
        let of_device = |(_, moment): &(u32, Moment)| moment.device == device && is_call(moment.kind);
        let completed = |moment: Moment| matches!(moment.kind, MomentKind::FreeCompleted(_));
        // A source that reports completions reports all of them: a block without one is pending to the end.
        let reports_completions = track.moments().iter().any(completed);
        let mut moments = (0..).zip(track.moments()).filter(of_device).peekable();
        while let Some((place, moment)) = moments.next() {
            let next = moments.peek().map(|(_, next)| next.kind);
            program.add(track, place, moment, next, reports_completions);
        }
        // A request that failed and was survived was not needed: cuDNN's workspaces are tried from large to
        // small, and scripts try again with fewer samples. What the program did instead is recorded.
        let fails = |call: &Call| call.kind == CallKind::Fail;
        let last = program.calls.iter().rfind(|call| fails(call)).map(|call| call.moment);
        program.calls.retain(|call| !fails(call) || Some(call.moment) == last);
        program
    }

    fn add(
        &mut self,
        track: &Track,
        place: u32,
        moment: Moment,
        next: Option<MomentKind>,
        reports_completions: bool,
    ) {
        let mut call =
            Call { moment: place, block: NEVER, size: 0, stream: 0, pool: 0, kind: CallKind::EmptyCache };
        match moment.kind {
            MomentKind::Alloc(index) => {
                let Some(block) = track.block(index) else { return };
                let size = block.requested.unwrap_or(block.bytes).max(1);
                call = Call {
                    block: index,
                    size,
                    stream: block.stream.0,
                    pool: block.pool.0,
                    kind: CallKind::Malloc,
                    ..call
                };
            }
            MomentKind::Oom(size) => call = Call { size, kind: CallKind::Fail, ..call },
            MomentKind::Free(index) => {
                let at_once = next == Some(MomentKind::FreeCompleted(index));
                let kind = if at_once || !reports_completions { CallKind::Free } else { CallKind::FreeLater };
                call = Call { block: index, kind, ..call };
            }
            MomentKind::FreeCompleted(index) => {
                call = Call { block: index, kind: CallKind::Complete, ..call }
            }
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

    /// Replays the calls under `given` with new addresses and the edit of each block. A failed request that
    /// now succeeds is freed at once, since the calls that would have followed are unknown.
    pub fn run(&self, given: &ReplayConditions, edit: impl Fn(u32) -> Edit) -> Outcome {
        let mut device = SimulatedDevice::new(given.capacity);
        device.hold_events();
        let mut allocator = Allocator::new(device, given.settings, given.release);
        for pool in self.pools.iter().filter(|pool| **pool != PoolId::DEFAULT) {
            allocator.hold_pool(*pool, PoolOptions::default()).unwrap_or_default();
        }
        let mut runner = Runner {
            allocator,
            places: vec![BlockStatus::Unallocated; self.blocks],
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

/// Returns `true` if the program emptied the cache, so that the replay has to do the same: the segment is the
/// last of several released ones, and no segment allocation follows. If one follows, the allocator released
/// them itself for a request that had failed at first.
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

/// State of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockStatus {
    Unallocated,
    At(Address),
    /// Freed, but in use on another stream.
    Waiting(Address),
}

struct Runner {
    allocator: Allocator<SimulatedDevice>,
    places: Vec<BlockStatus>,
    /// Blocks to be freed earlier than recorded, the earliest first.
    early: std::collections::BinaryHeap<std::cmp::Reverse<(u32, u32)>>,
}

impl Runner {
    fn make(
        &mut self,
        program: &Program,
        call: &Call,
        edit: &impl Fn(u32) -> Edit,
    ) -> Result<(), OutOfMemory> {
        self.free_early(call.moment);
        match call.kind {
            CallKind::Malloc => return self.malloc(program, call, edit(call.block)),
            CallKind::Fail => {
                let address = self.request(program, call, call.size)?;
                self.allocator.free(address).unwrap_or_default();
            }
            CallKind::Free => {
                if let BlockStatus::At(address) = self.take(call.block) {
                    self.allocator.free(address).unwrap_or_default();
                }
            }
            CallKind::FreeLater => {
                if let BlockStatus::At(address) = self.take(call.block)
                    && self.allocator.record_stream(address, OTHER_STREAM).is_ok()
                {
                    self.allocator.free(address).unwrap_or_default();
                    self.places[call.block as usize] = BlockStatus::Waiting(address);
                }
            }
            CallKind::Complete => {
                if let BlockStatus::Waiting(address) = self.take(call.block) {
                    // It may be free already, if a retried request waited for it.
                    self.allocator.finish_pending(address).unwrap_or_default();
                }
            }
            CallKind::EmptyCache => self.allocator.empty_cache(),
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
            *place = BlockStatus::At(address);
        }
        if let Edit::FreeAt(moment) | Edit::ResizeUntil { until: moment, .. } = edit {
            self.early.push(std::cmp::Reverse((moment, call.block)));
        }
        Ok(())
    }

    /// Requests memory. Returns a null address for an error other than lack of memory, such as an impossible
    /// size in a damaged file.
    fn request(&mut self, program: &Program, call: &Call, size: u64) -> Result<Address, OutOfMemory> {
        let stream = program.streams.get(usize::from(call.stream)).copied().unwrap_or(Stream(0));
        let pool = program.pools.get(usize::from(call.pool)).copied().unwrap_or(PoolId::DEFAULT);
        match self.allocator.malloc_in(pool, size, stream) {
            Ok(address) => Ok(address),
            Err(AllocationError::OutOfMemory(error)) => Err(error),
            Err(_) => Ok(Address::NULL),
        }
    }

    fn take(&mut self, block: u32) -> BlockStatus {
        self.places
            .get_mut(block as usize)
            .map_or(BlockStatus::Unallocated, |place| std::mem::replace(place, BlockStatus::Unallocated))
    }

    fn free_early(&mut self, moment: u32) {
        while let Some(std::cmp::Reverse((when, block))) = self.early.peek().copied() {
            if when > moment {
                return;
            }
            self.early.pop();
            if let BlockStatus::At(address) = self.take(block) {
                self.allocator.free(address).unwrap_or_default();
            }
        }
    }
}
