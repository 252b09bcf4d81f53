//! What an image's header says: found from its first bytes, before anything of its size is allocated.

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

pub(crate) use indexed::Shown;
pub use raw::{Packing, Rows};

/// The formats that are read.
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
    /// Its name, as people write it.
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

    /// The format of what begins with these bytes, whatever the file is called.
    pub fn sniff(begin: &[u8]) -> Option<Self> {
        match begin {
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Some(Self::Tiff),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            // Two letters alone would take much for a BMP: its header's length is one of a few.
            [b'B', b'M', .., 12 | 40 | 52 | 56 | 64 | 108 | 124, 0] if begin.len() == 16 => Some(Self::Bmp),
            [b'P', b'4'..=b'6', b' ' | b'\t' | b'\n' | b'\r' | b'#', ..] => Some(Self::Pnm),
            [0, 0, 0, 12, b'j', b'P', b' ', b' ', 0x0d, 0x0a, 0x87, 0x0a, ..]
            | [0xff, 0x4f, 0xff, 0x51, ..] => Some(Self::Jp2),
            _ => None,
        }
    }

    /// Whether it holds several pictures, of which one is chosen.
    fn paged(self) -> bool {
        matches!(self, Self::Tiff | Self::Gif | Self::WebP | Self::Png)
    }
}

/// What an image's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its format.
    pub format: Format,
    /// Its width in pixels, as stored.
    pub width: u32,
    /// Its height in pixels, as stored.
    pub height: u32,
    /// What its values are once decoded.
    pub layout: Layout,
    /// How it is to be turned to stand upright, as EXIF counts: 1 to 8, 1 for not at all.
    pub orientation: u8,
    /// How it is stored, as far as that decides what decoding takes.
    pub storage: Storage,
}

/// How an image is stored, as far as that decides what decoding takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A JPEG.
    Jpeg {
        /// In several scans, for which all coefficients are held.
        progressive: bool,
        /// Samples of all components for each 1,000 pixels: 1,000 for grey, 1,500 for 4:2:0, 3,000 for
        /// 4:4:4.
        samples: u32,
        /// Width and height of the blocks that it is coded in, in pixels.
        block: (u32, u32),
        /// Inks are stored the other way round, as Adobe's programs do.
        inverted: bool,
        /// Anything but eight bits a sample, in Huffman code.
        unusual: Option<&'static str>,
    },
    /// A PNG.
    Png {
        /// Coarse first, for which the whole image is held.
        interlaced: bool,
        /// More than one picture.
        animated: bool,
        /// It is drawn over those before it, for which whole pictures are held.
        composed: bool,
    },
    /// A WebP.
    WebP {
        /// More than one picture.
        animated: bool,
        /// What decoding takes for each pixel beside the pixel itself, in bytes.
        beside: u32,
    },
    /// A TIFF.
    Tiff {
        /// Width and height of its strips or tiles.
        chunk: (u32, u32),
        /// Each band in chunks of its own.
        planar: bool,
        /// Bits of a value that is a number of a colour or has fewer than eight; nothing for all others.
        packed: Option<Packed>,
        /// The same picture in smaller sizes, the largest first.
        overviews: Vec<Overview>,
    },
    /// A GIF.
    Gif,
    /// Rows of plain pixels.
    Rows(Rows),
    /// A JPEG 2000.
    Jp2 {
        /// How many components it has.
        components: u16,
        /// Bits of a value.
        bits: u32,
        /// It is stored at one over two to the power of each number up to this.
        levels: u32,
    },
}

/// Values of a TIFF that are no values of the picture yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Bits of each.
    pub bits: u8,
    /// Whether they are numbers of colours in a palette; else they are shades of grey.
    pub palette: bool,
}

/// The same picture in a smaller size, on another page of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    /// The page.
    pub page: u32,
    /// Its width in pixels.
    pub width: u32,
    /// Its height in pixels.
    pub height: u32,
    /// Width and height of its strips or tiles.
    pub chunk: (u32, u32),
}

impl Header {
    /// Whether it is a JPEG in several scans, or a PNG that begins coarse.
    pub fn progressive(&self) -> bool {
        matches!(
            self.storage,
            Storage::Jpeg { progressive: true, .. } | Storage::Png { interlaced: true, .. }
        )
    }

    /// Width and height as the picture is looked at.
    pub fn upright(&self) -> (u32, u32) {
        if self.orientation >= 5 { (self.height, self.width) } else { (self.width, self.height) }
    }

    /// The smallest of its overviews that leaves `margin` times the pixels that are wanted, as a header of
    /// its own with its page; `None` if that is the picture itself.
    ///
    /// `shown` and `size` are width and height of the part that is shown, and of what it becomes, both as
    /// stored.
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

    /// How many pixels it has.
    pub fn pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Reads it, and nothing more of the file than is needed for it.
    ///
    /// `page` counts the pictures of a multi-page TIFF or an animation from 0.
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

/// As many bytes as there are, up to what the buffer takes.
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

/// The next `N` bytes.
fn take<const N: usize>(reader: &mut impl Read) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}
