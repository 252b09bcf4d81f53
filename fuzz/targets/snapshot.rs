//! A pickle that says it is a memory snapshot.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_recording::{PickleLimits, Snapshot};

fuzz_target!(|bytes: &[u8]| {
    let _read = Snapshot::read(bytes, PickleLimits::default());
});
