//! TIFF decoding: reads only the strips or tiles that contribute to the result, one row of them at a time.

use std::io::{BufRead, Seek};

use tiff::decoder::{Decoder, DecodingResult};
use tiff::tags::Tag;

use super::Prepared;
use crate::LoaderError;
use crate::buffer::Buffer;
use crate::header::{Header, Packed, PatchedReader, Storage, tiff as header};
use crate::pixels::Sample;
use crate::reduce::Reducer;

const NAME: &str = "TIFF";

pub(super) fn decode<R: BufRead + Seek>(
    reader: R,
    image: &Prepared,
    buffer: &mut Buffer,
    reducer: &mut Reducer<'_>,
) -> Result<(), LoaderError> {
    let damaged = |error: tiff::TiffError| LoaderError::damaged(NAME)(error);
    let most = usize::try_from(image.plan.cost.decoder).unwrap_or(usize::MAX);
    let mut decoder = header::open(reader, image.page, most)?;
    let Header { width, height, layout, storage: Storage::Tiff { chunk, planar, packed, .. }, .. } =
        *image.stored()
    else {
        return Err(LoaderError::Bug("a TIFF that is none".to_owned()));
    };
    let colours = packed.map(|packed| Colours::read(&mut decoder, packed)).transpose()?;
    let region = image.plan.region;
    let (wide, tall) = chunk;
    if wide == 0 || tall == 0 {
        return Err(LoaderError::Damaged { format: NAME, reason: "its tiles have no size".to_owned() });
    }
    let bands = layout.bands.count();
    let across = width.div_ceil(wide);
    let plane = across * height.div_ceil(tall);
    let sample = layout.sample.bytes();
    let line = region.width as usize * layout.pixel();
    for row in region.top / tall..region.bottom().div_ceil(tall) {
        // Rows of the region in these chunks.
        let top = region.top.max(row * tall);
        let bottom = region.bottom().min((row + 1) * tall);
        let strip = buffer.room((bottom - top) as usize * line);
        for column in region.left / wide..region.right().div_ceil(wide) {
            let (left, right) =
                (region.left.max(column * wide), region.right().min(((column + 1) * wide).min(width)));
            for band in 0..if planar { bands } else { 1 } {
                let index = band * plane + row * across + column;
                let (has, _) = decoder.chunk_data_dimensions(index);
                let data = decoder.read_chunk(index).map_err(damaged)?;
                if let Some(colours) = &colours {
                    for y in top..bottom {
                        let place =
                            (y - top) as usize * line + (left - region.left) as usize * layout.pixel();
                        let count = (right - left) as usize * layout.pixel();
                        let first = (left - column * wide) as usize;
                        let out = &mut strip[place..place + count];
                        colours.copy(&data, has as usize, (y - row * tall) as usize, first, out)?;
                    }
                    continue;
                }
                let data = Values { data, sample: layout.sample };
                // Number of interleaved values of a pixel.
                let together = if planar { 1 } else { bands as usize };
                for y in top..bottom {
                    let from = ((y - row * tall) as usize * has as usize + (left - column * wide) as usize)
                        * together;
                    let count = (right - left) as usize * together;
                    let place = (y - top) as usize * line + (left - region.left) as usize * layout.pixel();
                    if planar {
                        let target = strip[place + band as usize * sample..].chunks_mut(layout.pixel());
                        for (value, target) in target.take(count).enumerate() {
                            data.copy(from + value, &mut target[..sample])?;
                        }
                    } else {
                        data.copy(from, &mut strip[place..place + count * sample])?;
                    }
                }
            }
        }
        reducer.rows(bottom - top, strip)?;
        if reducer.done() {
            break;
        }
    }
    Ok(())
}

/// Palette of an image with packed values.
struct Colours {
    packed: Packed,
    /// Bytes of all colours, concatenated.
    bytes: Vec<u8>,
    /// Bytes of a colour.
    pixel: usize,
}

