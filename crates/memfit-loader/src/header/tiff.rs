//! TIFF header: the directory of one page.

use std::io::{Read, Seek};

use ::tiff::ColorType;
use ::tiff::decoder::{ChunkType, Decoder, Limits};
use ::tiff::tags::{SampleFormat, Tag};

use super::indexed::PatchedReader;
use super::{Format, Header, Overview, Packed, Storage};
use crate::LoaderError;
use crate::pixels::{Bands, Layout, Sample};

/// Memory limit for directories and chunk tables, which are small unless a header is false.
pub(crate) const MAX_DIRECTORY_BYTES: usize = 16 << 20;

/// Maximum number of overviews read; each is half the size of the one before.
const MAX_OVERVIEWS: u32 = 64;
/// Bits of `NewSubfileType`: a reduced version of another image, and a transparency mask.
const REDUCED: u32 = 1;
const MASK: u32 = 4;

/// Opens a decoder at a page; `chunk` is the memory limit for a chunk in bytes.
pub(crate) fn open<R: Read + Seek>(
    reader: R,
    page: u32,
    chunk: usize,
) -> Result<Decoder<PatchedReader<R>>, LoaderError> {
    let reader = PatchedReader::new(reader, page)?;
    let damaged = LoaderError::damaged(Format::Tiff.name());
    let mut limits = Limits::default();
    limits.decoding_buffer_size = chunk;
    limits.intermediate_buffer_size = chunk;
    limits.ifd_value_size = MAX_DIRECTORY_BYTES;
    let mut decoder = Decoder::new(reader).map_err(&damaged)?.with_limits(limits);
    if page > 0 {
        decoder.seek_to_image(page as usize).map_err(&damaged)?;
    }
    Ok(decoder)
}

pub(super) fn read<R: Read + Seek>(reader: &mut R, page: u32) -> Result<Header, LoaderError> {
    let mut decoder = open(reader, page, usize::MAX)?;
    let palette = decoder.inner().indexed();
    let mut header = page_header(&mut decoder, palette)?;
    let found = overviews(&mut decoder, &header, page);
    if let Storage::Tiff { overviews, .. } = &mut header.storage {
        *overviews = found;
    }
    Ok(header)
}

/// Overviews of a page, which follow it in the file. GeoTIFFs read over a network have them.
fn overviews<R: Read + Seek>(decoder: &mut Decoder<R>, header: &Header, page: u32) -> Vec<Overview> {
    let mut found: Vec<Overview> = Vec::new();
    // A damaged later directory does not make the image unreadable.
    for number in page + 1..page.saturating_add(MAX_OVERVIEWS) {
        if !decoder.more_images() || decoder.next_image().is_err() {
            break;
        }
        let kind = decoder.find_tag_unsigned::<u32>(Tag::NewSubfileType).ok().flatten().unwrap_or(0);
        if kind & (REDUCED | MASK) == 0 {
            break;
        }
        if kind & MASK != 0 {
            continue;
        }
        let Ok(Header { width, height, layout, storage: Storage::Tiff { chunk, planar, .. }, .. }) =
            page_header(decoder, false)
        else {
            continue;
        };
        let last = found.last().map_or((header.width, header.height), |last| (last.width, last.height));
        let same = matches!(&header.storage, Storage::Tiff { planar: other, .. } if *other == planar);
        let smaller = width > 0 && height > 0 && width <= last.0 && height <= last.1;
        if layout == header.layout && same && smaller {
            found.push(Overview { page: number, width, height, chunk });
        }
    }
    found
}

/// Header of the decoder's current page.
fn page_header<R: Read + Seek>(decoder: &mut Decoder<R>, palette: bool) -> Result<Header, LoaderError> {
    let damaged = LoaderError::damaged(Format::Tiff.name());
    let unsupported = |reason: String| LoaderError::Unsupported { format: Format::Tiff.name(), reason };
    let (width, height) = decoder.dimensions().map_err(&damaged)?;
    let colour = decoder.colortype().map_err(&damaged)?;
    let orientation = decoder
        .find_tag_unsigned::<u16>(Tag::Orientation)
        .ok()
        .flatten()
        .filter(|value| (1..=8).contains(value));
    let kind = decoder
        .find_tag_unsigned_vec::<u16>(Tag::SampleFormat)
        .map_err(&damaged)?
        .and_then(|kinds| kinds.first().copied())
        .map_or(SampleFormat::Uint, SampleFormat::from_u16_exhaustive);
    let (bands, depth) = match colour {
        ColorType::Gray(depth) => (Bands::Grey, depth),
        ColorType::GrayA(depth) => (Bands::GreyAlpha, depth),
        ColorType::RGB(depth) | ColorType::YCbCr(depth) => (Bands::Rgb, depth),
        ColorType::RGBA(depth) => (Bands::Rgba, depth),
        ColorType::CMYK(depth) => (Bands::Cmyk, depth),
        ColorType::Multiband { bit_depth, num_samples } => (Bands::Many(u32::from(num_samples)), bit_depth),
        other => return Err(unsupported(format!("its colours are {other:?}"))),
    };
    let indexed = palette && bands == Bands::Grey && matches!(depth, 1 | 2 | 4 | 8 | 16);
    let shades = !palette && bands == Bands::Grey && matches!(depth, 1 | 2 | 4);
    let packed = (indexed || shades).then_some(Packed { bits: depth, palette });
    let bands = if indexed { Bands::Rgb } else { bands };
    let sample = match (kind, depth) {
        _ if packed.is_some() => Sample::U8,
        _ if palette => return Err(unsupported(format!("the numbers of its colours have {depth} bits"))),
        (SampleFormat::Uint, 8) => Sample::U8,
        (SampleFormat::Uint, 16) => Sample::U16,
        // Wider and signed integers have no sample type here; floats hold the values of real files.
        (SampleFormat::Uint, 32 | 64)
        | (SampleFormat::Int, 8 | 16 | 32 | 64)
        | (SampleFormat::IEEEFP, 16 | 32 | 64) => Sample::F32,
        _ => return Err(unsupported(format!("its values are {depth}-bit {kind:?}"))),
    };
    let planar = decoder.find_tag_unsigned::<u16>(Tag::PlanarConfiguration).map_err(&damaged)? == Some(2)
        && bands.count() > 1;
    let chunk = decoder.chunk_dimensions();
    let strips = decoder.get_chunk_type() == ChunkType::Strip;
    Ok(Header {
        format: Format::Tiff,
        width,
        height,
        layout: Layout { bands, sample },
        orientation: orientation.map_or(1, |value| value as u8),
        storage: Storage::Tiff {
            chunk: (if strips { width } else { chunk.0 }, chunk.1.min(height.max(1))),
            planar,
            packed,
            overviews: Vec::new(),
        },
    })
}
