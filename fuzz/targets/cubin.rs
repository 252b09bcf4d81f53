//! Machine code inside a fat binary: no panic, and memory in proportion.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| memfit_vgpu::fuzz::machine_code(bytes));
