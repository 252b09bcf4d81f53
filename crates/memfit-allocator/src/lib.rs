//! PyTorch's caching allocator for CUDA, replayed event by event.
//!
//! The allocator decides where each tensor lies and how much memory is reserved for it, so whoever repeats
//! its decisions can tell what other settings, another card or another program would have made of the same
//! calls. This crate repeats them: [`Allocator`] holds the policy, [`Settings`] and [`Release`] what differs
//! between runs and between releases of PyTorch, and [`Device`] is what lies below: where addresses come
//! from, when memory is exhausted, when work is done. It is deterministic, and it never looks at the contents
//! of memory: addresses are numbers.
//!
//! It owns the allocator's algorithm. It must not know files or Python.

mod ages;
mod allocator;
mod block;
mod device;
mod error;
mod ids;
mod pool;
mod release;
mod replay;
mod restore;
mod rounding;
mod settings;
mod state;
mod stats;

pub use allocator::{Allocator, CaptureFilter, PoolOptions};
pub use device::{Action, Device, Entry, SimulatedDevice, Ticket};
pub use error::{AllocationError, FreeError, OutOfMemory, PoolError, RestoreError};
pub use ids::{Address, PoolId, Stream};
pub use release::{Release, ReleaseError};
pub use replay::{
    Edit, Given, Mismatch, Outcome, Program, Recorded, Rewound, Tally, Tracked, Verification, recording,
    rewind, track, verify,
};
pub use restore::Past;
pub use rounding::{
    MIN_BLOCK, MIN_LARGE_REQUEST, ROUND_LARGE, SMALL_LIMIT, SMALL_SEGMENT, round_size, segment_size,
};
pub use settings::{Divisions, LARGE_SEGMENT, Reserve, Settings, SettingsError};
pub use state::{BlockState, BlockView, Inconsistency, SegmentView};
pub use stats::{Counter, PerPool, Stats};
