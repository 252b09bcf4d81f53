//! JPEG 2000 decoding: the whole image, at the smallest sufficient resolution level.

use hayro_jpeg2000::{DecodeSettings, DecoderContext, Image};

use super::Prepared;
use crate::LoaderError;
use crate::header::Storage;
use crate::pixels::Sample;

const NAME: &str = "JPEG 2000";

pub(super) fn decode(bytes: &[u8], image: &Prepared, pixels: &mut [u8]) -> Result<(), LoaderError> {
    let damaged = |error: hayro_jpeg2000::DecodeError| LoaderError::damaged(NAME)(error);
    let wrong =
        || LoaderError::Damaged { format: NAME, reason: "its headers contradict each other".to_owned() };
    let Storage::Jp2 { bits, .. } = image.header.storage else {
        return Err(LoaderError::Bug("a JPEG 2000 that is none".to_owned()));
    };
    let by = image.plan.denominator;
    let (wide, tall) = (image.header.width, image.header.height);
    let target = (by > 1).then(|| ((wide / by).max(1), (tall / by).max(1)));
    let settings = DecodeSettings { target_resolution: target, ..DecodeSettings::default() };
    let opened = Image::new(bytes, &settings).map_err(damaged)?;
    let size = (wide.div_ceil(by), tall.div_ceil(by));
    if (opened.width(), opened.height()) != size {
        return Err(wrong());
    }
    let mut context = DecoderContext::default();
    let decoded = opened.decode(&mut context).map_err(damaged)?;
    let layout = image.plan.from;
    let bands = layout.bands.count() as usize;
    let planes = decoded.components();
    let count = size.0 as usize * size.1 as usize;
    let depth_of = |depth: u8| if depth > 0 { u32::from(depth) } else { bits };
    if planes.len() != bands || planes.iter().any(|plane| plane.samples().len() != count) {
        return Err(wrong());
    }
    for (band, plane) in planes.iter().enumerate() {
        // Values with fewer bits than the type are scaled to its range.
        let depth = depth_of(plane.bit_depth());
        let most = (f64::from(depth).exp2() - 1.0) as f32;
        match layout.sample {
            Sample::U8 => {
                let by = 255.0 / most;
                for (value, pixel) in plane.samples().iter().zip(pixels.chunks_exact_mut(bands)) {
                    pixel[band] = (value * by).round() as u8;
                }
            }
            Sample::U16 => {
                let by = if depth == 16 { 1.0 } else { 65535.0 / most };
                for (value, pixel) in plane.samples().iter().zip(pixels.chunks_exact_mut(bands * 2)) {
                    pixel[band * 2..][..2].copy_from_slice(&((value * by).round() as u16).to_ne_bytes());
                }
            }
            Sample::F32 => return Err(wrong()),
        }
    }
    Ok(())
}
