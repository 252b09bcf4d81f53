//! Reimplementation of PyTorch's CUDA caching allocator, for replays of recorded calls.
//!
//! The allocator decides where each tensor is placed and how much memory is reserved. Repeating its decisions
//! shows the effect of other settings, another GPU or a changed program on the same calls. [`Allocator`]
//! implements the policy, [`Settings`] and [`Release`] the differences between runs and between releases of
//! PyTorch, and [`Device`] the layer below: addresses, available memory, completion of work. The allocator is
//! deterministic and never reads memory: addresses are plain numbers.
//!
//! This crate contains the allocator's algorithm. It does not know files or Python.

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
    Edit, Mismatch, Outcome, Program, ReplayConditions, Rewound, Tally, Verification, VerifiedRecording,
    VerifiedTrack, recording, rewind, track, verify,
};
pub use restore::Past;
pub use rounding::{
    MIN_BLOCK, MIN_LARGE_REQUEST, ROUND_LARGE, SMALL_LIMIT, SMALL_SEGMENT, round_size, segment_size,
};
pub use settings::{Divisions, LARGE_SEGMENT, Reserve, Settings, SettingsError};
pub use state::{BlockState, BlockView, Inconsistency, SegmentView};
pub use stats::{Counter, PerPool, Stats};
