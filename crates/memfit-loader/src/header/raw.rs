//! BMP and PNM headers: uncompressed pixels and the positions of their rows.

use std::io::{Read, Seek, SeekFrom};

use super::{Format, Header, Storage, read_array};
use crate::LoaderError;
use crate::pixels::{Bands, Layout, Sample};

/// Encoding of a row's pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Plain samples of 8 bits, or of 16 bits in big-endian order.
    Plain,
    /// Blue first (BGR).
    Reversed {
        /// Bytes of a pixel: three, or four of which the last may be alpha.
        bytes: u32,
    },
    /// Palette indices, packed from the high bits.
    Table {
        /// Bits of an index: 1, 2, 4 or 8.
        bits: u32,
        /// Red, green and blue of each index.
        colours: Vec<[u8; 3]>,
    },
    /// Bit fields of a little-endian number of 16 or 32 bits.
    Fields {
        /// Bytes of a pixel: two or four.
        bytes: u32,
        /// Bit masks of red, green, blue and alpha.
        masks: [u32; 4],
    },
    /// One bit a pixel, packed from the high bit; a set bit is black.
    Bits,
}

/// Positions of rows in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Offset of the first stored row.
    pub start: u64,
    /// Bytes from one row to the next.
    pub stride: u64,
    /// `true` if the first stored row is the bottom one.
    pub upwards: bool,
    /// Encoding of the pixels.
    pub packing: Packing,
}

pub(super) fn bmp<R: Read + Seek>(reader: &mut R) -> Result<Header, LoaderError> {
    let format = Format::Bmp;
    let damaged = |reason: String| LoaderError::Damaged { format: format.name(), reason };
    let unsupported = |reason: String| LoaderError::Unsupported { format: format.name(), reason };
    reader.seek(SeekFrom::Start(10))?;
    let start = u32::from_le_bytes(read_array(reader)?);
    let length = u32::from_le_bytes(read_array(reader)?);
    let (width, height, bits, compression, colours) = if length == 12 {
        let [w0, w1, h0, h1, _, _, b0, b1]: [u8; 8] = read_array(reader)?;
        let number = |low: u8, high: u8| i32::from(u16::from_le_bytes([low, high]));
        (number(w0, w1), number(h0, h1), u16::from_le_bytes([b0, b1]), 0, 0)
    } else if length >= 40 {
        let width = i32::from_le_bytes(read_array(reader)?);
        let height = i32::from_le_bytes(read_array(reader)?);
        let [_, _, b0, b1]: [u8; 4] = read_array(reader)?;
        let compression = u32::from_le_bytes(read_array(reader)?);
        reader.seek(SeekFrom::Current(12))?;
        let colours = u32::from_le_bytes(read_array(reader)?);
        (width, height, u16::from_le_bytes([b0, b1]), compression, colours)
    } else {
        return Err(damaged(format!("its header is {length} bytes long")));
    };
    let upwards = height > 0;
    let wide = u32::try_from(width).map_err(|_| damaged(format!("it is {width} pixels wide")))?;
    let tall = height.unsigned_abs();
    let (packing, bands) = match (bits, compression) {
        (1 | 2 | 4 | 8, 0) => {
            let entry = if length == 12 { 3 } else { 4 };
            let count = if colours == 0 { 1 << bits } else { colours.min(1 << bits) };
            reader.seek(SeekFrom::Start(14 + u64::from(length)))?;
            let mut table = Vec::with_capacity(count as usize);
            for _ in 0..count {
                let [blue, green, red] = read_array(reader)?;
                reader.seek(SeekFrom::Current(entry - 3))?;
                table.push([red, green, blue]);
            }
            (Packing::Table { bits: bits.into(), colours: table }, Bands::Rgb)
        }
        (24, 0) => (Packing::Reversed { bytes: 3 }, Bands::Rgb),
        // Without masks, the fourth byte is unused.
        (32, 0) => (Packing::Reversed { bytes: 4 }, Bands::Rgb),
        (16, 0) => (Packing::Fields { bytes: 2, masks: [0x7c00, 0x03e0, 0x001f, 0] }, Bands::Rgb),
        (16 | 32, 3 | 6) => {
            reader.seek(SeekFrom::Start(54))?;
            let mut masks = [0_u32; 4];
            let has = if compression == 6 || length >= 56 { 4 } else { 3 };
            for mask in &mut masks[..has] {
                *mask = u32::from_le_bytes(read_array(reader)?);
            }
            let bands = if masks[3] == 0 { Bands::Rgb } else { Bands::Rgba };
            (Packing::Fields { bytes: u32::from(bits) / 8, masks }, bands)
        }
        (_, 1 | 2) => return Err(unsupported("its rows are run-length coded".to_owned())),
        (_, 4 | 5) => return Err(unsupported("it holds a JPEG or PNG".to_owned())),
        _ => return Err(unsupported(format!("it has {bits} bits a pixel, stored as {compression}"))),
    };
    let stride = (u64::from(wide) * u64::from(bits)).div_ceil(32) * 4;
    complete(reader, start.into(), stride, tall).map_err(damaged)?;
    Ok(Header {
        format,
        width: wide,
        height: tall,
        layout: Layout { bands, sample: Sample::U8 },
        orientation: 1,
        storage: Storage::Rows(Rows { start: start.into(), stride, upwards, packing }),
    })
}

