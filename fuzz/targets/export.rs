//! A snapshot that is written again: what is read of it must be what was written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_recording::{PickleLimits, Snapshot};

fuzz_target!(|bytes: &[u8]| {
    let Ok((snapshot, _)) = Snapshot::read(bytes, PickleLimits::default()) else { return };
    let mut written = Vec::new();
    snapshot.write(&mut written).expect("memory can be written to");
    let (again, problems) = Snapshot::read(&written[..], PickleLimits::default()).expect("it was just written");
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(again.segments.len(), snapshot.segments.len());
    assert_eq!(again.traces.len(), snapshot.traces.len());
    assert!(again.traces.iter().zip(&snapshot.traces).all(|(one, other)| one.len() == other.len()));
});
