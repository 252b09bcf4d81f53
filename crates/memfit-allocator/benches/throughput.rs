//! Benchmark of the allocator on one core: events a second for a program like a training step, repeated; and
//! for given snapshots, the speed of verifying their traces and of replaying their calls, and the memory of
//! an event.
//!
//! `cargo bench -p memfit-allocator --bench throughput -- [FILE…]`

#![allow(clippy::print_stdout)] // Printing figures is what a benchmark is for.

use std::num::NonZeroU16;

use memfit_allocator::{
    Address, Allocator, Edit, Program, Release, ReplayConditions, Settings, SimulatedDevice, Stream, track,
    verify,
};
use memfit_recording::{
    PickleLimits, Segment, SegmentBlock, SegmentBlockState, Snapshot, StackId, TextId, TraceAction,
    TraceEvent,
};

const STEPS: usize = 1000;
const LAYERS: usize = 400;

/// Sizes of a network's activations and backward temporaries, spread by a fixed multiplicative sequence.
fn sizes() -> Vec<(u64, u64)> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    (0..LAYERS)
        .map(|_| {
            state = state.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
            let activation = 512 << (state % 16);
            (activation + state % 4096, (activation / 2).max(1))
        })
        .collect()
}

/// CPU time of this thread in nanoseconds, which does not depend on the machine's load.
fn processor_time() -> u64 {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    spent.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or_default()
}

fn run(conf: &str, sizes: &[(u64, u64)]) -> (usize, f64) {
    let settings = Settings::parse(conf, Release::NEWEST).expect("the settings are valid");
    let mut allocator = Allocator::new(SimulatedDevice::unlimited(), settings, Release::NEWEST);
    let mut events = 0;
    let mut get = |allocator: &mut Allocator<SimulatedDevice>, size| -> Address {
        events += 1;
        allocator.malloc(size, Stream(0)).expect("the device never runs out")
    };
    let parameters: Vec<Address> = sizes.iter().map(|(_, size)| get(&mut allocator, *size)).collect();
    let begun = processor_time();
    for _ in 0..STEPS {
        let mut kept = Vec::with_capacity(LAYERS);
        for (activation, temporary) in sizes {
            let scratch = get(&mut allocator, *temporary);
            kept.push(get(&mut allocator, *activation));
            allocator.free(scratch).expect("it was handed out");
        }
        let mut gradients = Vec::with_capacity(LAYERS);
        for (activation, gradient) in sizes.iter().rev() {
            let incoming = get(&mut allocator, *activation);
            gradients.push(get(&mut allocator, *gradient));
            allocator.free(kept.pop().expect("one was kept for each layer")).expect("it was handed out");
            allocator.free(incoming).expect("it was handed out");
        }
        for gradient in gradients {
            allocator.free(gradient).expect("it was handed out");
        }
    }
    let seconds = (processor_time() - begun) as f64 / 1e9;
    drop(parameters);
    // An allocation and a free are one event each; blocks alive at the end were not freed.
    (2 * (events - LAYERS), seconds)
}

/// Shortest CPU time of a few rounds in seconds. Each round is repeated until it is long enough to measure,
/// since a thread's CPU time has a resolution of some milliseconds.
fn best(mut work: impl FnMut()) -> f64 {
    const MIN_NANOSECONDS: u64 = 200_000_000;
    let mut times = 1_u64;
    let goes = (0..5).map(|_| {
        loop {
            let begun = processor_time();
            (0..times).for_each(|_| work());
            let spent = processor_time() - begun;
            if spent >= MIN_NANOSECONDS {
                break spent as f64 / 1e9 / times as f64;
            }
            times *= 2;
        }
    });
    goes.fold(f64::INFINITY, f64::min)
}

