//! Memory events of traces by PyTorch's profiler (Kineto) and other writers of Chrome's format.
//!
//! The file is read in one pass. Of millions of events, those named `[memory]` and the ranges announced by
//! the program are kept. A trace contains the allocator's totals, so no replay is needed; it has no segments.

mod read;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use memfit_vocabulary::Phase;

use crate::{
    Block, MomentKind, Origin, OriginKind, RangeSource, Recording, StackId, Totals, Track, Unknown,
    snapshot::Problem,
};
pub(crate) use read::read;

/// Event of the device's allocator; bytes are negative for a free.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MemoryEvent {
    time_ns: i64,
    process: u64,
    device: u8,
    address: u64,
    bytes: i64,
    allocated: u64,
    reserved: u64,
}

/// Range that the program announced.
#[derive(Clone, Debug, PartialEq)]
struct RangeEvent {
    time_ns: i64,
    length_ns: i64,
    process: u64,
    thread: u64,
    name: String,
}

/// Events kept from a trace.
#[derive(Debug, Default)]
struct Kept {
    memory: Vec<MemoryEvent>,
    ranges: Vec<RangeEvent>,
    /// Name and memory of the first device, if the trace has them.
    device: Option<(String, Option<u64>)>,
    rank: Option<u32>,
    /// Number of `[memory]` events with missing fields.
    malformed: u64,
    /// `true` if there were any events at all.
    any: bool,
}

/// Prefix of the ranges of a profiler's steps, each one training step.
const STEP: &str = "ProfilerStep#";
/// Prefix of the ranges of optimizers.
const OPTIMIZER: &str = "Optimizer.step";

/// Kind of event, in the order in which simultaneous events are applied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    End(usize),
    Begin(usize),
    Memory(usize),
}

/// Builds a recording of the kept events, with one track for each process.
fn recording(mut kept: Kept, problems: &mut Vec<Problem>) -> Recording {
    if kept.malformed > 0 {
        problems.push(Problem::Malformed(kept.malformed));
    }
    // Some writers store the events of several devices one device after another.
    kept.memory.sort_by_key(|event| event.time_ns);
    kept.ranges.sort_by_key(|range| (range.time_ns, -range.length_ns));
    let mut processes: Vec<u64> = kept.memory.iter().map(|event| event.process).collect();
    processes.sort_unstable();
    processes.dedup();
    // Limited, since a hostile file may name any number of processes.
    processes.truncate(256);
    let (device, capacity) =
        kept.device.clone().map_or((None, None), |(name, capacity)| (Some(name), capacity));
    let origin = Origin { kind: OriginKind::ProfilerTrace, device, capacity, ..Origin::default() };
    let tracks = processes.iter().map(|process| track(&kept, *process)).collect();
    Recording { origin, tracks }
}

fn track(kept: &Kept, process: u64) -> Track {
    let mut track = Track { pid: process as u32, rank: kept.rank, ..Track::default() };
    let of_process = |other: u64| other == process;
    let mut order: Vec<(i64, EventKind)> = Vec::new();
    for (index, event) in kept.memory.iter().enumerate().filter(|(_, event)| of_process(event.process)) {
        order.push((event.time_ns, EventKind::Memory(index)));
    }
    for (index, range) in kept.ranges.iter().enumerate().filter(|(_, range)| of_process(range.process)) {
        order.push((range.time_ns, EventKind::Begin(index)));
        order.push((range.time_ns.saturating_add(range.length_ns), EventKind::End(index)));
    }
    order.sort_unstable();
    let mut threads: HashMap<u64, u32> = HashMap::new();
    let mut open: HashMap<usize, u32> = HashMap::new();
    let mut live: HashMap<(u8, u64), u32> = HashMap::new();
    let (mut steps, mut before) = (0, 0_u64);
    let (mut phase, mut lost) = (Phase::Other, 0_u64);
    // The profiler's own steps take precedence over optimizer steps.
    let counts = kept.ranges.iter().any(|range| range.name.starts_with(STEP));
    for (time, what) in order {
        // The profiler's times are nanoseconds since 1970 or since the machine started.
        let time_us = u64::try_from(time / 1000).ok().filter(|time| *time != 0);
        let at = Totals { time_us, ..Totals::default() };
        match what {
            EventKind::Begin(index) => {
                let range = &kept.ranges[index];
                let next = threads.len() as u32 + 1;
                let thread = *threads.entry(range.thread).or_insert(next);
                let name = track.texts.intern(&range.name);
                open.insert(index, track.begin_range(name, RangeSource::Annotation, thread, time_us));
                if range.name.starts_with(OPTIMIZER) {
                    phase = Phase::Optimizer;
                    track.add_moment(MomentKind::Phase(phase), 0, StackId::NONE, at);
                }
            }
            EventKind::End(index) => {
                let Some(range) = open.remove(&index) else { continue };
                track.end_range(range, time_us);
                let name = &kept.ranges[index].name;
                if name.starts_with(OPTIMIZER) {
                    phase = Phase::Other;
                    track.add_moment(MomentKind::Phase(phase), 0, StackId::NONE, at);
                }
                if name.starts_with(STEP) || (!counts && name.starts_with(OPTIMIZER)) {
                    steps += 1;
                    track.add_moment(MomentKind::Step(steps), 0, StackId::NONE, at);
                }
            }
            EventKind::Memory(index) => {
                let event = kept.memory[index];
                let totals = Totals { allocated: event.allocated, reserved: event.reserved, time_us };
                let key = (event.device, event.address);
                if event.bytes < 0 {
                    match live.remove(&key) {
                        Some(block) => {
                            track.free(block, event.device, StackId::NONE, totals);
                        }
                        // The block was allocated before the trace began.
                        None => {
                            (lost, before) = (lost + 1, before.saturating_add(event.bytes.unsigned_abs()));
                        }
                    }
                } else {
                    if let Some(block) = live.remove(&key) {
                        track.lose(block);
                    }
                    let bytes = event.bytes.unsigned_abs();
                    let block = Block {
                        address: event.address,
                        bytes,
                        device: event.device,
                        phase,
                        ..Block::default()
                    };
                    live.insert(key, track.alloc(&block, totals));
                }
            }
        }
    }
    track.unknown.extend([Unknown::Segments, Unknown::Stacks, Unknown::Modules, Unknown::Requests]);
    if lost > 0 {
        track.unknown.push(Unknown::Before { blocks: lost, bytes: before });
    }
    if steps == 0 {
        track.unknown.push(Unknown::Steps);
    }
    track.shrink();
    track
}
