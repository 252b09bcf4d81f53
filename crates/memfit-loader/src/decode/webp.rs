//! WebP decoding: a still image, or a frame of an animation.

use std::io::{BufRead, Seek};

use image_webp::WebPDecoder;

use super::Prepared;
use crate::LoaderError;
use crate::buffer::Buffer;
use crate::reduce::Reducer;

const NAME: &str = "WebP";

pub(super) fn decode<R: BufRead + Seek>(
    reader: R,
    image: &Prepared,
    buffer: &mut Buffer,
    reducer: &mut Reducer<'_>,
) -> Result<(), LoaderError> {
    let damaged = |error: image_webp::DecodingError| LoaderError::damaged(NAME)(error);
    let mut decoder = WebPDecoder::new(reader).map_err(damaged)?;
    decoder.set_memory_limit(usize::try_from(image.plan.cost.total()).unwrap_or(usize::MAX));
    let size = image.header.width as usize * image.header.height as usize * image.plan.from.pixel();
    if decoder.dimensions() != (image.header.width, image.header.height)
        || decoder.output_buffer_size() != Some(size)
    {
        return Err(LoaderError::Damaged {
            format: NAME,
            reason: "its headers contradict each other".to_owned(),
        });
    }
    let pixels = buffer.room(size);
    if image.page == 0 {
        decoder.read_image(pixels).map_err(damaged)?;
    } else {
        let count = if decoder.is_animated() { decoder.num_frames() } else { 1 };
        if image.page >= count {
            return Err(LoaderError::Damaged {
                format: NAME,
                reason: format!("it has {count} images, but number {} was requested", image.page),
            });
        }
        // Each frame is composed with those before it.
        for _ in 0..=image.page {
            decoder.read_frame(pixels).map_err(damaged)?;
        }
    }
    reducer.rows(image.header.height, pixels)
}
