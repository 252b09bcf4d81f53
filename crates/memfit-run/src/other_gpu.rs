//! Derives the result on another GPU of the same architecture from a run on one GPU.
//!
//! The allocator calls are the recorded ones. The caller finds out their outcome on the other GPU (by a
//! replay) and passes it in. This module adds the memory outside the allocator on that GPU, and its clock,
//! which ran during the original run. The result is a report and a verdict as from a run on that GPU.

use memfit_channel::ClockMark;
use memfit_channel::message::Oom as OomMessage;
use memfit_devices::{Device, Interval};
use memfit_recording::{Recording, Track};

use crate::facts::{OomFacts, RankFacts};
use crate::{Card, Outcome, Request, recording};

/// Tolerance of the auxiliary clocks: the auxiliary clock for the run's own GPU may differ from its real
/// clock by this share; otherwise no auxiliary clock is used.
const CLOCK_TOLERANCE: f64 = 0.1;

/// The outcome of the recorded calls on another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Peak bytes in blocks.
    pub allocated: u64,
    /// Peak bytes in segments.
    pub reserved: u64,
    /// The request that failed.
    pub ran_out: Option<RanOut>,
}

/// A request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RanOut {
    /// Bytes.
    pub requested: u64,
    /// The optimizer step during which it was made, counted from 1.
    pub step: u64,
}

/// Bytes on a GPU outside PyTorch's allocator, at the run's peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideBytes {
    /// At the typical size of each part.
    pub typical: u64,
    /// At the upper bound, which the verdict uses.
    pub upper: u64,
}

impl Outcome {
    /// The recording of this run.
    pub fn recording(&self, request: &Request, tracks: Vec<Track>) -> Recording {
        recording::build(request, &self.facts, tracks)
    }

    /// The only rank's process on one GPU; `None` if several processes or GPUs took part, since a replay of
    /// one does not represent the run.
    pub fn lone_track<'tracks>(&self, tracks: &'tracks [Track]) -> Option<(&'tracks Track, u8)> {
        let ([_], [track]) = (self.facts.ranks.as_slice(), tracks) else { return None };
        match track.devices().as_slice() {
            [device] => Some((track, *device)),
            _ => None,
        }
    }

    /// Bytes by which memory that waited for another stream raised the peak. They depend on the clock.
    pub fn pending(&self) -> u64 {
        self.facts.ranks.iter().map(|rank| rank.pending).max().unwrap_or(0)
    }

    /// Returns `true` if the script queried the GPU's memory size.
    pub fn asks_size(&self) -> bool {
        self.facts.ranks.iter().filter_map(|rank| rank.done.as_ref()).any(|done| done.asks_size)
    }

    /// Returns `true` if the script continued by itself after an out-of-memory error.
    pub fn catches(&self) -> bool {
        self.facts.oom.as_ref().is_some_and(|oom| !oom.uncaught)
    }

    /// Memory outside the allocator that this run would take on another GPU.
    pub fn outside_on(&self, device: &Device) -> OutsideBytes {
        let (Some(own), Some(rank)) = (&self.facts.overhead, self.facts.fullest()) else {
            return OutsideBytes { typical: 0, upper: 0 };
        };
        let there = device.overhead(own.asked_for);
        let parts = [
            (rank.outside.context, own.context, there.context),
            (rank.outside.libraries, own.libraries, there.libraries),
            (rank.outside.communication, own.per_communicator, there.per_communicator),
        ];
        let counted: u64 = parts.iter().map(|(counted, ..)| *counted).sum();
        let upper_here: u64 =
            parts.iter().map(|(counted, own, _)| scaled(*counted, *own, own.high.get()).max(*counted)).sum();
        // Memory from direct `cudaMalloc` calls, other processes, and the other entries of the GPU's ledger.
        let host = |shared: bool| if shared { self.facts.host.resident } else { 0 };
        let (host_here, host_there) =
            (host(self.facts.setup.shares_host_memory()), host(device.shares_host_memory()));
        let others = rank.peak.device.saturating_sub(rank.peak.reserved + counted + host_here);
        let bound =
            rank.peak.device_upper.saturating_sub(rank.peak.reserved + upper_here + host_here).max(others);
        let (others, bound) = (others + host_there, bound + host_there);
        let sum = |end: fn(&Interval) -> u64| -> u64 {
            parts.iter().map(|(counted, own, there)| scaled(*counted, *own, end(there))).sum()
        };
        OutsideBytes {
            typical: sum(|interval| interval.typical.get()) + others,
            upper: sum(|interval| interval.high.get()) + bound,
        }
    }

    /// This run as it would have been on the request's GPU, which has index `gpu_index` among the GPUs that
    /// were timed in it.
    #[must_use]
    pub fn on_other_gpu(&self, request: &Request, replayed: Replayed, gpu_index: usize) -> Self {
        let mut outcome = self.with_gpu_of(request, (replayed.allocated, replayed.reserved), gpu_index);
        outcome.facts.oom = replayed.ran_out.map(|ran_out| OomFacts {
            oom: OomMessage {
                requested: ran_out.requested,
                device: 0,
                step: ran_out.step,
                phase: "other".to_owned(),
                module: None,
                evaluation: false,
                stack: Vec::new(),
            },
            text: None,
            process: 0,
            uncaught: true,
            steps_after: 0,
        });
        outcome
    }

    /// This run as it would have been on the request's GPU, if each allocator call has the same outcome
    /// there.
    #[must_use]
    pub fn on_other_gpu_as_recorded(&self, request: &Request, gpu_index: usize) -> Self {
        let peak = self.facts.fullest().map_or((0, 0), |rank| (rank.peak.allocated, rank.peak.reserved));
        self.with_gpu_of(request, peak, gpu_index)
    }

    /// This run with the memory outside the allocator and the clock of the request's GPU.
    fn with_gpu_of(&self, request: &Request, (allocated, reserved): (u64, u64), gpu_index: usize) -> Self {
        let mut facts = self.facts.clone();
        if let Card::Virtual(device, _) = &request.card {
            let outside = self.outside_on(device);
            for rank in &mut facts.ranks {
                rank.peak.allocated = allocated;
                rank.peak.reserved = reserved;
                rank.peak.device = reserved + outside.typical;
                rank.peak.device_upper = (reserved + outside.upper).max(rank.peak.device);
                rank.marks = marks_on_gpu(rank, gpu_index);
            }
            facts.overhead = facts.overhead.map(|own| device.overhead(own.asked_for));
        }
        Self { tested: self.tested, ..Self::new(facts) }
    }

    /// Copies another run's findings about values that only a GPU can compute.
    pub fn copy_value_findings(&mut self, other: &Self) {
        self.tested = other.tested;
    }

    /// Copies another run's finding about sizes that only a GPU can compute.
    pub fn copy_size_findings(&mut self, other: &Self) {
        self.tested.sizes = other.tested.sizes;
    }
}

