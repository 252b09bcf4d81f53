//! The lines that the probe writes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_channel::Message;

fuzz_target!(|bytes: &[u8]| {
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<Message>(line) else { continue };
        let text = serde_json::to_string(&message).expect("a message can be written");
        let again: Message = serde_json::from_str(&text).expect("what was written is a message");
        assert_eq!(again, message);
    }
});