fn of_file(file: &str) {
    let reader = std::fs::File::open(file).expect("the file can be read");
    let (snapshot, _) = Snapshot::read(reader, PickleLimits::default()).expect("it is a snapshot");
    let given = ReplayConditions::from_snapshot(&snapshot);
    let Some(device) = snapshot.devices().into_iter().max_by_key(|device| snapshot.trace(*device).len())
    else {
        return;
    };
    let events = snapshot.trace(device).len();
    let followed = best(|| {
        verify(&snapshot, device, &given).expect("the state is valid");
    });
    let tracked = track(&snapshot, device, &given).expect("the state is valid").track;
    let program = Program::from_track(&tracked, device as u8);
    let again = best(|| {
        program.run(&given, |_| Edit::Keep);
    });
    let name = file.rsplit('/').next().unwrap_or(file);
    let million = |seconds: f64| events as f64 / seconds / 1e6;
    println!(
        "{name}: {events} events, followed {:.1} million a second, made again {:.1} million a second, {:.1} bytes an event",
        million(followed),
        million(again),
        tracked.memory() as f64 / tracked.moments().len().max(1) as f64,
    );
}

/// A trace that begins in the middle of a run, with `segments` free segments of one size and unknown ages:
/// each round allocates all of them in the order of their ages, and frees them.
fn with_ties(segments: u64, rounds: u64) -> Snapshot {
    const SIZE: u64 = 20 << 20;
    // 97 is coprime to the powers of two that this is called with.
    let place = |rank: u64| 0x7F00_0000_0000 + rank * 97 % segments * (2 * SIZE);
    let mut snapshot = Snapshot { streams: vec![0], pools: vec![(0, 0)], ..Snapshot::default() };
    for rank in 0..segments {
        let address = 0x7F00_0000_0000 + rank * (2 * SIZE);
        let at = snapshot.blocks.len();
        snapshot.blocks.push(SegmentBlock {
            address,
            size: SIZE,
            requested: SIZE,
            state: SegmentBlockState::Inactive,
            stack: StackId::NONE,
        });
        snapshot.segments.push(Segment {
            device: 0,
            address,
            size: SIZE,
            stream: 0,
            small: false,
            pool: (0, 0),
            expandable: false,
            blocks: at..at + 1,
        });
    }
    let event = |action, rank| TraceEvent {
        address: place(rank),
        size: SIZE,
        time_us: 0,
        stack: StackId::NONE,
        metadata: TextId::NONE,
        stream: 0,
        pool: NonZeroU16::new(1),
        category: None,
        action,
    };
    for _ in 0..rounds {
        snapshot.events.extend((0..segments).map(|rank| event(TraceAction::Alloc, rank)));
        for rank in 0..segments {
            snapshot.events.push(event(TraceAction::FreeRequested, rank));
            snapshot.events.push(event(TraceAction::FreeCompleted, rank));
        }
    }
    snapshot.traces.push(0..snapshot.events.len());
    snapshot
}

fn follow_ties() {
    for segments in [16, 128, 1024] {
        let snapshot = with_ties(segments, 300_000 / segments);
        let given = ReplayConditions::from_snapshot(&snapshot);
        let found = verify(&snapshot, 0, &given).expect("the state is valid");
        assert_eq!((found.told, found.mismatches.len()), (segments - 1, 0), "one tie for each but the last");
        let followed = best(|| {
            verify(&snapshot, 0, &given).expect("the state is valid");
        });
        let events = snapshot.events.len();
        let name = format!("ties among {segments} segments");
        println!("{name:<28} {events} events, {:.1} million a second", events as f64 / followed / 1e6);
    }
}

fn main() {
    let files: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    for file in &files {
        of_file(file);
    }
    if !files.is_empty() {
        return;
    }
    let sizes = sizes();
    for conf in ["", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:4"] {
        let (events, seconds) = run(conf, &sizes);
        let name = if conf.is_empty() { "default settings" } else { conf };
        println!("{name:<28} {events} events, {:.1} million a second", events as f64 / seconds / 1e6);
    }
    follow_ties();
}
