//! A fat binary, as a library registers it or a program loads it: no panic, and memory in proportion.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| memfit_vgpu::fuzz::container(bytes));