pub(super) fn pnm<R: Read + Seek>(reader: &mut R) -> Result<Header, LoaderError> {
    let format = Format::Pnm;
    let damaged = |reason: String| LoaderError::Damaged { format: format.name(), reason };
    let unsupported = |reason: String| LoaderError::Unsupported { format: format.name(), reason };
    let [_, kind]: [u8; 2] = read_array(reader)?;
    let width = number(reader)?.ok_or_else(|| damaged("its width is not a number".to_owned()))?;
    let height = number(reader)?.ok_or_else(|| damaged("its height is not a number".to_owned()))?;
    let most = match kind {
        b'4' => 1,
        _ => number(reader)?.ok_or_else(|| damaged("its greatest value is not a number".to_owned()))?,
    };
    let sample = match most {
        1 if kind == b'4' => Sample::U8,
        255 => Sample::U8,
        65535 => Sample::U16,
        _ => return Err(unsupported(format!("its greatest value is {most}, not 255 or 65535"))),
    };
    let bands = if kind == b'6' { Bands::Rgb } else { Bands::Grey };
    let layout = Layout { bands, sample };
    let (packing, stride) = if kind == b'4' {
        (Packing::Bits, u64::from(width).div_ceil(8))
    } else {
        (Packing::Plain, u64::from(width) * layout.pixel() as u64)
    };
    let start = reader.stream_position()?;
    complete(reader, start, stride, height).map_err(damaged)?;
    let rows = Rows { start, stride, upwards: false, packing };
    Ok(Header { format, width, height, layout, orientation: 1, storage: Storage::Rows(rows) })
}

/// Checks that all rows are in the file, so that no header causes a larger allocation than the file
/// justifies.
fn complete<R: Seek>(reader: &mut R, start: u64, stride: u64, rows: u32) -> Result<(), String> {
    let end = reader.seek(SeekFrom::End(0)).map_err(|error| error.to_string())?;
    let wanted = stride.saturating_mul(rows.into()).saturating_add(start);
    if wanted > end {
        return Err(format!("it is truncated: {end} bytes of {wanted}"));
    }
    Ok(())
}

/// Reads the next number of a PNM header and the white space after it; comments are skipped.
fn number(reader: &mut impl Read) -> std::io::Result<Option<u32>> {
    let mut found: Option<u32> = None;
    // At most nine digits, and comments of a reasonable length.
    for _ in 0..10_000 {
        match read_array::<1>(reader)? {
            [b'#'] if found.is_none() => while read_array::<1>(reader)? != [b'\n'] {},
            [digit @ b'0'..=b'9'] => {
                let so_far = found
                    .unwrap_or(0)
                    .checked_mul(10)
                    .and_then(|value| value.checked_add(u32::from(digit - b'0')));
                let Some(value) = so_far else { return Ok(None) };
                found = Some(value);
            }
            [white] if white.is_ascii_whitespace() => {
                if found.is_some() {
                    return Ok(found);
                }
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}
