//! JPEG header: walks the markers up to the first scan.

use std::io::{Read, Seek, SeekFrom};

use super::{Format, Header, Storage, exif, read_array};
use crate::LoaderError;
use crate::pixels::{Bands, Layout, Sample};

/// Maximum size of EXIF that is read; the format allows 64 KiB a segment.
const MAX_EXIF_BYTES: usize = 1 << 16;

struct Frame {
    marker: u8,
    precision: u8,
    width: u32,
    height: u32,
    /// Horizontal and vertical sampling of each component.
    sampling: Vec<(u32, u32)>,
}

pub(super) fn read<R: Read + Seek>(reader: &mut R) -> Result<Header, LoaderError> {
    let damaged =
        |reason: &str| LoaderError::Damaged { format: Format::Jpeg.name(), reason: reason.to_owned() };
    reader.seek(SeekFrom::Start(2))?;
    let mut orientation = None;
    let mut adobe = None;
    let frame = loop {
        let marker = marker(reader)?;
        // Markers without a length.
        if matches!(marker, 0x01 | 0xd0..=0xd8) {
            continue;
        }
        if marker == 0xd9 || marker == 0xda {
            return Err(damaged("it has no frame header before its first scan"));
        }
        let length = usize::from(u16::from_be_bytes(read_array(reader)?))
            .checked_sub(2)
            .ok_or_else(|| damaged("a segment is shorter than its own length"))?;
        match marker {
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => break frame(reader, marker, length)?,
            0xe1 if orientation.is_none() && length <= MAX_EXIF_BYTES => {
                let segment = segment(reader, length)?;
                if segment.starts_with(b"Exif\0\0") {
                    orientation = Some(exif::orientation(&segment));
                }
            }
            0xee if length <= MAX_EXIF_BYTES => {
                let segment = segment(reader, length)?;
                if segment.starts_with(b"Adobe") {
                    adobe = segment.get(11).copied();
                }
            }
            _ => {
                reader.seek(SeekFrom::Current(length as i64))?;
            }
        }
    };
    let bands = match frame.sampling.len() {
        1 => Bands::Grey,
        3 => Bands::Rgb,
        4 => Bands::Cmyk,
        other => return Err(damaged(&format!("it has {other} components"))),
    };
    let widest = frame.sampling.iter().map(|(across, _)| *across).max().unwrap_or(1);
    let tallest = frame.sampling.iter().map(|(_, down)| *down).max().unwrap_or(1);
    let samples =
        frame.sampling.iter().map(|(across, down)| across * down * 1000).sum::<u32>() / (widest * tallest);
    let block = if frame.sampling.len() == 1 { (8, 8) } else { (8 * widest, 8 * tallest) };
    let unusual = match (frame.marker, frame.precision) {
        (0xc3 | 0xc7 | 0xcb | 0xcf, _) => Some("it is lossless"),
        (0xc9..=0xcf, _) => Some("it is arithmetic-coded"),
        (0xc5..=0xc7, _) => Some("it is hierarchical"),
        (_, 8) => None,
        _ => Some("it does not have 8 bits per sample"),
    };
    Ok(Header {
        format: Format::Jpeg,
        width: frame.width,
        height: frame.height,
        layout: Layout { bands, sample: Sample::U8 },
        orientation: orientation.unwrap_or(1),
        storage: Storage::Jpeg {
            progressive: frame.marker == 0xc2,
            samples: samples.max(1000),
            block,
            inverted: bands == Bands::Cmyk && adobe.is_some(),
            unusual,
        },
    })
}

/// Reads the next marker's second byte, after any fill bytes.
fn marker(reader: &mut impl Read) -> Result<u8, LoaderError> {
    let [mut byte] = read_array(reader)?;
    if byte != 0xff {
        return Err(LoaderError::Damaged {
            format: Format::Jpeg.name(),
            reason: "its header contains something that is not a marker".to_owned(),
        });
    }
    while byte == 0xff {
        [byte] = read_array(reader)?;
    }
    Ok(byte)
}

fn segment(reader: &mut impl Read, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn frame(reader: &mut impl Read, marker: u8, length: usize) -> Result<Frame, LoaderError> {
    let damaged =
        |reason: &str| LoaderError::Damaged { format: Format::Jpeg.name(), reason: reason.to_owned() };
    let bytes = segment(reader, length)?;
    let [precision, high_y, low_y, high_x, low_x, components, rest @ ..] = bytes.as_slice() else {
        return Err(damaged("its frame is truncated"));
    };
    let components: Vec<&[u8]> = rest.chunks_exact(3).take(usize::from(*components)).collect();
    let sampling: Vec<(u32, u32)> =
        components.iter().map(|part| (u32::from(part[1] >> 4), u32::from(part[1] & 15))).collect();
    if sampling.iter().any(|(across, down)| !(1..=4).contains(across) || !(1..=4).contains(down)) {
        return Err(damaged("its sampling factors are invalid"));
    }
    Ok(Frame {
        marker,
        precision: *precision,
        width: u32::from(u16::from_be_bytes([*high_x, *low_x])),
        height: u32::from(u16::from_be_bytes([*high_y, *low_y])),
        sampling,
    })
}
