//! WebP: the chunks of its container.

use std::io::{Read, Seek, SeekFrom};

use super::{Format, Header, Storage, exif, take};
use crate::LoaderError;
use crate::pixels::{Bands, Layout, Sample};

/// What the decoder takes for each pixel beside the pixel itself: planes of brightness and colour, at half
/// the size, where it is lossy; all values once more where it is lossless; with opacity, that decoded as a
/// lossless picture of its own.
const LOSSY: u32 = 2;
const LOSSLESS: u32 = 5;
const WITH_ALPHA: u32 = 8;
/// And for an animation, the screen and the picture that is drawn on it.
const ANIMATED: u32 = 8;

/// EXIF longer than this is passed over.
const LONGEST_EXIF: u32 = 1 << 20;
/// Chunks that are looked at; an animation's frames come before its EXIF.
const MOST_CHUNKS: u32 = 100_000;

pub(super) fn read<R: Read + Seek>(reader: &mut R) -> Result<Header, LoaderError> {
    let damaged =
        |reason: &str| LoaderError::Damaged { format: Format::WebP.name(), reason: reason.to_owned() };
    reader.seek(SeekFrom::Start(12))?;
    let kind: [u8; 4] = take(reader)?;
    let length = u32::from_le_bytes(take(reader)?);
    let mut header = Header {
        format: Format::WebP,
        width: 0,
        height: 0,
        layout: Layout { bands: Bands::Rgb, sample: Sample::U8 },
        orientation: 1,
        storage: Storage::WebP { animated: false, beside: LOSSY },
    };
    match &kind {
        b"VP8X" => {
            let bytes: [u8; 10] = take(reader)?;
            let [flags, _, _, _, width @ .., _, _, _] = bytes;
            let height = [bytes[7], bytes[8], bytes[9]];
            let size = |part: [u8; 3]| 1 + u32::from_le_bytes([part[0], part[1], part[2], 0]);
            header.width = size(width);
            header.height = size(height);
            if flags & 0x10 != 0 {
                header.layout.bands = Bands::Rgba;
            }
            // What kind of picture follows is not known yet.
            let animated = flags & 0x02 != 0;
            let beside = if flags & 0x10 != 0 { WITH_ALPHA } else { LOSSLESS };
            header.storage = Storage::WebP { animated, beside: beside + if animated { ANIMATED } else { 0 } };
            if flags & 0x08 != 0 {
                reader.seek(SeekFrom::Start(20 + u64::from(length) + u64::from(length & 1)))?;
                header.orientation = find_exif(reader);
            }
        }
        b"VP8L" => {
            let [signature, a, b, c, d]: [u8; 5] = take(reader)?;
            if signature != 0x2f {
                return Err(damaged("its lossless header has another signature"));
            }
            header.storage = Storage::WebP { animated: false, beside: LOSSLESS };
            let bits = u32::from_le_bytes([a, b, c, d]);
            header.width = 1 + (bits & 0x3fff);
            header.height = 1 + (bits >> 14 & 0x3fff);
            if bits >> 28 & 1 != 0 {
                header.layout.bands = Bands::Rgba;
            }
        }
        b"VP8 " => {
            let [_, _, _, 0x9d, 0x01, 0x2a, wide @ .., _, _] = take::<10>(reader)? else {
                return Err(damaged("its lossy header has another signature"));
            };
            reader.seek(SeekFrom::Current(-2))?;
            header.width = u32::from(u16::from_le_bytes(wide)) & 0x3fff;
            header.height = u32::from(u16::from_le_bytes(take(reader)?)) & 0x3fff;
        }
        _ => return Err(damaged("it begins with no picture")),
    }
    Ok(header)
}

/// Nothing that is wrong with a block of EXIF makes a picture unreadable.
fn find_exif<R: Read + Seek>(reader: &mut R) -> u8 {
    for _ in 0..MOST_CHUNKS {
        let (Ok(kind), Ok(length)) = (take::<4>(reader), take::<4>(reader).map(u32::from_le_bytes)) else {
            break;
        };
        if kind == *b"EXIF" && length <= LONGEST_EXIF {
            let mut block = vec![0; length as usize];
            return reader.read_exact(&mut block).map_or(1, |()| exif::orientation(&block));
        }
        if reader.seek(SeekFrom::Current(i64::from(length) + i64::from(length & 1))).is_err() {
            break;
        }
    }
    1
}
