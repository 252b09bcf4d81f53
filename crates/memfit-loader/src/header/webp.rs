//! WebP header: the chunks of the container.

use std::io::{Read, Seek, SeekFrom};

use super::{Format, Header, Storage, exif, read_array};
use crate::LoaderError;
use crate::pixels::{Bands, Layout, Sample};

/// Bytes that the decoder needs for each pixel in addition to the pixel itself. Lossy: luma and chroma planes
/// at half the size. Lossless: all values once more. With alpha: the alpha plane, which is decoded as a
/// lossless image.
const LOSSY_BYTES: u32 = 2;
const LOSSLESS_BYTES: u32 = 5;
const ALPHA_BYTES: u32 = 8;
/// Additional bytes of a pixel for an animation: the canvas and the current frame.
const ANIMATION_BYTES: u32 = 8;

/// Maximum size of EXIF that is read.
const MAX_EXIF_BYTES: u32 = 1 << 20;
/// Maximum number of chunks read; an animation's frames precede its EXIF.
const MAX_CHUNKS: u32 = 100_000;

pub(super) fn read<R: Read + Seek>(reader: &mut R) -> Result<Header, LoaderError> {
    let damaged =
        |reason: &str| LoaderError::Damaged { format: Format::WebP.name(), reason: reason.to_owned() };
    reader.seek(SeekFrom::Start(12))?;
    let kind: [u8; 4] = read_array(reader)?;
    let length = u32::from_le_bytes(read_array(reader)?);
    let mut header = Header {
        format: Format::WebP,
        width: 0,
        height: 0,
        layout: Layout { bands: Bands::Rgb, sample: Sample::U8 },
        orientation: 1,
        storage: Storage::WebP { animated: false, beside: LOSSY_BYTES },
    };
    match &kind {
        b"VP8X" => {
            let bytes: [u8; 10] = read_array(reader)?;
            let [flags, _, _, _, width @ .., _, _, _] = bytes;
            let height = [bytes[7], bytes[8], bytes[9]];
            let size = |part: [u8; 3]| 1 + u32::from_le_bytes([part[0], part[1], part[2], 0]);
            header.width = size(width);
            header.height = size(height);
            if flags & 0x10 != 0 {
                header.layout.bands = Bands::Rgba;
            }
            // The encoding of the image data is not known yet.
            let animated = flags & 0x02 != 0;
            let beside = if flags & 0x10 != 0 { ALPHA_BYTES } else { LOSSLESS_BYTES };
            header.storage =
                Storage::WebP { animated, beside: beside + if animated { ANIMATION_BYTES } else { 0 } };
            if flags & 0x08 != 0 {
                reader.seek(SeekFrom::Start(20 + u64::from(length) + u64::from(length & 1)))?;
                header.orientation = find_exif(reader);
            }
        }
        b"VP8L" => {
            let [signature, a, b, c, d]: [u8; 5] = read_array(reader)?;
            if signature != 0x2f {
                return Err(damaged("its lossless header has another signature"));
            }
            header.storage = Storage::WebP { animated: false, beside: LOSSLESS_BYTES };
            let bits = u32::from_le_bytes([a, b, c, d]);
            header.width = 1 + (bits & 0x3fff);
            header.height = 1 + (bits >> 14 & 0x3fff);
            if bits >> 28 & 1 != 0 {
                header.layout.bands = Bands::Rgba;
            }
        }
        b"VP8 " => {
            let [_, _, _, 0x9d, 0x01, 0x2a, wide @ .., _, _] = read_array::<10>(reader)? else {
                return Err(damaged("its lossy header has another signature"));
            };
            reader.seek(SeekFrom::Current(-2))?;
            header.width = u32::from(u16::from_le_bytes(wide)) & 0x3fff;
            header.height = u32::from(u16::from_le_bytes(read_array(reader)?)) & 0x3fff;
        }
        _ => return Err(damaged("it does not begin with an image")),
    }
    Ok(header)
}

/// Faulty EXIF does not make an image unreadable.
fn find_exif<R: Read + Seek>(reader: &mut R) -> u8 {
    for _ in 0..MAX_CHUNKS {
        let (Ok(kind), Ok(length)) =
            (read_array::<4>(reader), read_array::<4>(reader).map(u32::from_le_bytes))
        else {
            break;
        };
        if kind == *b"EXIF" && length <= MAX_EXIF_BYTES {
            let mut block = vec![0; length as usize];
            return reader.read_exact(&mut block).map_or(1, |()| exif::orientation(&block));
        }
        if reader.seek(SeekFrom::Current(i64::from(length) + i64::from(length & 1))).is_err() {
            break;
        }
    }
    1
}