impl Colours {
    fn read<R: BufRead + Seek>(
        decoder: &mut Decoder<PatchedReader<R>>,
        packed: Packed,
    ) -> Result<Self, LoaderError> {
        let damaged = LoaderError::damaged(NAME);
        let count = 1_usize << packed.bits;
        if !packed.palette {
            let bytes = (0..count).map(|shade| (shade * 255 / (count - 1)) as u8).collect();
            return Ok(Self { packed, bytes, pixel: 1 });
        }
        // All reds, then all greens, then all blues, of 16 bits each.
        let map = decoder.get_tag_u16_vec(Tag::ColorMap).map_err(damaged)?;
        if map.len() < 3 * count {
            let reason = format!("its palette has {} of {count} colours", map.len() / 3);
            return Err(LoaderError::Damaged { format: NAME, reason });
        }
        let bytes = (0..count)
            .flat_map(|colour| [0, 1, 2].map(|band| (map[band * count + colour] >> 8) as u8))
            .collect();
        Ok(Self { packed, bytes, pixel: 3 })
    }

    /// Copies pixels of a chunk's row, from `first` on, to fill `out`; a row of the chunk has `width` pixels.
    fn copy(
        &self,
        data: &DecodingResult,
        width: usize,
        row: usize,
        first: usize,
        out: &mut [u8],
    ) -> Result<(), LoaderError> {
        let short =
            || LoaderError::Damaged { format: NAME, reason: "a tile is shorter than its size".to_owned() };
        let bits = usize::from(self.packed.bits);
        for (x, place) in (first..).zip(out.chunks_exact_mut(self.pixel)) {
            let number = match data {
                DecodingResult::U16(values) => usize::from(*values.get(row * width + x).ok_or_else(short)?),
                DecodingResult::U8(values) => {
                    // Each row starts at a byte boundary.
                    let at = x * bits;
                    let byte = *values.get(row * (width * bits).div_ceil(8) + at / 8).ok_or_else(short)?;
                    usize::from(byte >> (8 - bits - at % 8)) & ((1 << bits) - 1)
                }
                _ => {
                    return Err(LoaderError::Damaged {
                        format: NAME,
                        reason: "its tiles have other values than its header says".to_owned(),
                    });
                }
            };
            place.copy_from_slice(&self.bytes[number * self.pixel..(number + 1) * self.pixel]);
        }
        Ok(())
    }
}

/// Values of a chunk in the file's type.
struct Values {
    data: DecodingResult,
    sample: Sample,
}

impl Values {
    /// Copies values from this one on to fill `out`.
    fn copy(&self, from: usize, out: &mut [u8]) -> Result<(), LoaderError> {
        let count = out.len() / self.sample.bytes();
        let short =
            || LoaderError::Damaged { format: NAME, reason: "a tile is shorter than its size".to_owned() };
        macro_rules! values {
            ($values:expr, $turn:expr) => {{
                let values = $values.get(from..from + count).ok_or_else(short)?;
                for (value, place) in values.iter().zip(out.chunks_exact_mut(self.sample.bytes())) {
                    place.copy_from_slice(&$turn(*value).to_ne_bytes());
                }
            }};
        }
        match (&self.data, self.sample) {
            (DecodingResult::U8(values), Sample::U8) => {
                out.copy_from_slice(values.get(from..from + count).ok_or_else(short)?);
            }
            (DecodingResult::U16(values), Sample::U16) => values!(values, |value: u16| value),
            (DecodingResult::F32(values), Sample::F32) => values!(values, |value: f32| value),
            (DecodingResult::F64(values), Sample::F32) => values!(values, |value: f64| value as f32),
            (DecodingResult::F16(values), Sample::F32) => values!(values, f32::from),
            (DecodingResult::I8(values), Sample::F32) => values!(values, f32::from),
            (DecodingResult::I16(values), Sample::F32) => values!(values, f32::from),
            (DecodingResult::I32(values), Sample::F32) => values!(values, |value: i32| value as f32),
            (DecodingResult::I64(values), Sample::F32) => values!(values, |value: i64| value as f32),
            (DecodingResult::U32(values), Sample::F32) => values!(values, |value: u32| value as f32),
            (DecodingResult::U64(values), Sample::F32) => values!(values, |value: u64| value as f32),
            _ => {
                return Err(LoaderError::Damaged {
                    format: NAME,
                    reason: "its tiles have other values than its header says".to_owned(),
                });
            }
        }
        Ok(())
    }
}
