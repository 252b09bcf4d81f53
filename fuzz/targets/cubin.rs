//! Machine code inside a fat binary: no panic, and memory in proportion.

#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_kernels::binary::cubin;

fuzz_target!(|bytes: &[u8]| {
    cubin::functions(bytes);
});
