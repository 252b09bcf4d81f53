//! JPEG 2000 header: size from the codestream, colour information from the boxes.

use std::io::{Read, Seek, SeekFrom};

use super::{Format, Header, Storage, read_array};
use crate::LoaderError;
use crate::pixels::{Bands, Layout, Sample};

/// Maximum number of boxes read; more than any encoder writes before the image.
const MAX_BOXES: u32 = 1000;

#[derive(Default)]
struct Boxes {
    /// Columns of the palette, if the image has a palette.
    columns: Option<u8>,
    alpha: bool,
    cmyk: bool,
}

pub(super) fn read<R: Read + Seek>(reader: &mut R) -> Result<Header, LoaderError> {
    let damaged =
        |reason: &str| LoaderError::Damaged { format: Format::Jp2.name(), reason: reason.to_owned() };
    let begin: [u8; 4] = read_array(reader)?;
    let length = reader.seek(SeekFrom::End(0))?;
    reader.seek(SeekFrom::Start(0))?;
    let mut boxes = Boxes::default();
    let mut end = length;
    if begin != [0xff, 0x4f, 0xff, 0x51] {
        end = find_stream(reader, length, &mut boxes, &mut 0)?
            .ok_or_else(|| damaged("it contains no codestream"))?;
    }
    // The decoder accepts truncated streams; here they are damaged files, as in every other format.
    let stream = reader.stream_position()?;
    reader.seek(SeekFrom::Start(end.min(length).saturating_sub(2)))?;
    if end > length || read_array(reader)? != [0xff, 0xd9] {
        return Err(damaged("it is truncated"));
    }
    reader.seek(SeekFrom::Start(stream))?;
    let [0xff, 0x4f, 0xff, 0x51, ..] = read_array::<8>(reader)? else {
        return Err(damaged("its codestream does not begin with a SIZ marker"));
    };
    let mut number = || -> std::io::Result<u32> { Ok(u32::from_be_bytes(read_array(reader)?)) };
    let (right, bottom, left, top) = (number()?, number()?, number()?, number()?);
    let _tile = (number()?, number()?);
    let (width, height) = (right.saturating_sub(left), bottom.saturating_sub(top));
    let _offset = (number()?, number()?);
    let components = u16::from_be_bytes(read_array(reader)?);
    let [depth, ..] = read_array::<3>(reader)?;
    reader.seek(SeekFrom::Current(3 * i64::from(components.saturating_sub(1))))?;
    let levels = levels(reader)?;
    if depth & 0x80 != 0 {
        return Err(LoaderError::Unsupported {
            format: Format::Jp2.name(),
            reason: "its samples are signed".to_owned(),
        });
    }
    let bits = u32::from(depth & 0x7f) + 1;
    let sample = match (bits, boxes.columns) {
        (_, Some(_)) | (1..=8, _) => Sample::U8,
        (9..=16, _) => Sample::U16,
        _ => return Err(damaged("its samples have more than 16 bits")),
    };
    let count = boxes.columns.map_or(components, u16::from);
    let bands = match (count, boxes.alpha) {
        (1, _) => Bands::Grey,
        (2, true) => Bands::GreyAlpha,
        (3, _) => Bands::Rgb,
        (4, true) => Bands::Rgba,
        (4, false) if boxes.cmyk => Bands::Cmyk,
        (count, _) => Bands::Many(count.into()),
    };
    Ok(Header {
        format: Format::Jp2,
        width,
        height,
        layout: Layout { bands, sample },
        orientation: 1,
        storage: Storage::Jp2 { components, bits, levels },
    })
}

/// Number of wavelet decomposition levels, from the coding style segment (COD) of the codestream.
fn levels<R: Read + Seek>(reader: &mut R) -> std::io::Result<u32> {
    for _ in 0..MAX_BOXES {
        match read_array::<4>(reader)? {
            [0xff, 0x52, _, _] => {
                let [_, _, _, _, _, levels] = read_array(reader)?;
                // The standard allows up to 32; images below 1/32 of the size are not useful.
                return Ok(u32::from(levels).min(5));
            }
            [0xff, 0x90, ..] => break,
            [0xff, _, high, low] => {
                reader.seek(SeekFrom::Current(i64::from(u16::from_be_bytes([high, low])).max(2) - 2))?;
            }
            _ => break,
        }
    }
    Ok(0)
}

/// Walks the boxes up to the first byte of the codestream. Returns its declared end, if there is one.
fn find_stream<R: Read + Seek>(
    reader: &mut R,
    end: u64,
    boxes: &mut Boxes,
    seen: &mut u32,
) -> Result<Option<u64>, LoaderError> {
    while reader.stream_position()? + 8 <= end {
        *seen += 1;
        if *seen > MAX_BOXES {
            return Ok(None);
        }
        let begin = reader.stream_position()?;
        let length = u32::from_be_bytes(read_array(reader)?);
        let kind: [u8; 4] = read_array(reader)?;
        let next = match length {
            0 => end,
            1 => begin.saturating_add(u64::from_be_bytes(read_array(reader)?)),
            length => begin + u64::from(length),
        };
        match &kind {
            b"jp2c" => return Ok(Some(next)),
            b"jp2h" => {
                let _ = find_stream(reader, next.min(end), boxes, seen)?;
            }
            b"pclr" => {
                let [_, _, columns] = read_array(reader)?;
                boxes.columns = Some(columns);
            }
            b"colr" => {
                if let [1, _, _, a, b, c, d] = read_array::<7>(reader)? {
                    // Enumerated colour spaces CMYK and YCCK.
                    boxes.cmyk = matches!(u32::from_be_bytes([a, b, c, d]), 12 | 13);
                }
            }
            b"cdef" => {
                let count = u16::from_be_bytes(read_array(reader)?);
                for _ in 0..count.min(64) {
                    let [_, _, _, kind, _, _]: [u8; 6] = read_array(reader)?;
                    boxes.alpha |= kind == 1 || kind == 2;
                }
            }
            _ => {}
        }
        if next <= begin {
            return Ok(None);
        }
        reader.seek(SeekFrom::Start(next))?;
    }
    Ok(None)
}
