//! Real snapshots, if a folder of them is available: each is explained without a panic, and the tree of
//! holders sums to the total.
//!
//! `MEMFIT_TEST_SNAPSHOTS` names the folder.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::path::Path;

use memfit_allocator::{ReplayConditions, recording};
use memfit_explain::{Card, Case, Explanation, Holder, explain};
use memfit_recording::{Snapshot, Source, open};

fn adds_up(holder: &Holder) -> bool {
    let children: u64 = holder.children.iter().map(|child| child.bytes).sum();
    (holder.children.is_empty() || children == holder.bytes) && holder.children.iter().all(adds_up)
}

fn explained(snapshot: &Snapshot, file: &Path) -> Vec<Explanation> {
    let given = ReplayConditions::from_snapshot(snapshot);
    let Ok(recorded) = recording(snapshot, &given) else { panic!("{} is replayed", file.display()) };
    let tracks = recorded.recording.tracks.iter().zip(snapshot.devices());
    let explain = |(track, device): (_, usize)| {
        let (alloc_conf, card) = (String::new(), Card::default());
        explain(&Case { track, device: device as u8, card, given, alloc_conf, source: &|_| None })
    };
    tracks.filter_map(explain).collect()
}

#[test]
fn whatever_people_recorded_is_explained() {
    let programs = || concat!(env!("CARGO_MANIFEST_DIR"), "/../memfit-recording/tests/programs").into();
    let folder = std::env::var_os("MEMFIT_TEST_SNAPSHOTS").unwrap_or_else(programs);
    let mut explained_some = false;
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        let Ok((Source::Snapshot(snapshot), _)) = open(&file) else { continue };
        for explanation in explained(&snapshot, &file) {
            explained_some = true;
            let held: u64 = explanation.holders.iter().map(|holder| holder.bytes).sum();
            assert_eq!(held, explanation.moment.reserved, "{}", file.display());
            assert!(explanation.holders.iter().all(adds_up), "{}", file.display());
        }
    }
    assert!(explained_some, "the folder has no snapshot with a trace");
}
