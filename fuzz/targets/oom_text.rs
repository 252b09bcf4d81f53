//! A log that may have out-of-memory errors in it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _found = memfit_recording::find_oom_texts(bytes);
});
