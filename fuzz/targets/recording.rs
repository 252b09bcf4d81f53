//! A file that says it is a recording. The content is packed here, so that the fuzzer need not learn compression.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_recording::{Limits, Recording};

fuzz_target!(|bytes: &[u8]| {
    let _read = Recording::read(bytes, Limits { bytes: 16 << 20 });
});
