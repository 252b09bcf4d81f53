//! JPEG decoding in Rust, for builds without libjpeg-turbo or without its SIMD code, and code shared by
//! both decoders.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::Prepared;
use crate::LoaderError;
use crate::header::{Format, Storage};
use crate::pixels::Bands;

const NAME: &str = "JPEG";

/// Inverts inks that were stored inverted.
pub(super) fn uninvert_inks(image: &Prepared, pixels: &mut [u8]) {
    if matches!(image.header.storage, Storage::Jpeg { inverted: true, .. }) {
        for value in pixels {
            *value = !*value;
        }
    }
}

/// Rejects files that neither decoder reads correctly.
pub(super) fn check_readable(image: &Prepared) -> Result<(), LoaderError> {
    debug_assert_eq!(image.header.format, Format::Jpeg);
    match image.header.storage {
        Storage::Jpeg { unusual: Some(reason), .. } => {
            Err(LoaderError::Unsupported { format: NAME, reason: reason.to_owned() })
        }
        _ => Ok(()),
    }
}

pub(super) fn decode(bytes: &[u8], image: &Prepared, pixels: &mut [u8]) -> Result<(), LoaderError> {
    check_readable(image)?;
    if !has_end_marker(bytes) {
        return Err(LoaderError::Damaged { format: NAME, reason: "it is truncated".to_owned() });
    }
    let colours = match image.plan.from.bands {
        Bands::Grey => ColorSpace::Luma,
        Bands::Cmyk => ColorSpace::CMYK,
        _ => ColorSpace::RGB,
    };
    let options = DecoderOptions::default()
        .set_max_width(image.header.width as usize)
        .set_max_height(image.header.height as usize)
        .set_strict_mode(false)
        .jpeg_set_out_colorspace(colours);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let damaged = |error: zune_jpeg::errors::DecodeErrors| LoaderError::damaged(NAME)(error);
    decoder.decode_headers().map_err(damaged)?;
    if decoder.output_buffer_size() != Some(pixels.len()) {
        return Err(LoaderError::Damaged {
            format: NAME,
            reason: "its headers contradict each other".to_owned(),
        });
    }
    decoder.decode_into(pixels).map_err(damaged)?;
    uninvert_inks(image, pixels);
    Ok(())
}

/// Returns `true` if an end-of-image marker follows the first start of scan.
pub(super) fn has_end_marker(bytes: &[u8]) -> bool {
    let mut at = bytes.len();
    while at >= 2 {
        if bytes[at - 2] == 0xff {
            match bytes[at - 1] {
                0xd9 => return true,
                // A scan begins here, and no end of image follows.
                0xda => return false,
                _ => {}
            }
        }
        at -= 1;
    }
    false
}
