//! A file that begins as SQLite's do.
#![no_main]

#[path = "shared/judge.rs"]
mod judge;

use libfuzzer_sys::fuzz_target;
use memfit_recording::{OpenLimits, Source, read};

const MAGIC: &[u8] = b"SQLite format 3\0";

fuzz_target!(|bytes: &[u8]| {
    let mut file = bytes.to_vec();
    if file.len() > MAGIC.len() {
        file[..MAGIC.len()].copy_from_slice(MAGIC);
    }
    if let Ok((Source::Recording(recording), _)) = read(&file[..], OpenLimits::default()) {
        judge::judge(*recording, &judge::plain());
    }
});
