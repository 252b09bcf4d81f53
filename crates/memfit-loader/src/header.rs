//! Image headers, read from the first bytes of a file before memory of the image's size is allocated.

mod exif;
mod gif;
mod indexed;
#[cfg(feature = "jpeg2000")]
mod jp2;
mod jpeg;
mod png;
mod raw;
pub(crate) mod tiff;
mod webp;

use std::io::{Read, Seek, SeekFrom};

use crate::LoaderError;
use crate::pixels::Layout;

pub(crate) use indexed::PatchedReader;
pub use raw::{Packing, Rows};

/// Supported image formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// JPEG, baseline or progressive.
    Jpeg,
    /// PNG.
    Png,
    /// WebP, lossy or lossless.
    WebP,
    /// TIFF and BigTIFF.
    Tiff,
    /// GIF.
    Gif,
    /// BMP.
    Bmp,
    /// PGM, PPM and PBM, as bytes.
    Pnm,
    /// JPEG 2000, alone or in boxes.
    Jp2,
}

impl Format {
    /// Common name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Tiff => "TIFF",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
            Self::Pnm => "PNM",
            Self::Jp2 => "JPEG 2000",
        }
    }

    /// Detects the format from the first bytes of a file, whatever its name.
    pub fn sniff(begin: &[u8]) -> Option<Self> {
        match begin {
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Some(Self::Tiff),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            // Two letters alone would match many files: the length in the BMP header is one of a few values.
            [b'B', b'M', .., 12 | 40 | 52 | 56 | 64 | 108 | 124, 0] if begin.len() == 16 => Some(Self::Bmp),
            [b'P', b'4'..=b'6', b' ' | b'\t' | b'\n' | b'\r' | b'#', ..] => Some(Self::Pnm),
            [0, 0, 0, 12, b'j', b'P', b' ', b' ', 0x0d, 0x0a, 0x87, 0x0a, ..]
            | [0xff, 0x4f, 0xff, 0x51, ..] => Some(Self::Jp2),
            _ => None,
        }
    }

    /// Returns `true` if a file may contain several images, of which one is selected.
    fn paged(self) -> bool {
        matches!(self, Self::Tiff | Self::Gif | Self::WebP | Self::Png)
    }
}

/// Header of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Format.
    pub format: Format,
    /// Stored width in pixels.
    pub width: u32,
    /// Stored height in pixels.
    pub height: u32,
    /// Layout of the decoded values.
    pub layout: Layout,
    /// EXIF orientation, 1 to 8; 1 is upright.
    pub orientation: u8,
    /// Storage details that determine the cost of decoding.
    pub storage: Storage,
}

/// Storage details that determine the cost of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A JPEG.
    Jpeg {
        /// `true` if it has several scans, so that the decoder holds all coefficients.
        progressive: bool,
        /// Samples of all components in 1,000 pixels: 1,000 for grey, 1,500 for 4:2:0, 3,000 for 4:4:4.
        samples: u32,
        /// Width and height in pixels of the blocks (MCUs).
        block: (u32, u32),
        /// `true` if inks are stored inverted, as Adobe's programs do.
        inverted: bool,
        /// Description of any coding other than eight-bit samples in Huffman code.
        unusual: Option<&'static str>,
    },
    /// A PNG.
    Png {
        /// `true` if it is interlaced, so that the decoder holds the whole image.
        interlaced: bool,
        /// `true` if it has more than one frame.
        animated: bool,
        /// `true` if the frame is composed with those before it, so that whole frames are held.
        composed: bool,
    },
    /// A WebP.
    WebP {
        /// `true` if it has more than one frame.
        animated: bool,
        /// Bytes that the decoder needs for each pixel in addition to the pixel itself.
        beside: u32,
    },
    /// A TIFF.
    Tiff {
        /// Width and height of the strips or tiles.
        chunk: (u32, u32),
        /// `true` if each band has its own chunks.
        planar: bool,
        /// Palette indices, or samples of fewer than eight bits; `None` for all other images.
        packed: Option<Packed>,
        /// Reduced versions of the image, the largest first.
        overviews: Vec<Overview>,
    },
    /// A GIF.
    Gif,
    /// Rows of uncompressed pixels.
    Rows(Rows),
    /// A JPEG 2000.
    Jp2 {
        /// Number of components.
        components: u16,
        /// Bits of a sample.
        bits: u32,
        /// Number of resolution halvings.
        levels: u32,
    },
}