/// Scales an amount: `counted` was seen where one item typically is `own`; an item on the other GPU is
/// `there`.
fn scaled(counted: u64, own: Interval, there: u64) -> u64 {
    match own.typical.get() {
        0 => counted,
        typical => (u128::from(counted) * u128::from(there) / u128::from(typical)) as u64,
    }
}

/// Clock readings of the GPU with index `gpu_index` among those that were timed during a run; empty if that
/// clock does not represent the GPU. The shares of the kinds of work are those of the run itself.
fn marks_on_gpu(rank: &RankFacts, gpu_index: usize) -> Vec<ClockMark> {
    let (Some(first), Some(last)) = (rank.marks.first(), rank.marks.last()) else { return Vec::new() };
    let elapsed = |reading: fn(&ClockMark, usize) -> Option<u64>, gpu_index: usize| {
        Some(reading(last, gpu_index)?.checked_sub(reading(first, gpu_index)?)? as f64)
    };
    let real = elapsed(|mark, _| Some(mark.end), 0);
    let timed = |gpu_index| elapsed(|mark, gpu_index| mark.beside.get(gpu_index).copied(), gpu_index);
    let (Some(real), Some(own), Some(other)) = (real, timed(0), timed(gpu_index)) else { return Vec::new() };
    if real <= 0.0 || own <= 0.0 || (own / real - 1.0).abs() > CLOCK_TOLERANCE {
        return Vec::new();
    }
    // Modelling several streams by one queue is assumed to be equally wrong on both GPUs.
    let correction = real / own;
    let mark_on_gpu = |mark: &ClockMark| {
        let end = (*mark.beside.get(gpu_index)? as f64 * correction) as u64;
        let busy = mark.busy.iter().map(|length| (*length as f64 * other / own) as u64).collect();
        Some(ClockMark { end, busy, beside: Vec::new() })
    };
    rank.marks.iter().filter_map(mark_on_gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(ends: &[[u64; 3]]) -> RankFacts {
        let mark = |[end, own, other]: &[u64; 3]| ClockMark {
            end: *end,
            busy: vec![*end; 7],
            beside: vec![*own, *other],
        };
        RankFacts { marks: ends.iter().map(mark).collect(), ..RankFacts::default() }
    }

    #[test]
    fn another_cards_clock_is_used_where_the_runs_own_is_followed() {
        let marks = marks_on_gpu(&rank(&[[100, 100, 300], [200, 201, 600], [300, 302, 900]]), 1);
        assert_eq!(marks.iter().map(|mark| mark.end).collect::<Vec<_>>(), [297, 594, 891]);
        assert!(marks[2].busy[0] > 880);
        let astray = rank(&[[100, 100, 300], [200, 150, 600], [300, 200, 900]]);
        assert!(marks_on_gpu(&astray, 1).is_empty(), "one queue does not stand for its streams");
        assert!(marks_on_gpu(&rank(&[[100, 100, 300], [200, 201, 600]]), 7).is_empty());
    }

    #[test]
    fn an_amount_scales_with_its_kind() {
        let own = Interval::exact(memfit_devices::Bytes::from_mib(10));
        assert_eq!(scaled(20 << 20, own, 7 << 20), 14 << 20, "two of them");
        assert_eq!(scaled(0, own, 7 << 20), 0);
        assert_eq!(scaled(5, Interval::default(), 7), 5, "its kind is not known");
    }
}
