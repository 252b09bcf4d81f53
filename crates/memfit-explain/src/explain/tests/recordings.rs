//! Recordings that do not begin with the program, or lack stacks, steps or modules.

use memfit_recording::{Origin, PoolRef, Recording, Span, StreamRef, Unknown};

use super::*;
use crate::{ExplainError, ExplainOverrides, NO_HISTORY, explain_recording, fullest_device, user_files};

/// Explanation without a limit, which describes the peak.
fn of_peak(track: &Track) -> Explanation {
    explained(track, None, "").unwrap()
}

fn held(explanation: &Explanation) -> Vec<(&str, u64)> {
    explanation.holders.iter().map(|holder| (holder.name.as_str(), holder.bytes)).collect()
}

#[test]
fn a_recording_of_only_what_was_in_use_has_no_history() {
    let explained = |before: u64, later: u64| {
        let mut run = Growing::default();
        for _ in 0..before + later {
            run.alloc(StackId::NONE, MIB, MIB);
        }
        run.track.unknown.push(Unknown::Before { blocks: before, bytes: before * MIB });
        of_peak(&run.track).unknown.contains(&NO_HISTORY.to_owned())
    };
    assert!(explained(3, 0));
    assert!(!explained(3, 1));
}

#[test]
fn a_block_from_before_that_is_freed_after_the_peak_counts_as_a_parameter() {
    let mut run = Growing::default();
    let own = run.stack(&[("train.py", "train", 7)]);
    let before = run.alloc(StackId::NONE, 512 * MIB, 512 * MIB);
    run.track.unknown.push(Unknown::Before { blocks: 1, bytes: 512 * MIB });
    run.alloc(own, 256 * MIB, 256 * MIB);
    run.free(before);
    assert_eq!(held(&of_peak(&run.track)), [("parameters", 512 * MIB), ("inputs", 256 * MIB)]);
}

#[test]
fn an_announced_optimizer_step_is_the_phase_where_no_stacks_were_recorded() {
    let mut run = Growing::default();
    run.alloc(StackId::NONE, 512 * MIB, 512 * MIB);
    let totals = run.totals();
    run.track.add_moment(MomentKind::Phase(Phase::Optimizer), 0, StackId::NONE, totals);
    let explanation = explained(&run.fail(StackId::NONE, 512 * MIB), Some(768 * MIB), "").unwrap();
    assert_eq!(explanation.moment.phase, Some(Phase::Optimizer));
}

#[test]
fn growth_is_found_without_steps_and_modules() {
    let mut run = Growing::default();
    let own = run.stack(&[("train.py", "train", 7)]);
    for _ in 0..8 {
        for phase in [Phase::Forward, Phase::Backward] {
            let totals = run.totals();
            run.track.add_moment(MomentKind::Phase(phase), 0, StackId::NONE, totals);
            if phase == Phase::Forward {
                run.alloc(own, 64 * MIB, 64 * MIB);
            }
        }
    }
    let explanation = explained(&run.fail(own, 64 * MIB), Some(512 * MIB), "").unwrap();
    assert_eq!(explanation.cause, Cause::Leaking, "{:?}", explanation.considered);
    assert_eq!(explanation.leaks[0].per_step, 64 * MIB);
}

#[test]
fn free_memory_between_blocks_is_measured() {
    let mut run = Growing::default();
    let reserve = |track: &mut Track, address: u64, pool: u16| {
        let span = Span {
            address,
            bytes: 20 * MIB,
            born: 0,
            freed: u32::MAX,
            stream: StreamRef::default(),
            pool: PoolRef(pool),
            device: 0,
            small: Some(false),
            expandable: false,
        };
        track.reserve(span, StackId::NONE, Totals::default());
    };
    run.track.pools.push((0, 1));
    // The first block begins where its segment does; the second segment is of a private pool.
    reserve(&mut run.track, 1 << 32, 0);
    reserve(&mut run.track, 1 << 40, 1);
    run.alloc(StackId::NONE, 15 * MIB, 15 * MIB);
    let totals = Totals { allocated: 15 * MIB, reserved: 40 * MIB, time_us: None };
    run.track.add_moment(MomentKind::Oom(64 * MIB), 0, StackId::NONE, totals);
    let found = explained(&run.track, Some(64 * MIB), "").unwrap().fragmentation;
    assert_eq!((found.unused, found.share), (25 * MIB, 0.625));
    assert_eq!((found.largest_free, found.free_blocks), (Some(20 * MIB), Some(2)));
    assert_eq!(found.in_private_pools, 20 * MIB);
}

/// A process with a block of this size on each device.
fn on_devices(bytes: &[u64]) -> Track {
    let mut track = Track::default();
    for (device, bytes) in (0..).zip(bytes) {
        let totals = Totals { allocated: *bytes, reserved: *bytes, time_us: None };
        track.alloc(&Block { address: 1 << 32, bytes: *bytes, device, ..Block::default() }, totals);
    }
    track
}

#[test]
fn the_device_that_is_asked_for_is_explained_or_else_the_fullest() {
    let recording =
        Recording { origin: Origin::default(), tracks: vec![on_devices(&[MIB, 3 * MIB, 2 * MIB])] };
    let explained = |device: Option<u32>| {
        let asked = ExplainOverrides { device, ..ExplainOverrides::default() };
        explain_recording(&asked, &recording, &|_| None).map(|explanation| explanation.device)
    };
    for (asked, device) in [(None, 1), (Some(0), 0), (Some(1), 1), (Some(2), 2)] {
        assert_eq!(explained(asked).unwrap(), device);
    }
    let Err(ExplainError::NoSuchDevice { device: 3, devices }) = explained(Some(3)) else { panic!() };
    assert_eq!(devices, [0, 1, 2]);
}

#[test]
fn the_fullest_device_is_the_first_of_equal_ones() {
    let fullest = |ranks: &[&[u64]]| {
        let tracks: Vec<Track> = ranks.iter().map(|bytes| on_devices(bytes)).collect();
        let recording = Recording { origin: Origin::default(), tracks };
        let (track, device) = fullest_device(&recording).unwrap();
        (recording.tracks.iter().position(|known| std::ptr::eq(known, track)).unwrap(), device)
    };
    assert_eq!(fullest(&[&[MIB], &[MIB, 2 * MIB]]), (1, 1));
    assert_eq!(fullest(&[&[2 * MIB], &[MIB, 2 * MIB]]), (0, 0));
}

#[test]
fn files_of_libraries_are_none_of_the_users() {
    let mut run = Growing::default();
    run.stack(&[MODULE, ("model.py", "forward", 3), ("train.py", "train", 7)]);
    assert_eq!(user_files(&run.track).into_iter().collect::<Vec<_>>(), ["model.py", "train.py"]);
}
