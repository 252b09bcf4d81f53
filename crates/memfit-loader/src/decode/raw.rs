//! BMP and PNM decoding: reads only the rows of the region, each at its position.

use std::io::{Read, Seek, SeekFrom};

use super::Prepared;
use crate::LoaderError;
use crate::buffer::Buffer;
use crate::header::{Packing, Rows, Storage};
use crate::pixels::Sample;
use crate::plan::STRIP_ROWS;
use crate::reduce::Reducer;

pub(super) fn decode<R: Read + Seek>(
    mut reader: R,
    image: &Prepared,
    buffer: &mut Buffer,
    reducer: &mut Reducer<'_>,
) -> Result<(), LoaderError> {
    let header = &image.header;
    let Storage::Rows(rows) = &header.storage else {
        return Err(LoaderError::Bug("rows that are none".to_owned()));
    };
    let plan = &image.plan;
    let region = plan.region;
    let line = header.width as usize * plan.from.pixel();
    let short = |error: std::io::Error| {
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            LoaderError::Damaged { format: header.format.name(), reason: "it is truncated".to_owned() }
        } else {
            LoaderError::Read(error)
        }
    };
    let stride = usize::try_from(rows.stride)
        .map_err(|_| LoaderError::Bug("a row that no memory holds".to_owned()))?;
    let at_once = if plan.in_strips(header) { STRIP_ROWS } else { region.height } as usize;
    let part = buffer.room(at_once * line + stride);
    let (strip, stored) = part.split_at_mut(at_once * line);
    let mut filled = 0;
    for number in region.top..region.bottom() {
        let from = if rows.upwards { header.height - 1 - number } else { number };
        reader
            .seek(SeekFrom::Start(rows.start.saturating_add(u64::from(from).saturating_mul(rows.stride))))?;
        reader.read_exact(stored).map_err(short)?;
        unpack(rows, stored, plan.from.sample, &mut strip[filled * line..][..line]);
        filled += 1;
        if filled == at_once || number + 1 == region.bottom() {
            reducer.rows(filled as u32, &strip[..filled * line])?;
            filled = 0;
            if reducer.done() {
                break;
            }
        }
    }
    Ok(())
}

/// Unpacks one row's pixels to the layout.
fn unpack(rows: &Rows, stored: &[u8], sample: Sample, out: &mut [u8]) {
    match &rows.packing {
        Packing::Plain => {
            out.copy_from_slice(&stored[..out.len()]);
            if sample == Sample::U16 && cfg!(target_endian = "little") {
                for value in out.chunks_exact_mut(2) {
                    value.swap(0, 1);
                }
            }
        }
        Packing::Reversed { bytes } => {
            for (from, to) in stored.chunks_exact(*bytes as usize).zip(out.chunks_exact_mut(3)) {
                to.copy_from_slice(&[from[2], from[1], from[0]]);
            }
        }
        Packing::Table { bits, colours } => {
            let each = 8 / bits;
            let most = ((1_u32 << bits) - 1) as u8;
            for (pixel, to) in out.chunks_exact_mut(3).enumerate() {
                let byte = stored[pixel / each as usize];
                let shift = (each - 1 - pixel as u32 % each) * bits;
                // As in other decoders, an index beyond the palette is black.
                let colour = colours.get(usize::from(byte >> shift & most));
                to.copy_from_slice(colour.unwrap_or(&[0; 3]));
            }
        }
        Packing::Fields { bytes, masks } => {
            let bands = if masks[3] == 0 { 3 } else { 4 };
            for (from, to) in stored.chunks_exact(*bytes as usize).zip(out.chunks_exact_mut(bands)) {
                let value = from.iter().rev().fold(0_u32, |value, &byte| value << 8 | u32::from(byte));
                for (mask, to) in masks.iter().zip(to) {
                    *to = field(value, *mask);
                }
            }
        }
        Packing::Bits => {
            for (pixel, to) in out.iter_mut().enumerate() {
                *to = if stored[pixel / 8] >> (7 - pixel % 8) & 1 == 1 { 0 } else { 255 };
            }
        }
    }
}

/// Extracts the bits of a mask and scales them to 0 to 255.
fn field(value: u32, mask: u32) -> u8 {
    if mask == 0 {
        return 0;
    }
    let most = u64::from(mask >> mask.trailing_zeros());
    let part = u64::from((value & mask) >> mask.trailing_zeros());
    ((part * 255 + most / 2) / most) as u8
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn fields_reach_from_black_to_white() {
        for mask in [0x7c00, 0x03e0, 0x001f, 0xff00_0000, 0x0000_00ff] {
            assert_eq!(field(0, mask), 0);
            assert_eq!(field(u32::MAX, mask), 255);
            assert_eq!(field(!mask, mask), 0);
        }
        assert_eq!(field(0x4000, 0x7c00), 132);
    }
}
