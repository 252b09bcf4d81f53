//! Traces from real GPUs, as far as a folder of them is at hand: every address and every segment is predicted.

use std::fs;
use std::path::PathBuf;

use memfit_allocator::{Given, Tally, verify};
use memfit_recording::{PickleLimits, Snapshot};

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

#[test]
fn every_address_and_every_segment_is_predicted() {
    let Ok(folder) = std::env::var("MEMFIT_TEST_SNAPSHOTS") else {
        println!("skipped: MEMFIT_TEST_SNAPSHOTS names no folder of snapshots");
        return;
    };
    let mut wrong = 0;
    let mut all = [Tally::default(); 3];
    for file in pickles(&folder) {
        let reader = fs::File::open(&file).expect("the file is there");
        let (snapshot, _) = Snapshot::read(reader, PickleLimits::default()).expect("it is a snapshot");
        let given = Given::from_snapshot(&snapshot);
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for device in snapshot.devices() {
            let found = verify(&snapshot, device, &given).unwrap_or_else(|error| panic!("{name}: {error}"));
            for (sum, tally) in all.iter_mut().zip([found.addresses, found.segments, found.blocks]) {
                sum.predicted += tally.predicted;
                sum.matching += tally.matching;
            }
            println!(
                "{name} device {device}: {} events, addresses {}/{}, segments {}/{}, blocks {}/{}, uncertain {}, resumed {}",
                found.events,
                found.addresses.matching,
                found.addresses.predicted,
                found.segments.matching,
                found.segments.predicted,
                found.blocks.matching,
                found.blocks.predicted,
                found.uncertain,
                found.resumed,
            );
            if !found.mismatches.is_empty() {
                println!("   {:?}", &found.mismatches[..found.mismatches.len().min(3)]);
            }
            wrong += found.mismatches.len();
        }
    }
    println!("together: {all:?}");
    assert_eq!(wrong, 0, "all is predicted");
}
