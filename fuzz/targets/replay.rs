//! A memory snapshot with a trace that may be anything, replayed, made into a recording, and judged.
#![no_main]

#[path = "shared/judge.rs"]
mod judge;

use libfuzzer_sys::fuzz_target;
use memfit_allocator::{ReplayConditions, recording, rewind, verify};
use memfit_recording::{PickleLimits, Snapshot};

fuzz_target!(|bytes: &[u8]| {
    let limits = PickleLimits { memory: 256 << 20, ..PickleLimits::default() };
    let Ok((snapshot, _problems)) = Snapshot::read(bytes, limits) else { return };
    let given = ReplayConditions::from_snapshot(&snapshot);
    for device in snapshot.devices() {
        let _state = rewind(&snapshot, device, &given, 0);
        if let Ok(found) = verify(&snapshot, device, &given) {
            assert!(found.addresses.matching <= found.addresses.predicted);
        }
    }
    if let Ok(recorded) = recording(&snapshot, &given) {
        judge::judge(recorded.recording, &given);
    }
});
