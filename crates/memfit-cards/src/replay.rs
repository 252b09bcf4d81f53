//! Replays the allocator calls of one run on GPUs with less memory.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use memfit_allocator::{Edit, Program, ReplayConditions};
use memfit_explain::Conditions;
use memfit_recording::{MomentKind, Recording, Track};
use memfit_run::{RanOut, Replayed};
use memfit_vocabulary::Phase;

/// The part of training in which memory runs out. A script that catches the error in one part may not catch
/// it in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// `true` if an optimizer step was complete before.
    after_first_step: bool,
    phase: Phase,
}

impl Site {
    /// A part of a training run.
    #[cfg(test)]
    pub(crate) const fn new(after_first_step: bool, phase: Phase) -> Self {
        Self { after_first_step, phase }
    }
}

/// A recorded run whose calls can be replayed.
#[derive(Debug)]
pub(crate) struct Replay {
    program: Program,
    given: ReplayConditions,
    /// Times at which a phase began or a step was completed.
    marks: Vec<(u32, Mark)>,
    /// The run's own peaks.
    allocated: u64,
    reserved: u64,
}

/// Digest of an allocator's calls on one device: requests with their results, and the bytes in blocks and
/// segments after each.
pub(crate) fn path(track: &Track, device: u8) -> u64 {
    let mut hasher = DefaultHasher::new();
    for moment in track.moments() {
        if moment.device != device || !moment.kind.has_totals() {
            continue;
        }
        let failed = match moment.kind {
            MomentKind::Oom(bytes) => Some(bytes),
            _ => None,
        };
        (failed, moment.allocated, moment.reserved).hash(&mut hasher);
    }
    hasher.finish()
}

#[derive(Clone, Copy, Debug)]
enum Mark {
    Phase(Phase),
    Steps(u32),
}

impl Replay {
    /// Creates the replay of a track's calls on one device. The track belongs to the recording.
    pub(crate) fn new(recording: &Recording, track: &Track, device: u8, peak: (u64, u64)) -> Self {
        let conditions = Conditions::from_track(&recording.origin, track, None);
        let marks = (0..).zip(track.moments()).filter_map(|(place, moment)| match moment.kind {
            MomentKind::Phase(phase) => Some((place, Mark::Phase(phase))),
            MomentKind::Step(steps) => Some((place, Mark::Steps(steps))),
            _ => None,
        });
        Self {
            program: Program::from_track(track, device),
            given: conditions.given,
            marks: marks.collect(),
            allocated: peak.0,
            reserved: peak.1,
        }
    }

    /// Outcome if the allocator can get `limit` bytes, and the part of the training in which memory runs out,
    /// if it does.
    pub(crate) fn within(&self, limit: u64) -> (Replayed, Option<Site>) {
        let Self { allocated, reserved, .. } = *self;
        if reserved <= limit {
            // No request fails, so the recorded peaks hold.
            return (Replayed { allocated, reserved, ran_out: None }, None);
        }
        let outcome = self.program.run(&ReplayConditions { capacity: limit, ..self.given }, |_| Edit::Keep);
        let replayed =
            |ran_out| Replayed { allocated: outcome.allocated(), reserved: outcome.reserved(), ran_out };
        match outcome.died {
            None => (replayed(None), None),
            Some((moment, oom)) => {
                let (site, steps) = self.site(moment);
                (replayed(Some(RanOut { requested: oom.requested, step: u64::from(steps) + 1 })), Some(site))
            }
        }
    }

    fn site(&self, moment: u32) -> (Site, u32) {
        let before = &self.marks[..self.marks.partition_point(|(place, _)| *place <= moment)];
        let phase = before.iter().rev().find_map(|(_, mark)| match mark {
            Mark::Phase(phase) => Some(*phase),
            Mark::Steps(_) => None,
        });
        let steps = before.iter().rev().find_map(|(_, mark)| match mark {
            Mark::Steps(steps) => Some(*steps),
            Mark::Phase(_) => None,
        });
        let steps = steps.unwrap_or(0);
        (Site { after_first_step: steps > 0, phase: phase.unwrap_or(Phase::Other) }, steps)
    }
}
