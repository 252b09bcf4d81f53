//! A profiler's trace: the events are the fuzzer's, the object around them is not.
#![no_main]

#[path = "shared/judge.rs"]
mod judge;

use libfuzzer_sys::fuzz_target;
use memfit_recording::{OpenLimits, Source, read};

fuzz_target!(|bytes: &[u8]| {
    let file = [b"{\"traceEvents\": [", bytes].concat();
    if let Ok((Source::Recording(recording), _)) = read(&file[..], OpenLimits::default()) {
        judge::judge(*recording, &judge::plain());
    }
});
