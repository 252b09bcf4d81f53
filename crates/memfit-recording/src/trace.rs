//! Traces of PyTorch's profiler (Kineto) and others in Chrome's format, as far as they tell of memory.
//!
//! The file is read in one pass: of millions of events, those that say `[memory]` and those that the program
//! announced are kept. A trace has the allocator's totals, so no replay is needed; it has no segments.

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

/// An event of the device's allocator: bytes are negative where a block was given back.
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

/// Something that the program announced.
#[derive(Clone, Debug, PartialEq)]
struct RangeEvent {
    time_ns: i64,
    length_ns: i64,
    process: u64,
    thread: u64,
    name: String,
}

/// What is kept of a trace.
#[derive(Debug, Default)]
struct Kept {
    memory: Vec<MemoryEvent>,
    ranges: Vec<RangeEvent>,
    /// Name and memory of the first device, where they are told.
    device: Option<(String, Option<u64>)>,
    rank: Option<u32>,
    /// Events that say `[memory]` and lack something.
    malformed: u64,
    /// Whether there were any events at all.
    any: bool,
}

/// Ranges that a profiler's own steps make: each is one training step.
const STEP: &str = "ProfilerStep#";
/// What optimizers announce.
const OPTIMIZER: &str = "Optimizer.step";

/// What is done at a time, in the order of these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    End(usize),
    Begin(usize),
    Memory(usize),
}

/// A recording of what was kept: one track for each process.
fn recording(mut kept: Kept, problems: &mut Vec<Problem>) -> Recording {
    if kept.malformed > 0 {
        problems.push(Problem::Malformed(kept.malformed));
    }
    // Some writers put several devices' events one behind the other.
    kept.memory.sort_by_key(|event| event.time_ns);
    kept.ranges.sort_by_key(|range| (range.time_ns, -range.length_ns));
    let mut processes: Vec<u64> = kept.memory.iter().map(|event| event.process).collect();
    processes.sort_unstable();
    processes.dedup();
    // A file may name any number of processes, but no machine has so many that use a device.
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
    let mut order: Vec<(i64, What)> = Vec::new();
    for (index, event) in kept.memory.iter().enumerate().filter(|(_, event)| of_process(event.process)) {
        order.push((event.time_ns, What::Memory(index)));
    }
    for (index, range) in kept.ranges.iter().enumerate().filter(|(_, range)| of_process(range.process)) {
        order.push((range.time_ns, What::Begin(index)));
        order.push((range.time_ns.saturating_add(range.length_ns), What::End(index)));
    }
    order.sort_unstable();
    let mut threads: HashMap<u64, u32> = HashMap::new();
    let mut open: HashMap<usize, u32> = HashMap::new();
    let mut live: HashMap<(u8, u64), u32> = HashMap::new();
    let (mut steps, mut before) = (0, 0_u64);
    let (mut phase, mut lost) = (Phase::Other, 0_u64);
    // Where the profiler counts steps, it is believed; else optimizers are.
    let counts = kept.ranges.iter().any(|range| range.name.starts_with(STEP));
    for (time, what) in order {
        // Times of the profiler are nanoseconds since 1970, or since the machine was started.
        let time_us = u64::try_from(time / 1000).ok().filter(|time| *time != 0);
        let at = Totals { time_us, ..Totals::default() };
        match what {
            What::Begin(index) => {
                let range = &kept.ranges[index];
                let next = threads.len() as u32 + 1;
                let thread = *threads.entry(range.thread).or_insert(next);
                let name = track.texts.intern(&range.name);
                open.insert(index, track.begin_range(name, RangeSource::Annotation, thread, time_us));
                if range.name.starts_with(OPTIMIZER) {
                    phase = Phase::Optimizer;
                    track.tell(MomentKind::Phase(phase), 0, StackId::NONE, at);
                }
            }
            What::End(index) => {
                let Some(range) = open.remove(&index) else { continue };
                track.end_range(range, time_us);
                let name = &kept.ranges[index].name;
                if name.starts_with(OPTIMIZER) {
                    phase = Phase::Other;
                    track.tell(MomentKind::Phase(phase), 0, StackId::NONE, at);
                }
                if name.starts_with(STEP) || (!counts && name.starts_with(OPTIMIZER)) {
                    steps += 1;
                    track.tell(MomentKind::Step(steps), 0, StackId::NONE, at);
                }
            }
            What::Memory(index) => {
                let event = kept.memory[index];
                let totals = Totals { allocated: event.allocated, reserved: event.reserved, time_us };
                let key = (event.device, event.address);
                if event.bytes < 0 {
                    match live.remove(&key) {
                        Some(block) => {
                            track.free(block, event.device, StackId::NONE, totals);
                        }
                        // It was there before the trace began.
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
