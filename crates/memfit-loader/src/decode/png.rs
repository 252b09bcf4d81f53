//! PNG decoding, row by row unless the image is interlaced.

mod animation;

use std::io::{BufRead, Seek};

use png::{Decoder, Limits, Reader, Transformations};

use super::Prepared;
use crate::LoaderError;
use crate::buffer::Buffer;
use crate::header::Storage;
use crate::pixels::Sample;
use crate::plan::STRIP_ROWS;
use crate::reduce::Reducer;

const NAME: &str = "PNG";
/// Memory limit for chunks other than pixels (text, colour profiles).
const MAX_METADATA_BYTES: usize = 4 << 20;

pub(super) fn decode<R: BufRead + Seek>(
    reader: R,
    image: &Prepared,
    buffer: &mut Buffer,
    reducer: &mut Reducer<'_>,
) -> Result<(), LoaderError> {
    let mut reader = open(reader, image)?;
    if let Storage::Png { composed: true, .. } = image.header.storage {
        return animation::decode(&mut reader, image, buffer, reducer);
    }
    let plan = &image.plan;
    let line = image.header.width as usize * plan.from.pixel();
    let region = plan.region;
    if reader.info().interlaced {
        let size = reader
            .output_buffer_size()
            .filter(|&size| size == line * image.header.height as usize)
            .ok_or_else(|| LoaderError::Damaged {
                format: NAME,
                reason: "its size contradicts itself".to_owned(),
            })?;
        let pixels = buffer.room(size);
        reader.next_frame(pixels).map_err(damaged)?;
        let part = &mut pixels[region.top as usize * line..region.bottom() as usize * line];
        to_native_order(part, plan.from.sample);
        return reducer.rows(region.height, part);
    }
    let rows = if plan.in_strips(&image.header) { STRIP_ROWS } else { region.height } as usize;
    let strip = buffer.room(rows * line);
    let mut filled = 0;
    for number in 0..region.bottom() {
        let Some(row) = reader.next_row().map_err(damaged)? else { break };
        if number < region.top {
            continue;
        }
        strip[filled * line..][..line].copy_from_slice(row.data());
        filled += 1;
        if filled == rows || number + 1 == region.bottom() {
            let part = &mut strip[..filled * line];
            to_native_order(part, plan.from.sample);
            reducer.rows(filled as u32, part)?;
            filled = 0;
            if reducer.done() {
                break;
            }
        }
    }
    Ok(())
}

/// Opens a reader at the first image with the plan's value transformations.
fn open<R: BufRead + Seek>(reader: R, image: &Prepared) -> Result<Reader<R>, LoaderError> {
    let plan = &image.plan;
    let limits = Limits { bytes: MAX_METADATA_BYTES + image.header.width as usize * 32 };
    let mut decoder = Decoder::new_with_limits(reader, limits);
    decoder.set_transformations(Transformations::EXPAND);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let reader = decoder.read_info().map_err(damaged)?;
    let line = image.header.width as usize * plan.from.pixel();
    if reader.output_line_size(image.header.width) != Some(line) {
        return Err(LoaderError::Damaged {
            format: NAME,
            reason: "its chunks contradict its header".to_owned(),
        });
    }
    Ok(reader)
}

fn damaged(error: png::DecodingError) -> LoaderError {
    LoaderError::damaged(NAME)(error)
}

/// Converts samples from big-endian, PNG's byte order.
fn to_native_order(data: &mut [u8], sample: Sample) {
    if sample == Sample::U16 && cfg!(target_endian = "little") {
        for value in data.chunks_exact_mut(2) {
            value.swap(0, 1);
        }
    }
}
