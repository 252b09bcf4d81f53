//! PNG header: the chunks before the pixels.

use std::io::{Read, Seek, SeekFrom};

use super::{Format, Header, Storage, exif, read_array};
use crate::LoaderError;
use crate::pixels::{Bands, Layout, Sample};

/// Maximum size of EXIF that is read.
const MAX_EXIF_BYTES: u32 = 1 << 20;
/// Maximum number of chunks before the pixels; more than any encoder writes.
const MAX_CHUNKS: u32 = 10_000;

pub(super) fn read<R: Read + Seek>(reader: &mut R, page: u32) -> Result<Header, LoaderError> {
    let damaged =
        |reason: &str| LoaderError::Damaged { format: Format::Png.name(), reason: reason.to_owned() };
    reader.seek(SeekFrom::Start(8))?;
    let (length, kind) = chunk(reader)?;
    if kind != *b"IHDR" || length != 13 {
        return Err(damaged("it does not begin with its header"));
    }
    let header: [u8; 13] = read_array(reader)?;
    let width = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let height = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    let [depth, colour, .., interlace] = header[8..13] else { unreachable!("there are 13 bytes") };
    reader.seek(SeekFrom::Current(4))?;

    let mut orientation = 1;
    let mut transparent = false;
    let mut animated = false;
    for _ in 0..MAX_CHUNKS {
        let (length, kind) = chunk(reader)?;
        match &kind {
            b"IDAT" => break,
            b"tRNS" => transparent = true,
            b"acTL" => animated = true,
            _ => {}
        }
        if kind == *b"eXIf" && length <= MAX_EXIF_BYTES {
            let mut block = vec![0; length as usize];
            reader.read_exact(&mut block)?;
            orientation = exif::orientation(&block);
            reader.seek(SeekFrom::Current(4))?;
        } else {
            reader.seek(SeekFrom::Current(i64::from(length) + 4))?;
        }
    }
    if page > 0 && !animated {
        return Err(damaged(&format!("it has 1 image, but number {page} was requested")));
    }
    let bands = match (colour, transparent) {
        (0, false) => Bands::Grey,
        (0, true) | (4, _) => Bands::GreyAlpha,
        (2 | 3, false) => Bands::Rgb,
        (2 | 3, true) | (6, _) => Bands::Rgba,
        _ => return Err(damaged(&format!("there is no colour type {colour}"))),
    };
    let sample = if depth == 16 { Sample::U16 } else { Sample::U8 };
    Ok(Header {
        format: Format::Png,
        width,
        height,
        layout: Layout { bands, sample },
        orientation,
        storage: Storage::Png { interlaced: interlace != 0, animated, composed: page > 0 },
    })
}

fn chunk(reader: &mut impl Read) -> std::io::Result<(u32, [u8; 4])> {
    Ok((u32::from_be_bytes(read_array(reader)?), read_array(reader)?))
}
