//! Properties that hold for every program, under all settings and releases.

use std::collections::BTreeMap;

use memfit_allocator::{
    Address, AllocationError, Allocator, CaptureFilter, Past, PoolId, Release, SegmentView, Settings,
    SimulatedDevice, Stream,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 512 * MIB;

#[derive(Clone, Debug)]
enum Step {
    Alloc { size: u64, stream: u64 },
    Free { which: prop::sample::Index },
    RecordStream { which: prop::sample::Index, stream: u64 },
    FinishEvents,
    EmptyCache,
    BeginCapture { pool: u64 },
    EndCapture { pool: u64 },
    ReleasePool { pool: u64 },
    Fraction { percent: u8 },
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 1_u64..4096,
        3 => 1_u64..=MIB,
        3 => MIB..10 * MIB,
        2 => 10 * MIB..100 * MIB,
        1 => prop::sample::select(vec![512, 513, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB, 19 * MIB]),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        24 => (size(), 0_u64..3).prop_map(|(size, stream)| Step::Alloc { size, stream }),
        20 => index().prop_map(|which| Step::Free { which }),
        3 => (index(), 0_u64..3).prop_map(|(which, stream)| Step::RecordStream { which, stream }),
        2 => Just(Step::FinishEvents),
        1 => Just(Step::EmptyCache),
        1 => (1_u64..3).prop_map(|pool| Step::BeginCapture { pool }),
        2 => (1_u64..3).prop_map(|pool| Step::EndCapture { pool }),
        1 => (1_u64..3).prop_map(|pool| Step::ReleasePool { pool }),
        1 => (20_u8..=100).prop_map(|percent| Step::Fraction { percent }),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    let confs = vec![
        "",
        "max_split_size_mb:32",
        "roundup_power2_divisions:4",
        "garbage_collection_threshold:0.5",
        "expandable_segments:True",
        "expandable_segments:True,max_split_size_mb:64",
        "large_segment_size_mb:64,max_non_split_rounding_mb:40,max_split_size_mb:25",
        "expandable_segments:True,large_segment_size_mb:32,garbage_collection_threshold:0.3",
    ];
    prop::sample::select(confs)
        .prop_map(|conf| Settings::parse(conf, Release::NEWEST).expect("the settings are valid"))
}

fn release() -> impl Strategy<Value = Release> {
    (0_u16..=15).prop_map(|minor| Release::new(2, minor))
}

/// The program's own state: its blocks, with the requested sizes.
#[derive(Default)]
struct Program {
    live: BTreeMap<Address, u64>,
}

impl Program {
    fn pick(&self, which: prop::sample::Index) -> Option<Address> {
        let addresses: Vec<Address> = self.live.keys().copied().collect();
        (!addresses.is_empty()).then(|| *which.get(&addresses))
    }

    fn hold(&mut self, address: Address, size: u64) {
        let before = self.live.range(..=address).next_back();
        assert!(before.is_none_or(|(start, size)| start.0 + size <= address.0), "{address} is in use");
        let after = self.live.range(address..).next();
        assert!(
            after.is_none_or(|(start, _)| address.0 + size <= start.0),
            "{address} runs into another block"
        );
        self.live.insert(address, size);
    }
}

fn run(allocator: &mut Allocator<SimulatedDevice>, steps: Vec<Step>) -> Program {
    let mut program = Program::default();
    for step in steps {
        match step {
            Step::Alloc { size, stream } => match allocator.malloc(size, Stream(stream)) {
                Ok(address) => program.hold(address, size),
                Err(AllocationError::OutOfMemory(error)) => {
                    assert_eq!(error.requested, size);
                    let limit = error.allowed.unwrap_or(u64::MAX).min(CAPACITY);
                    let held = allocator.stats().reserved_bytes.all.current as u64;
                    // Expandable segments map whole pages, which may exceed the segment size.
                    let page = if allocator.settings().expandable_segments {
                        allocator.settings().large_segment_size
                    } else {
                        1
                    };
                    let wanted = error.segment.next_multiple_of(page);
                    // With a limit on splitting, PyTorch may release oversize blocks, find them insufficient,
                    // and give up without asking the device again.
                    let gave_up = allocator.settings().max_split_size != u64::MAX;
                    assert!(gave_up || error.segment + held > limit || error.device_free < wanted);
                }
                Err(error) => panic!("{error}"),
            },
            Step::Free { which } => {
                if let Some(address) = program.pick(which) {
                    allocator.free(address).expect("the program holds it");
                    program.live.remove(&address);
                }
            }
            Step::RecordStream { which, stream } => {
                if let Some(address) = program.pick(which) {
                    allocator.record_stream(address, Stream(stream)).expect("the program holds it");
                }
            }
            Step::FinishEvents => allocator.device_mut().finish_events(),
            Step::EmptyCache => allocator.empty_cache(),
            // Beginning a capture twice, ending one that did not begin, and similar calls are errors without
            // any effect.
            Step::BeginCapture { pool } => {
                let _ = allocator.begin_capture(PoolId(0, pool), CaptureFilter::Stream(Stream(pool)));
            }
            Step::EndCapture { pool } => {
                let _ = allocator.end_capture(PoolId(0, pool));
            }
            Step::ReleasePool { pool } => {
                if allocator.end_capture(PoolId(0, pool)).is_ok() {
                    allocator.release_pool(PoolId(0, pool)).expect("the capture held it");
                }
            }
            Step::Fraction { percent } => allocator.set_memory_fraction(f64::from(percent) / 100.0),
        }
        allocator.check().unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(allocator.device().used(), allocator.stats().reserved_bytes.all.current as u64);
    }
    program
}

fn new(settings: Settings, release: Release) -> Allocator<SimulatedDevice> {
    let mut device = SimulatedDevice::new(CAPACITY);
    device.hold_events();
    Allocator::new(device, settings, release)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn statistics_match_blocks_and_blocks_never_overlap(
        settings in settings(),
        release in release(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut allocator = new(settings, release);
        let program = run(&mut allocator, steps);
        let held: i64 = program.live.values().map(|size| *size as i64).sum();
        let stats = allocator.stats();
        prop_assert_eq!(stats.allocation.all.current as usize, program.live.len());
        prop_assert!(stats.allocated_bytes.all.current >= held);
        prop_assert!(stats.reserved_bytes.all.current >= stats.active_bytes.all.current);
        for figure in [&stats.allocated_bytes, &stats.reserved_bytes, &stats.active, &stats.segment] {
            prop_assert_eq!(figure.all.current, figure.all.allocated - figure.all.freed);
            prop_assert!(figure.all.peak >= figure.all.current);
        }
    }

    #[test]
    fn giving_everything_back_leaves_nothing(
        settings in settings(),
        release in release(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut allocator = new(settings, release);
        let program = run(&mut allocator, steps);
        for address in program.live.into_keys() {
            allocator.free(address).expect("the program holds it");
        }
        for pool in 1..3 {
            let _ = allocator.end_capture(PoolId(0, pool));
            while allocator.release_pool(PoolId(0, pool)).is_ok() {}
        }
        allocator.empty_cache();
        // PyTorch increments a count for each request that grows an expandable segment of a private pool, and
        // decrements it for each range that is unmapped: at zero it forgets the pool, which may still hold
        // memory.
        let forgotten = |segment: &SegmentView| segment.expandable && segment.pool != PoolId::DEFAULT;
        let left = allocator.segments();
        prop_assert!(left.iter().all(forgotten), "{:?}", left);
        prop_assert_eq!(allocator.device().used(), left.iter().map(|segment| segment.size).sum::<u64>());
        let stats = allocator.stats();
        prop_assert_eq!((stats.active.all.current, stats.inactive_split_bytes.all.current), (0, 0));
    }

    #[test]
    fn taking_from_the_cache_and_giving_back_changes_nothing(
        settings in settings(),
        release in release(),
        steps in prop::collection::vec(step(), 1..80),
        size in size(),
        stream in 0_u64..3,
    ) {
        let mut allocator = new(settings, release);
        run(&mut allocator, steps);
        for pool in 1..3 {
            let _ = allocator.end_capture(PoolId(0, pool));
        }
        // Blocks that wait for events may become free at the next request, so their events are completed
        // first.
        allocator.device_mut().finish_events();
        let _ = allocator.malloc(1, Stream(9));
        prop_assume!(allocator.is_cached(PoolId::DEFAULT, size, Stream(stream)));
        let places = |allocator: &Allocator<SimulatedDevice>| -> Vec<_> {
            let segments = allocator.segments();
            segments
                .iter()
                .flat_map(|segment| segment.blocks.iter().map(|block| (block.address, block.size, block.state)))
                .collect()
        };
        let before = (places(&allocator), allocator.stats().reserved_bytes.all.current);
        let address = allocator.malloc(size, Stream(stream)).expect("it is cached");
        allocator.free(address).expect("it was handed out");
        prop_assert_eq!((places(&allocator), allocator.stats().reserved_bytes.all.current), before);
    }

    #[test]
    fn the_same_program_does_the_same_again(
        settings in settings(),
        release in release(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let (mut first, mut second) = (new(settings, release), new(settings, release));
        run(&mut first, steps.clone());
        run(&mut second, steps);
        prop_assert_eq!(first.segments(), second.segments());
        prop_assert_eq!(first.stats(), second.stats());
    }

    #[test]
    fn a_state_that_is_taken_up_again_goes_on_alike(
        settings in settings(),
        steps in prop::collection::vec(step(), 1..60),
        more in prop::collection::vec((size(), 0_u64..3), 1..30),
    ) {
        let plain = Settings { garbage_collection_threshold: 0.0, ..settings };
        let mut original = new(plain, Release::NEWEST);
        run(&mut original, steps);
        for pool in 1..3 {
            let _ = original.end_capture(PoolId(0, pool));
        }
        original.set_memory_fraction(1.0);
        original.device_mut().finish_events();
        original.empty_cache();
        let segments = original.segments();
        let mut restored =
            Allocator::restore(original.device().clone(), plain, Release::NEWEST, &segments, |_| Past::default())
                .expect("the state is valid");
        restored.check().unwrap_or_else(|problem| panic!("{problem}"));
        prop_assert_eq!(restored.segments(), segments);
        for (size, stream) in more {
            // Only cached blocks are certain to have the same address: a state does not contain the start of
            // a reservation.
            let (pool, stream) = (PoolId::DEFAULT, Stream(stream));
            if original.is_cached(pool, size, stream) && restored.is_cached(pool, size, stream) && !plain.expandable_segments {
                prop_assert_eq!(original.malloc(size, stream), restored.malloc(size, stream));
            }
            restored.check().unwrap_or_else(|problem| panic!("{problem}"));
        }
    }
}
