//! A file that says it is a recording, read and judged. It is packed here, so that the fuzzer need not learn
//! compression: the first byte chooses the format's version, and the rest is the sections behind the origin.
#![no_main]

#[path = "shared/judge.rs"]
mod judge;

use std::io::Write as _;

use libfuzzer_sys::fuzz_target;
use memfit_recording::{Limits, MAGIC, Origin, Recording, VERSION};

fuzz_target!(|bytes: &[u8]| {
    let Some((version, sections)) = bytes.split_first() else { return };
    let origin = serde_json::to_vec(&Origin::default()).expect("an origin can be written");
    let mut content = Vec::new();
    let length = u16::try_from(origin.len()).expect("an empty origin is short");
    content.extend([length as u8 & 0x7f | 0x80, (length >> 7) as u8]);
    content.extend(origin);
    content.extend(sections);
    let mut file = MAGIC.to_vec();
    file.extend((1 + u32::from(*version) % VERSION).to_le_bytes());
    let mut packer = zstd::Encoder::new(&mut file, -5).expect("memory can be written to");
    packer.write_all(&content).expect("memory can be written to");
    packer.finish().expect("memory can be written to");
    if let Ok((recording, _)) = Recording::read_until_fault(&file[..], Limits { bytes: 16 << 20 }) {
        judge::judge(recording, &judge::plain());
    }
});
