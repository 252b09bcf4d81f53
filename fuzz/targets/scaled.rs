//! JPEG at a smaller scale: the decoder in Rust returns, whatever the bytes are, and with the same pixels
//! each time. That they are libjpeg-turbo's is tested in the crate.

#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_loader::at_scale;

/// Maximum pixels of an image.
const MOST: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    for by in [4, 8] {
        let first = at_scale::in_rust(bytes, by, MOST);
        assert!(first == at_scale::in_rust(bytes, by, MOST), "the same bytes, and other pixels");
    }
});
