//! Doors for the fuzzer: every reader of bytes that somebody else wrote.

use super::{cubin, fatbin};

/// Reads a fat binary, every image in it, and every kernel of every image.
pub fn container(bytes: &[u8]) {
    for image in fatbin::images(bytes) {
        if let Ok(elf) = image.unpack() {
            cubin::functions(&elf);
        }
    }
}

/// Reads machine code.
pub fn machine_code(bytes: &[u8]) {
    cubin::functions(bytes);
}
