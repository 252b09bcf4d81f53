//! Replaying what was recorded: the same calls once more, and whether the same comes of them.

mod history;
mod pools;
mod program;
mod rewind;
mod script;
mod track;
mod verify;

pub use program::{Edit, Outcome, Program};
pub use rewind::{Rewound, rewind};
pub use track::{Recorded, Tracked, recording, track};
pub use verify::verify;

use memfit_recording::{Snapshot, TraceAction};

use crate::{Divisions, PoolId, Release, Settings, Stats, Stream};

/// A stream that no program has: what uses a block that is given back and not free at once.
const ELSEWHERE: Stream = Stream(u64::MAX);

const fn pool_id((first, second): (u64, u64)) -> PoolId {
    PoolId(first, second)
}

/// What a snapshot does not say, or may say wrongly, and a replay has to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Given {
    /// The settings.
    pub settings: Settings,
    /// The release of PyTorch.
    pub release: Release,
    /// The device's memory: it decides how much address space expandable segments reserve.
    pub capacity: u64,
}

impl Given {
    /// What a snapshot says of its settings, and defaults for the rest.
    pub fn from_snapshot(snapshot: &Snapshot) -> Self {
        Self::from_snapshot_of(snapshot, None)
    }

    /// The same for a snapshot of which the release is known.
    pub fn from_snapshot_of(snapshot: &Snapshot, release: Option<Release>) -> Self {
        // A snapshot does not name its release. From 2.12 on, events say which pool they are about.
        let names_pools = snapshot.events.iter().any(|event| event.pool.is_some());
        let guessed = if names_pools { Release::NEWEST } else { Release::new(2, 11) };
        let release = release.unwrap_or(guessed);
        let mut settings = Settings::default();
        if let Some(traced) = &snapshot.settings {
            // The text has what the figures lack; but where it cannot be read, the figures stand alone.
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

/// How many predictions there were, and how many of them were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many there were.
    pub predicted: u64,
    /// How many were right.
    pub matching: u64,
}

impl Tally {
    pub(crate) const fn count(&mut self, right: bool) {
        self.predicted += 1;
        self.matching += right as u64;
    }
}

/// Where a replay and a trace part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The event's place in the device's trace.
    pub event: usize,
    /// What the trace says happened.
    pub action: TraceAction,
    /// Where and how large, in the trace.
    pub recorded: (u64, u64),
    /// What the replay did instead, where and how large: nothing where it did nothing.
    pub replayed: Option<(crate::Action, u64, u64)>,
}

/// What came of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// The events of the trace.
    pub events: u64,
    /// Addresses of blocks.
    pub addresses: Tally,
    /// Segments got and given back, and ranges mapped and unmapped: each with its size and, where the
    /// allocator chooses it, its address.
    pub segments: Tally,
    /// Blocks at the end: of the trace's, how many the replay has with the same size and state.
    pub blocks: Tally,
    /// The first mismatches.
    pub mismatches: Vec<Mismatch>,
    /// Blocks that were alive before the trace began and whose exact size cannot be known.
    pub uncertain: u64,
    /// Events that the trace had to tell, because what decides them lies before its beginning: which of
    /// several equal blocks comes first, in segments of which nothing told the oldest, and the end of a
    /// call that begins before the trace does. What is told is not predicted: it is in no tally.
    pub told: u64,
    /// How often the state had to be worked out anew from the trace.
    pub resumed: u64,
    /// The replay's statistics at the end. They are PyTorch's own where the trace is whole and nothing was
    /// worked out anew, but for what a trace does not tell apart: a request that was tried again, and
    /// one after the cache was emptied.
    pub stats: Stats,
}
