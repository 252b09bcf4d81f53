//! Traces of PyTorch's own allocator, if a folder of them is available: every address and every segment is
//! predicted, and also the statistics if they were saved with a trace.
//!
//! The folder is `tests/programs` of memfit-recording, or the one that `MEMFIT_TEST_SNAPSHOTS` names.
//! `scripts/replay/random_programs.py` fills one.

use std::fs;
use std::path::{Path, PathBuf};

use memfit_allocator::{ReplayConditions, Stats, Tally, Verification, verify};
use memfit_recording::{PickleLimits, Snapshot};
use serde_json::Value;

fn pickles(folder: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder)
        .expect("the folder can be listed")
        .map(|file| file.expect("so can its files").path());
    let is_pickle = |file: &PathBuf| {
        file.extension().is_some_and(|extension| extension == "pickle" || extension == "pkl")
    };
    let mut files: Vec<PathBuf> = files.filter(is_pickle).collect();
    files.sort();
    files
}

/// Facts that a program saved with its snapshot.
fn facts(file: &Path) -> Option<Value> {
    let text = fs::read_to_string(file.with_extension("json")).ok()?;
    Some(serde_json::from_str(&text).expect("the facts are JSON"))
}

fn given(snapshot: &Snapshot, facts: Option<&Value>) -> ReplayConditions {
    let torch = facts.map(|facts| facts["torch"].as_str().expect("the facts name torch's version"));
    let release = torch.map(|torch| torch.parse().expect("which is a version"));
    let mut given = ReplayConditions::from_snapshot_of(snapshot, release);
    if let Some(facts) = facts {
        given.capacity = facts["capacity"].as_u64().expect("the facts give the capacity");
        if let Some(fraction) = facts["fraction"].as_f64() {
            given.settings.memory_fraction = Some(fraction);
        }
    }
    given
}

/// Not compared: a trace does not always distinguish a retried request from an emptied cache, and does not
/// contain rejected requests.
const NOT_TRACED: [&str; 3] = ["num_alloc_retries", "num_sync_all_streams", "num_oom_rejections"];

/// Statistics that differ from PyTorch's.
fn differences(stats: &Stats, given: &Value) -> Vec<String> {
    let differs = |(name, ours): (String, i64)| {
        let theirs = given[&name].as_i64().filter(|theirs| *theirs != ours)?;
        (!NOT_TRACED.contains(&name.as_str())).then(|| format!("{name}: {ours} instead of {theirs}"))
    };
    stats.entries().into_iter().filter_map(differs).collect()
}

#[derive(Default)]
struct Sums {
    addresses: Tally,
    segments: Tally,
    blocks: Tally,
    statistics: Tally,
}

impl Sums {
    fn add(&mut self, found: &Verification) {
        for (sum, tally) in [
            (&mut self.addresses, found.addresses),
            (&mut self.segments, found.segments),
            (&mut self.blocks, found.blocks),
        ] {
            sum.predicted += tally.predicted;
            sum.matching += tally.matching;
        }
    }
}

#[test]
fn every_address_and_every_segment_is_predicted() {
    let programs = || format!("{}/../memfit-recording/tests/programs", env!("CARGO_MANIFEST_DIR"));
    let folder = std::env::var("MEMFIT_TEST_SNAPSHOTS").unwrap_or_else(|_| programs());
    let mut wrong = Vec::new();
    let mut sums = Sums::default();
    for file in pickles(&folder) {
        let reader = fs::File::open(&file).expect("the file is there");
        let (snapshot, _) = Snapshot::read(reader, PickleLimits::default()).expect("it is a snapshot");
        let facts = facts(&file);
        let given = given(&snapshot, facts.as_ref());
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for device in snapshot.devices() {
            let found = verify(&snapshot, device, &given).unwrap_or_else(|error| panic!("{name}: {error}"));
            sums.add(&found);
            println!(
                "{name} device {device}: {} events, addresses {}/{}, segments {}/{}, blocks {}/{}, uncertain {}, told {}",
                found.events,
                found.addresses.matching,
                found.addresses.predicted,
                found.segments.matching,
                found.segments.predicted,
                found.blocks.matching,
                found.blocks.predicted,
                found.uncertain,
                found.told,
            );
            if let Some(mismatch) = found.mismatches.first() {
                wrong.push(format!("{name}: {} mismatches, the first {mismatch:?}", found.mismatches.len()));
            } else if let Some(facts) = &facts {
                let differences = differences(&found.stats, &facts["stats"]);
                sums.statistics.predicted += 1;
                sums.statistics.matching += u64::from(differences.is_empty());
                if !differences.is_empty() {
                    wrong.push(format!("{name}: {differences:?}"));
                }
            }
        }
    }
    let Sums { addresses, segments, blocks, statistics } = sums;
    println!(
        "together: addresses {addresses:?}, segments {segments:?}, blocks {blocks:?}, statistics {statistics:?}"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(addresses.predicted > 0 && segments.predicted > 0, "the folder has no traces");
}
