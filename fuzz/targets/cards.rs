//! A user's file of cards, a name to look up, and a size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_devices::{Catalogue, parse_size};

fuzz_target!(|text: &str| {
    let _size = parse_size(text);
    if let Ok(mut catalogue) = Catalogue::builtin() {
        let _found = catalogue.find(text);
        let _added = catalogue.add_user_cards("fuzz.toml", text);
    }
});
