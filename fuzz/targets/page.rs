//! A page or a notebook: the first byte says which.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_recording::{OpenLimits, PickleLimits, read};

fuzz_target!(|bytes: &[u8]| {
    let Some((which, rest)) = bytes.split_first() else { return };
    let start: &[u8] = if which % 2 == 0 { b"<html><script>" } else { b"{\"cells\": [" };
    let pickle = PickleLimits { memory: 256 << 20, ..PickleLimits::default() };
    let _source = read(&[start, rest].concat()[..], OpenLimits { pickle, ..OpenLimits::default() });
});
