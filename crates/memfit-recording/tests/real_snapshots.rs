//! PyTorch's snapshots, with the counts that Python's own pickle finds in them.
//!
//! `tests/programs` has one of each allocator setting, made by `scripts/replay/random_programs.py` on a
//! virtual GPU. `MEMFIT_TEST_SNAPSHOTS` names another folder; `scripts/replay/manifest.py` writes its
//! `manifest.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use memfit_recording::{PickleLimits, Snapshot};
use serde_json::Value;

fn folder() -> PathBuf {
    let programs = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    std::env::var_os("MEMFIT_TEST_SNAPSHOTS").map_or_else(programs, PathBuf::from)
}

#[test]
fn every_file_holds_what_its_manifest_says() {
    let folder = folder();
    let manifest = fs::read_to_string(folder.join("manifest.json")).expect("the folder has a manifest");
    let manifest: Vec<Value> = serde_json::from_str(&manifest).expect("the manifest is a list");
    assert!(!manifest.is_empty());
    for entry in &manifest {
        let file = entry["file"].as_str().expect("each entry names a file");
        let reader = fs::File::open(folder.join(file)).expect("the file is there");
        let (snapshot, problems) =
            Snapshot::read(reader, PickleLimits::default()).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(problems.is_empty(), "{file}: {problems:?}");
        let count = |key: &str| entry[key].as_u64().unwrap_or(0);
        assert_eq!(snapshot.segments.len() as u64, count("segments"), "{file}");
        let blocks: usize = snapshot.segments.iter().map(|segment| snapshot.blocks_of(segment).len()).sum();
        assert_eq!(blocks as u64, count("blocks"), "{file}");
        let reserved: u64 = snapshot.segments.iter().map(|segment| segment.size).sum();
        assert_eq!(reserved, count("reserved"), "{file}");
        let expandable = snapshot.segments.iter().filter(|segment| segment.expandable).count();
        assert_eq!(expandable as u64, count("expandable_segments"), "{file}");
        let events: Vec<u64> = snapshot.traces.iter().map(|trace| trace.len() as u64).collect();
        let listed: Vec<u64> =
            entry["events"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        assert_eq!(events, listed, "{file}");
        let mut actions: BTreeMap<&str, u64> = BTreeMap::new();
        for event in snapshot.traces.iter().flat_map(|trace| &snapshot.events[trace.clone()]) {
            *actions.entry(event.action.name()).or_default() += 1;
        }
        let listed: BTreeMap<&str, u64> = entry["actions"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(action, count)| Some((action.as_str(), count.as_u64()?)))
            .collect();
        assert_eq!(actions, listed, "{file}");
        let text = snapshot.settings.as_ref().map_or("", |settings| settings.text.as_str());
        assert_eq!(text, entry["conf"].as_str().unwrap_or_default(), "{file}");
    }
    println!("{} files hold what the manifest says", manifest.len());
}
