//! A track as timeline viewers draw it: counters, nested slices, instants.

use std::collections::HashMap;
use std::io;

use memfit_vocabulary::Phase;

use crate::{MomentKind, NEVER, Recording, Track};

/// Row of slices in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Lane {
    /// Phases and steps.
    Phases,
    /// Ranges that the program announced.
    Ranges,
    /// Module calls on a thread.
    Thread(u32),
}

impl Lane {
    pub(super) fn name(self) -> String {
        match self {
            Self::Phases => "phases and steps".to_owned(),
            Self::Ranges => "ranges".to_owned(),
            Self::Thread(thread) => format!("modules on thread {thread}"),
        }
    }

    /// Number that is unique to the lane.
    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Phases => 1,
            Self::Ranges => 2,
            Self::Thread(thread) => 10 + thread as u64,
        }
    }
}

/// Event to draw, in one process.
pub(super) enum Mark<'text> {
    Begin(Lane, &'text str),
    End(Lane),
    Instant(Lane, String),
    /// Allocator event on a device: name, address and bytes (negative for a free), then the totals.
    Memory {
        device: u8,
        address: u64,
        bytes: i64,
        allocated: u64,
        reserved: u64,
    },
}

/// Output format of a timeline.
pub(super) trait Draw {
    /// Begins a process with its number, process id and name.
    fn process(&mut self, number: usize, pid: u32, name: &str, track: &Track) -> io::Result<()>;
    /// Draws a mark at a time in microseconds.
    fn mark(&mut self, number: usize, time_us: u64, mark: &Mark<'_>) -> io::Result<()>;
}

/// Draws all tracks. Without recorded times, moments are drawn one microsecond apart.
pub(super) fn draw(recording: &Recording, to: &mut impl Draw) -> io::Result<()> {
    for (number, track) in recording.tracks.iter().enumerate() {
        let name = match (track.rank, recording.origin.device.as_deref()) {
            (Some(rank), Some(device)) => format!("rank {rank} on {device}"),
            (Some(rank), None) => format!("rank {rank}"),
            (None, Some(device)) => format!("PyTorch on {device}"),
            (None, None) => "PyTorch".to_owned(),
        };
        to.process(number, track.pid, &name, track)?;
        Tracer { track, number, to, open: HashMap::new(), phase: Phase::Other }.trace()?;
    }
    Ok(())
}

struct Tracer<'a, D> {
    track: &'a Track,
    number: usize,
    to: &'a mut D,
    /// Number of open slices in each lane.
    open: HashMap<Lane, u32>,
    phase: Phase,
}

impl<D: Draw> Tracer<'_, D> {
    fn trace(mut self) -> io::Result<()> {
        let track = self.track;
        let timed = track.moments().iter().any(|moment| moment.time_us.is_some());
        let mut now = 0;
        for (index, moment) in (0_u64..).zip(track.moments()) {
            now = if timed { moment.time_us.unwrap_or(now).max(now) } else { index };
            self.moment(now, &moment)?;
        }
        // Slices that are still open are closed at the end.
        let open: Vec<(Lane, u32)> = self.open.drain().collect();
        for (lane, count) in open {
            for _ in 0..count {
                self.to.mark(self.number, now, &Mark::End(lane))?;
            }
        }
        Ok(())
    }

    fn moment(&mut self, now: u64, moment: &crate::Moment) -> io::Result<()> {
        let track = self.track;
        match moment.kind {
            MomentKind::Alloc(block) | MomentKind::Free(block) => {
                let Some(block) = track.block(block) else { return Ok(()) };
                let sign = if matches!(moment.kind, MomentKind::Alloc(_)) { 1 } else { -1 };
                let bytes = sign * i64::try_from(block.requested.unwrap_or(block.bytes)).unwrap_or(i64::MAX);
                let (device, allocated, reserved) = (moment.device, moment.allocated, moment.reserved);
                self.mark(now, &Mark::Memory { device, address: block.address, bytes, allocated, reserved })
            }
            MomentKind::Phase(phase) => {
                if self.phase != Phase::Other {
                    self.end(now, Lane::Phases)?;
                }
                self.phase = phase;
                if phase == Phase::Other { Ok(()) } else { self.begin(now, Lane::Phases, phase.name()) }
            }
            MomentKind::Step(step) => {
                self.mark(now, &Mark::Instant(Lane::Phases, format!("step {step} complete")))
            }
            MomentKind::Oom(bytes) => {
                self.mark(now, &Mark::Instant(Lane::Phases, format!("out of memory: {bytes} bytes")))
            }
            MomentKind::Snapshot => self.mark(now, &Mark::Instant(Lane::Phases, "snapshot".to_owned())),
            MomentKind::Enter(call) => {
                let Some(call) = track.calls.get(call as usize) else { return Ok(()) };
                self.begin(now, Lane::Thread(call.thread), track.texts.get(call.module))
            }
            MomentKind::Exit(call) => {
                let Some(call) = track.calls.get(call as usize) else { return Ok(()) };
                self.end(now, Lane::Thread(call.thread))
            }
            MomentKind::RangeBegin(range) => match track.ranges.get(range as usize) {
                Some(range) if range.ended != NEVER => {
                    self.begin(now, Lane::Ranges, track.texts.get(range.name))
                }
                _ => Ok(()),
            },
            MomentKind::RangeEnd(_) => self.end(now, Lane::Ranges),
            _ => Ok(()),
        }
    }

    fn mark(&mut self, now: u64, mark: &Mark<'_>) -> io::Result<()> {
        self.to.mark(self.number, now, mark)
    }

    fn begin(&mut self, now: u64, lane: Lane, name: &str) -> io::Result<()> {
        *self.open.entry(lane).or_default() += 1;
        self.mark(now, &Mark::Begin(lane, name))
    }

    fn end(&mut self, now: u64, lane: Lane) -> io::Result<()> {
        match self.open.get_mut(&lane) {
            Some(open) if *open > 0 => {
                *open -= 1;
                self.mark(now, &Mark::End(lane))
            }
            _ => Ok(()),
        }
    }
}
