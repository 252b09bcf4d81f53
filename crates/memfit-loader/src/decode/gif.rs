//! GIF decoding: the first frame, or a later one composed with those before it.

use std::io::Read;

use gif::{ColorOutput, DecodeOptions, DisposalMethod, MemoryLimit};

use super::Prepared;
use crate::LoaderError;
use crate::buffer::Buffer;
use crate::pixels::Bands;
use crate::reduce::Reducer;

const NAME: &str = "GIF";

pub(super) fn decode<R: Read>(
    reader: R,
    image: &Prepared,
    buffer: &mut Buffer,
    reducer: &mut Reducer<'_>,
) -> Result<(), LoaderError> {
    let damaged = |error: gif::DecodingError| LoaderError::damaged(NAME)(error);
    let wrong = |reason: String| LoaderError::Damaged { format: NAME, reason };
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::RGBA);
    options.check_frame_consistency(true);
    let most = image.plan.cost.decoder.max(1);
    options.set_memory_limit(MemoryLimit::Bytes(
        std::num::NonZeroU64::new(most).unwrap_or(std::num::NonZeroU64::MIN),
    ));
    let mut decoder = options.read_info(reader).map_err(damaged)?;
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    let stored = (image.header.width as usize, image.header.height as usize);
    if (width, height) != stored {
        return Err(wrong("its headers contradict each other".to_owned()));
    }
    // The screen, the current frame, and the area that a frame with "restore to previous" covered.
    let screen = width * height * 4;
    let part = buffer.room(3 * screen);
    let (canvas, rest) = part.split_at_mut(screen);
    let (picture, before) = rest.split_at_mut(screen);
    canvas.fill(0);
    for number in 0..=image.page {
        let Some(frame) = decoder.next_frame_info().map_err(damaged)? else {
            return Err(wrong(format!("it has {number} images, but number {} was requested", image.page)));
        };
        let place = (usize::from(frame.left), usize::from(frame.top));
        let size = (usize::from(frame.width), usize::from(frame.height));
        let dispose = frame.dispose;
        let pixels = size.0 * size.1 * 4;
        if place.0 + size.0 > width || place.1 + size.1 > height || decoder.buffer_size() != pixels {
            return Err(wrong("a frame lies outside of the canvas".to_owned()));
        }
        decoder.read_into_buffer(&mut picture[..pixels]).map_err(damaged)?;
        let last = number == image.page;
        if dispose == DisposalMethod::Previous && !last {
            before.copy_from_slice(canvas);
        }
        let row = |y: usize| ((place.1 + y) * width + place.0) * 4;
        for (y, line) in picture[..pixels].chunks_exact((size.0 * 4).max(1)).enumerate() {
            let target = &mut canvas[row(y)..][..size.0 * 4];
            for (from, to) in line.chunks_exact(4).zip(target.chunks_exact_mut(4)) {
                if from[3] != 0 {
                    to.copy_from_slice(from);
                }
            }
        }
        if last {
            break;
        }
        match dispose {
            DisposalMethod::Background => {
                for y in 0..size.1 {
                    canvas[row(y)..][..size.0 * 4].fill(0);
                }
            }
            DisposalMethod::Previous => canvas.copy_from_slice(before),
            DisposalMethod::Any | DisposalMethod::Keep => {}
        }
    }
    if image.plan.from.bands == Bands::Rgb {
        // Nothing is transparent, as the header showed: drops the fourth value of each pixel in place.
        for pixel in 0..width * height {
            canvas.copy_within(pixel * 4..pixel * 4 + 3, pixel * 3);
        }
        return reducer.rows(image.header.height, &canvas[..width * height * 3]);
    }
    reducer.rows(image.header.height, canvas)
}
