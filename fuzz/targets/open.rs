//! A file that may be anything: what it is, is told by its first bytes, and each format has its reader.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_recording::{Limits, OpenLimits, PickleLimits};

fuzz_target!(|bytes: &[u8]| {
    let limits = OpenLimits {
        pickle: PickleLimits { memory: 256 << 20, ..PickleLimits::default() },
        recording: Limits { bytes: 16 << 20 },
    };
    let _source = memfit_recording::read(bytes, limits);
});