/// Values of a TIFF that must be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Bits of a value.
    pub bits: u8,
    /// `true` for palette indices, `false` for grey values.
    pub palette: bool,
}

/// Reduced version of an image, on another page of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    /// Page.
    pub page: u32,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Width and height of its strips or tiles.
    pub chunk: (u32, u32),
}

impl Header {
    /// Returns `true` for a progressive JPEG or an interlaced PNG.
    pub fn progressive(&self) -> bool {
        matches!(
            self.storage,
            Storage::Jpeg { progressive: true, .. } | Storage::Png { interlaced: true, .. }
        )
    }

    /// Width and height in upright orientation.
    pub fn upright(&self) -> (u32, u32) {
        if self.orientation >= 5 { (self.height, self.width) } else { (self.width, self.height) }
    }

    /// Selects the smallest overview that has at least `margin` times the wanted pixels, and returns it as a
    /// header with its page. Returns `None` for the image itself.
    ///
    /// `shown` and `size` are width and height of the shown part and of the result, both in stored
    /// orientation.
    pub(crate) fn overview(&self, shown: (f64, f64), size: (u32, u32), margin: f64) -> Option<(Self, u32)> {
        let Storage::Tiff { planar, packed, overviews, .. } = &self.storage else { return None };
        let enough = |has: f64, small: u32, large: u32, wants: u32| {
            has * f64::from(small) / f64::from(large) >= margin * f64::from(wants) - 1e-9
        };
        let found = overviews.iter().rev().find(|small| {
            enough(shown.0, small.width, self.width, size.0)
                && enough(shown.1, small.height, self.height, size.1)
        })?;
        let storage =
            Storage::Tiff { chunk: found.chunk, planar: *planar, packed: *packed, overviews: Vec::new() };
        Some((Self { width: found.width, height: found.height, storage, ..self.clone() }, found.page))
    }

    /// Number of pixels.
    pub fn pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Reads the header and no more of the file than that needs.
    ///
    /// `page` counts the images of a multi-page TIFF or an animation from 0.
    pub fn read<R: Read + Seek>(reader: &mut R, page: u32) -> Result<Self, LoaderError> {
        let mut begin = [0_u8; 16];
        let got = read_up_to(reader, &mut begin)?;
        let Some(format) = Format::sniff(&begin[..got]) else {
            return Err(LoaderError::UnknownFormat { begins: show(&begin[..got]) });
        };
        reader.seek(SeekFrom::Start(0))?;
        if page > 0 && !format.paged() {
            return Err(LoaderError::Unsupported {
                format: format.name(),
                reason: "only TIFF, GIF, WebP and PNG have pages to choose from".to_owned(),
            });
        }
        let header = match format {
            Format::Jpeg => jpeg::read(reader),
            Format::Png => png::read(reader, page),
            Format::WebP => webp::read(reader),
            Format::Tiff => tiff::read(reader, page),
            Format::Gif => gif::read(reader, page),
            Format::Bmp => raw::bmp(reader),
            Format::Pnm => raw::pnm(reader),
            #[cfg(feature = "jpeg2000")]
            Format::Jp2 => jp2::read(reader),
            #[cfg(not(feature = "jpeg2000"))]
            Format::Jp2 => Err(LoaderError::Unsupported {
                format: format.name(),
                reason: "this build is without the feature `jpeg2000`".to_owned(),
            }),
        }
        .map_err(|error| match error {
            LoaderError::Read(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                LoaderError::Damaged { format: format.name(), reason: "it ends within its header".to_owned() }
            }
            error => error,
        })?;
        if header.width == 0 || header.height == 0 {
            return Err(LoaderError::Damaged {
                format: format.name(),
                reason: format!("its header says {}x{}", header.width, header.height),
            });
        }
        Ok(header)
    }
}

/// Reads until the buffer is full or the file ends.
fn read_up_to(reader: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match reader.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

fn show(begin: &[u8]) -> String {
    if begin.is_empty() {
        return "nothing, it is empty".to_owned();
    }
    let hex: Vec<String> = begin.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    hex.join(" ")
}

/// Reads the next `N` bytes.
fn read_array<const N: usize>(reader: &mut impl Read) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}
