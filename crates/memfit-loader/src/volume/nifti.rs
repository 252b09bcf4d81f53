//! NIfTI header, versions 1 and 2, in one file or two, compressed or not.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::{Slice, Volume, Voxel};
use crate::LoaderError;

const NAME: &str = "NIfTI";
/// Maximum number of slices in a volume; no scanner produces more.
const MAX_SLICES: u64 = 1 << 20;

/// Decompressed bytes of a file.
pub(super) fn unzipped(file: File) -> impl Read {
    MultiGzDecoder::new(BufReader::with_capacity(64 << 10, file))
}

pub(super) fn open(path: &Path, frame: u64) -> Result<Volume, LoaderError> {
    let wrong = |reason: &str| LoaderError::BadSource { path: path.to_owned(), reason: reason.to_owned() };
    let named = |error: std::io::Error| wrong(&format!("it cannot be read: {error}"));
    let mut file = File::open(path).map_err(named)?;
    let mut magic = [0; 2];
    let gzip = file.read(&mut magic).map_err(named)? == 2 && magic == [0x1f, 0x8b];
    let mut header = Vec::new();
    let mut file = File::open(path).map_err(named)?;
    if gzip {
        unzipped(file).take(540).read_to_end(&mut header).map_err(named)?;
    } else {
        file.by_ref().take(540).read_to_end(&mut header).map_err(named)?;
    }
    let header = Fields::new(&header).ok_or_else(|| {
        wrong("it is neither NIfTI nor DICOM: its header has another length and no magic number")
    })?;
    let damaged = |reason: String| LoaderError::Damaged { format: NAME, reason };
    let dimensions = header.dimensions().ok_or_else(|| damaged("it ends within its header".to_owned()))?;
    let [width, height, depth, frames] = dimensions;
    if [width, height, depth, frames].contains(&0) || depth > MAX_SLICES {
        return Err(damaged(format!("its header says {width}x{height}x{depth}, {frames} times")));
    }
    if frame >= frames {
        return Err(damaged(format!("it has {frames} volumes, but number {frame} was requested")));
    }
    let voxel = match header.kind() {
        Some(2) => Voxel::U8,
        Some(4) => Voxel::I16,
        Some(8) => Voxel::I32,
        Some(16) => Voxel::F32,
        Some(64) => Voxel::F64,
        Some(256) => Voxel::I8,
        Some(512) => Voxel::U16,
        Some(768) => Voxel::U32,
        other => {
            return Err(LoaderError::Unsupported {
                format: NAME,
                reason: format!("its values are of type {other:?}"),
            });
        }
    };
    let (data, start) = header.place(path).ok_or_else(|| damaged("its values begin nowhere".to_owned()))?;
    let slice = width
        .checked_mul(height)
        .and_then(|size| size.checked_mul(voxel.bytes() as u64))
        .ok_or_else(|| damaged("a slice is larger than any memory".to_owned()))?;
    let ends = slice
        .checked_mul(depth)
        .and_then(|size| size.checked_mul(frames))
        .and_then(|size| size.checked_add(start));
    let length = std::fs::metadata(&data).map_err(named)?.len();
    // The length of a compressed file is not a check.
    if ends.is_none() || (!gzip && ends.is_some_and(|ends| ends > length)) {
        return Err(damaged(format!("it is truncated: {length} bytes are fewer than its header says")));
    }
    let slices = (0..depth)
        .map(|number| Slice::Plain { file: 0, start: start + (frame * depth + number) * slice })
        .collect();
    let (slope, intercept) = header.scale();
    Ok(Volume {
        files: vec![data],
        gzip,
        slices,
        height,
        width,
        voxel,
        big_endian: header.big_endian,
        bits: 0,
        slope,
        intercept,
        spacing: header.spacing(),
    })
}

/// Fields of the header in either version.
struct Fields<'a> {
    bytes: &'a [u8],
    second: bool,
    big_endian: bool,
}

impl<'a> Fields<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let length: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
        let (second, big_endian) = match (i32::from_le_bytes(length), i32::from_be_bytes(length)) {
            (348, _) => (false, false),
            (_, 348) => (false, true),
            (540, _) => (true, false),
            (_, 540) => (true, true),
            _ => return None,
        };
        let magic = if second { bytes.get(4..7)? } else { bytes.get(344..347)? };
        let known: [&[u8]; 2] = if second { [b"n+2", b"ni2"] } else { [b"n+1", b"ni1"] };
        known.contains(&magic).then_some(Self { bytes, second, big_endian })
    }

    fn read_array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut bytes: [u8; N] = self.bytes.get(at..at + N)?.try_into().ok()?;
        if self.big_endian {
            bytes.reverse();
        }
        Some(bytes)
    }

    fn float(&self, first: usize, second: usize) -> Option<f64> {
        if self.second {
            self.read_array(second).map(f64::from_le_bytes)
        } else {
            self.read_array(first).map(|bytes| f64::from(f32::from_le_bytes(bytes)))
        }
    }

    /// Width, height, depth, and number of volumes.
    fn dimensions(&self) -> Option<[u64; 4]> {
        let one = |number: usize| -> Option<u64> {
            let value = if self.second {
                i64::from_le_bytes(self.read_array(16 + 8 * number)?)
            } else {
                i16::from_le_bytes(self.read_array(40 + 2 * number)?).into()
            };
            Some(u64::try_from(value).unwrap_or(0))
        };
        let count = one(0)?;
        let size = |number: u64| if number <= count { one(number as usize) } else { Some(1) };
        let more = (4..=7).map(size).try_fold(1_u64, |product, size| product.checked_mul(size?.max(1)))?;
        Some([size(1)?, size(2)?, size(3)?, more])
    }

    fn kind(&self) -> Option<i16> {
        self.read_array(if self.second { 12 } else { 70 }).map(i16::from_le_bytes)
    }

    /// File that contains the values, and their offset in it.
    fn place(&self, path: &Path) -> Option<(std::path::PathBuf, u64)> {
        let alone = self.bytes.get(if self.second { 5 } else { 345 })? == &b'+';
        let offset = if self.second {
            u64::try_from(i64::from_le_bytes(self.read_array(168)?)).ok()?
        } else {
            let offset = f32::from_le_bytes(self.read_array(108)?);
            (offset.is_finite() && offset >= 0.0).then_some(offset as u64)?
        };
        let least = if self.second { 544 } else { 352 };
        if alone {
            return Some((path.to_owned(), offset.max(least)));
        }
        let text = path.to_str()?;
        let stem = text.strip_suffix(".hdr").map(|stem| (stem, ".img"));
        let (stem, ending) = stem.or_else(|| text.strip_suffix(".hdr.gz").map(|stem| (stem, ".img.gz")))?;
        Some((format!("{stem}{ending}").into(), offset))
    }

    /// Scale factor and offset of values; a factor of zero means that there is none.
    fn scale(&self) -> (f64, f64) {
        let slope = self.float(112, 176).filter(|slope| slope.is_finite() && *slope != 0.0);
        let intercept = self.float(116, 184).filter(|intercept| intercept.is_finite());
        slope.map_or((1.0, 0.0), |slope| (slope, intercept.unwrap_or(0.0)))
    }

    fn spacing(&self) -> [f64; 3] {
        [3, 2, 1].map(|number| self.float(76 + 4 * number, 104 + 8 * number).map_or(0.0, f64::abs))
    }
}
