//! A compressed file: the first byte chooses how, and whether what comes is compressed properly or only
//! claims to be.
#![no_main]

use std::io::Write as _;

use libfuzzer_sys::fuzz_target;
use memfit_recording::{OpenLimits, PickleLimits, read};

const STARTS: [&[u8]; 3] = [b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0"];

fuzz_target!(|bytes: &[u8]| {
    let Some((which, rest)) = bytes.split_first() else { return };
    let file = match usize::from(*which) {
        // Damaged in one place: what unpacks well up to there is used.
        way if way < 128 => {
            let mut packed = Vec::new();
            let mut packer = zstd::Encoder::new(&mut packed, 1).expect("memory can be written to");
            packer.write_all(rest).expect("memory can be written to");
            packer.finish().expect("memory can be written to");
            let place = way * packed.len() / 128;
            packed[place] ^= 1 << (way % 8);
            packed
        }
        way => [STARTS[way % 3], rest].concat(),
    };
    let pickle = PickleLimits { memory: 256 << 20, ..PickleLimits::default() };
    let _source = read(&file[..], OpenLimits { pickle, ..OpenLimits::default() });
});
