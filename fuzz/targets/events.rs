//! The event log of a process that may have died anywhere, and the track that is made of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_channel::events;
use memfit_recording::{Recording, Track};

fuzz_target!(|bytes: &[u8]| {
    let (log, _problems) = events::parse(bytes);
    let track = Track::from_log(&log, None);
    // Whatever was read can be written, and is read back as it was.
    let recording = Recording { tracks: vec![track], ..Recording::default() };
    let mut file = Vec::new();
    recording.write(&mut file).expect("a recording can be written to memory");
    let again = Recording::read(file.as_slice(), memfit_recording::Limits::default());
    assert_eq!(again.expect("what was written is a recording"), recording);
});
