//! JPEG 2000: the size of its code stream, and what its boxes say of colours.

use std::io::{Read, Seek, SeekFrom};

use super::{Format, Header, Storage, take};
use crate::LoaderError;
use crate::pixels::{Bands, Layout, Sample};

/// Boxes that are looked at; more than any program writes before the picture.
const MOST_BOXES: u32 = 1000;

#[derive(Default)]
struct Boxes {
    /// Values of a table's entry, where numbers are stored and not colours.
    columns: Option<u8>,
    alpha: bool,
    inks: bool,
}

pub(super) fn read<R: Read + Seek>(reader: &mut R) -> Result<Header, LoaderError> {
    let damaged =
        |reason: &str| LoaderError::Damaged { format: Format::Jp2.name(), reason: reason.to_owned() };
    let begin: [u8; 4] = take(reader)?;
    let length = reader.seek(SeekFrom::End(0))?;
    reader.seek(SeekFrom::Start(0))?;
    let mut boxes = Boxes::default();
    let mut end = length;
    if begin != [0xff, 0x4f, 0xff, 0x51] {
        end = find_stream(reader, length, &mut boxes, &mut 0)?
            .ok_or_else(|| damaged("it holds no code stream"))?;
    }
    // The decoder makes what it can of a stream that is cut off; here it is a broken file, as of any other
    // format.
    let stream = reader.stream_position()?;
    reader.seek(SeekFrom::Start(end.min(length).saturating_sub(2)))?;
    if end > length || take(reader)? != [0xff, 0xd9] {
        return Err(damaged("it is cut off before its end"));
    }
    reader.seek(SeekFrom::Start(stream))?;
    let [0xff, 0x4f, 0xff, 0x51, ..] = take::<8>(reader)? else {
        return Err(damaged("its code stream begins with no size"));
    };
    let mut number = || -> std::io::Result<u32> { Ok(u32::from_be_bytes(take(reader)?)) };
    let (right, bottom, left, top) = (number()?, number()?, number()?, number()?);
    let _tile = (number()?, number()?);
    let (width, height) = (right.saturating_sub(left), bottom.saturating_sub(top));
    let _offset = (number()?, number()?);
    let components = u16::from_be_bytes(take(reader)?);
    let [depth, ..] = take::<3>(reader)?;
    reader.seek(SeekFrom::Current(3 * i64::from(components.saturating_sub(1))))?;
    let levels = levels(reader)?;
    if depth & 0x80 != 0 {
        return Err(LoaderError::Unsupported {
            format: Format::Jp2.name(),
            reason: "its values have a sign".to_owned(),
        });
    }
    let bits = u32::from(depth & 0x7f) + 1;
    let sample = match (bits, boxes.columns) {
        (_, Some(_)) | (1..=8, _) => Sample::U8,
        (9..=16, _) => Sample::U16,
        _ => return Err(damaged("its values have more than 16 bits")),
    };
    let count = boxes.columns.map_or(components, u16::from);
    let bands = match (count, boxes.alpha) {
        (1, _) => Bands::Grey,
        (2, true) => Bands::GreyAlpha,
        (3, _) => Bands::Rgb,
        (4, true) => Bands::Rgba,
        (4, false) if boxes.inks => Bands::Cmyk,
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

/// How often the picture is halved: from the segment of the code stream that says how it is coded.
fn levels<R: Read + Seek>(reader: &mut R) -> std::io::Result<u32> {
    for _ in 0..MOST_BOXES {
        match take::<4>(reader)? {
            [0xff, 0x52, _, _] => {
                let [_, _, _, _, _, levels] = take(reader)?;
                // The standard has at most 32; no one looks at pictures of one 32nd.
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

/// Walks the boxes, and stops at the code stream's first byte: where that is said to end, if there is one.
fn find_stream<R: Read + Seek>(
    reader: &mut R,
    end: u64,
    boxes: &mut Boxes,
    seen: &mut u32,
) -> Result<Option<u64>, LoaderError> {
    while reader.stream_position()? + 8 <= end {
        *seen += 1;
        if *seen > MOST_BOXES {
            return Ok(None);
        }
        let begin = reader.stream_position()?;
        let length = u32::from_be_bytes(take(reader)?);
        let kind: [u8; 4] = take(reader)?;
        let next = match length {
            0 => end,
            1 => begin.saturating_add(u64::from_be_bytes(take(reader)?)),
            length => begin + u64::from(length),
        };
        match &kind {
            b"jp2c" => return Ok(Some(next)),
            b"jp2h" => {
                let _ = find_stream(reader, next.min(end), boxes, seen)?;
            }
            b"pclr" => {
                let [_, _, columns] = take(reader)?;
                boxes.columns = Some(columns);
            }
            b"colr" => {
                if let [1, _, _, a, b, c, d] = take::<7>(reader)? {
                    boxes.inks = matches!(u32::from_be_bytes([a, b, c, d]), 12 | 13);
                }
            }
            b"cdef" => {
                let count = u16::from_be_bytes(take(reader)?);
                for _ in 0..count.min(64) {
                    let [_, _, _, kind, _, _]: [u8; 6] = take(reader)?;
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
