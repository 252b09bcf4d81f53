//! GIF header: screen size, and whether frames leave transparent pixels.

use std::io::{Read, Seek, SeekFrom};

use super::{Format, Header, Storage, read_array};
use crate::LoaderError;
use crate::pixels::{Bands, Layout, Sample};

/// Maximum number of blocks read; more than any encoder writes before a frame.
const MAX_BLOCKS: u32 = 10_000;

pub(super) fn read<R: Read + Seek>(reader: &mut R, page: u32) -> Result<Header, LoaderError> {
    let damaged =
        |reason: &str| LoaderError::Damaged { format: Format::Gif.name(), reason: reason.to_owned() };
    reader.seek(SeekFrom::Start(6))?;
    let [w0, w1, h0, h1, flags, _, _]: [u8; 7] = read_array(reader)?;
    let (width, height) = (u16::from_le_bytes([w0, w1]), u16::from_le_bytes([h0, h1]));
    skip_table(reader, flags)?;
    // An opaque first frame that covers the screen leaves no transparent pixel.
    let mut transparent = false;
    let mut covers = false;
    for _ in 0..MAX_BLOCKS {
        match read_array::<1>(reader)? {
            [0x2c] => {
                let [l0, l1, t0, t1, w0, w1, h0, h1]: [u8; 8] = read_array(reader)?;
                let number = |low: u8, high: u8| u16::from_le_bytes([low, high]);
                covers = number(l0, l1) == 0
                    && number(t0, t1) == 0
                    && number(w0, w1) >= width
                    && number(h0, h1) >= height;
                break;
            }
            [0x21] => {
                let [label, length]: [u8; 2] = read_array(reader)?;
                if label == 0xf9 && length == 4 {
                    let [flags, _, _, _]: [u8; 4] = read_array(reader)?;
                    transparent = flags & 1 != 0;
                } else {
                    reader.seek(SeekFrom::Current(length.into()))?;
                }
                skip_blocks(reader)?;
            }
            _ => return Err(damaged("it has no image")),
        }
    }
    // Later frames may be composed over an area that an earlier one cleared.
    let opaque = page == 0 && covers && !transparent;
    Ok(Header {
        format: Format::Gif,
        width: width.into(),
        height: height.into(),
        layout: Layout { bands: if opaque { Bands::Rgb } else { Bands::Rgba }, sample: Sample::U8 },
        orientation: 1,
        storage: Storage::Gif,
    })
}

/// Skips a colour table if the flags announce one.
fn skip_table<R: Read + Seek>(reader: &mut R, flags: u8) -> std::io::Result<()> {
    if flags & 0x80 != 0 {
        reader.seek(SeekFrom::Current(3 << ((flags & 7) + 1)))?;
    }
    Ok(())
}

fn skip_blocks<R: Read + Seek>(reader: &mut R) -> std::io::Result<()> {
    loop {
        let [length] = read_array::<1>(reader)?;
        if length == 0 {
            return Ok(());
        }
        reader.seek(SeekFrom::Current(length.into()))?;
    }
}
