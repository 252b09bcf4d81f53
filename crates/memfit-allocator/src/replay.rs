//! Replay of recorded calls, and verification against the recorded results.

mod history;
mod pools;
mod program;
mod rewind;
mod script;
mod track;
mod verify;

pub use program::{Edit, Outcome, Program};
pub use rewind::{Rewound, rewind};
pub use track::{VerifiedRecording, VerifiedTrack, recording, track};
pub use verify::verify;

use memfit_recording::{Snapshot, TraceAction};

use crate::{Action, Divisions, PoolId, Release, Settings, Stats, Stream};

/// Artificial stream that uses blocks whose free was requested but not completed.
const OTHER_STREAM: Stream = Stream(u64::MAX);

const fn pool_id((first, second): (u64, u64)) -> PoolId {
    PoolId(first, second)
}

impl From<Action> for TraceAction {
    fn from(action: Action) -> Self {
        match action {
            Action::Alloc => Self::Alloc,
            Action::FreeRequested => Self::FreeRequested,
            Action::FreeCompleted => Self::FreeCompleted,
            Action::SegmentAlloc => Self::SegmentAlloc,
            Action::SegmentFree => Self::SegmentFree,
            Action::SegmentMap => Self::SegmentMap,
            Action::SegmentUnmap => Self::SegmentUnmap,
            Action::OutOfMemory => Self::Oom,
        }
    }
}

/// Conditions of a replay that a snapshot does not contain, or may state wrongly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayConditions {
    /// Settings.
    pub settings: Settings,
    /// Release of PyTorch.
    pub release: Release,
    /// Total memory of the device, which determines the address space of expandable segments.
    pub capacity: u64,
}

impl ReplayConditions {
    /// Takes the settings that a snapshot contains, and defaults for the rest.
    pub fn from_snapshot(snapshot: &Snapshot) -> Self {
        Self::from_snapshot_of(snapshot, None)
    }

    /// [`Self::from_snapshot`] with a known release.
    pub fn from_snapshot_of(snapshot: &Snapshot, release: Option<Release>) -> Self {
        // A snapshot does not contain its release.
        let names_pools = snapshot.events.iter().any(|event| event.pool.is_some());
        let guessed = if names_pools { Release::NEWEST } else { Release::WITHOUT_POOL_NAMES };
        let release = release.unwrap_or(guessed);
        let mut settings = Settings::default();
        if let Some(traced) = &snapshot.settings {
            // The text contains settings that the parsed values lack; if it cannot be parsed, the values are
            // used alone.
            let text = Settings::parse(&traced.text, release);
            settings = text.or_else(|_| Settings::parse(&traced.text, Release::NEWEST)).unwrap_or_default();
            settings.max_split_size = traced.max_split_size.unwrap_or(u64::MAX);
            settings.garbage_collection_threshold = traced.garbage_collection_threshold;
            settings.expandable_segments = traced.expandable_segments;
            settings.roundup = Divisions::from_powers(
                traced.roundup_power2_divisions.iter().map(|(power, steps)| (*power, *steps)),
            );
        }
        Self { settings, release, capacity: 256 << 30 }
    }
}

/// Number of predictions, and of correct ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Predictions.
    pub predicted: u64,
    /// Correct predictions.
    pub matching: u64,
}

impl Tally {
    pub(crate) const fn count(&mut self, right: bool) {
        self.predicted += 1;
        self.matching += right as u64;
    }
}

/// Deviation of a replay from a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Index of the event in the device's trace.
    pub event: usize,
    /// Recorded action.
    pub action: TraceAction,
    /// Recorded address and size.
    pub recorded: (u64, u64),
    /// Replayed action, address and size; `None` if there was none.
    pub replayed: Option<(crate::Action, u64, u64)>,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Number of events in the trace.
    pub events: u64,
    /// Addresses of blocks.
    pub addresses: Tally,
    /// Allocated and released segments, mapped and unmapped ranges: each with its size and, if the allocator
    /// chooses it, its address.
    pub segments: Tally,
    /// Blocks at the end that the replay has with the same size and state.
    pub blocks: Tally,
    /// First mismatches.
    pub mismatches: Vec<Mismatch>,
    /// Number of blocks from before the trace whose exact size cannot be determined.
    pub uncertain: u64,
    /// Events that could not be predicted because they depend on the time before the trace: the choice
    /// between equal blocks in segments of unknown age, and the end of a call that began before the trace.
    /// They count in no tally.
    pub told: u64,
    /// Number of times that the state was restored from the trace.
    pub resumed: u64,
    /// Statistics at the end. They equal PyTorch's own if the trace is complete and the state was never
    /// restored, except for what a trace does not distinguish: a retried request, and a request after the
    /// cache was emptied.
    pub stats: Stats,
}
