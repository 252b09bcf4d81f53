//! Images of every format: no decoder falls over, and none is asked that was charged more than there is.

#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_loader::{Crop, Decoder, Framing, Input, LoaderError, Mode, Prepared, Rect, Rendering};

/// Memory budget of a loader for one image.
const MOST: u64 = 32 << 20;

fuzz_target!(|bytes: &[u8]| {
    // The first byte chooses what is asked of the rest.
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let crop = match how & 3 {
        0 => Crop::All,
        1 => Crop::Center { resize: None },
        2 => Crop::Part(Rect { left: 1, top: 1, width: 5, height: 3 }),
        _ => Crop::Random { scale: (0.1, 1.0), ratio: (0.5, 2.0) },
    };
    let size = (how & 4 == 0).then_some((16, 16));
    let framing = Framing { crop, size, flip: 0.5 };
    let mode = if how & 8 == 0 { Mode::Rgb } else { Mode::Keep };
    let rendering = Rendering { mode, page: u32::from(how >> 6), ..Rendering::default() };
    let input = Input::Memory(bytes.into());
    let Ok(image) = Prepared::new(input, &framing, &rendering, &[u64::from(how)]) else { return };
    if image.cost().total() + image.bytes() as u64 > MOST {
        return;
    }
    let mut out = vec![0; image.bytes()];
    if let Err(LoaderError::Bug(text)) = Decoder::new().decode(&image, how & 16 == 0, &mut out) {
        panic!("{text}");
    }
});
