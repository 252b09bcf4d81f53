//! A fat binary, as a library registers it or a program loads it: no panic, and memory in proportion.

#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_kernels::binary::{cubin, fatbin};

fuzz_target!(|bytes: &[u8]| {
    for image in fatbin::images(bytes) {
        if let Ok(elf) = image.unpack() {
            cubin::functions(&elf);
        }
    }
});
