//! Three-dimensional volumes in a file or a series of files, read in blocks; a volume is never read whole
//! unless that is requested.

mod coded;
mod dicom;
mod nifti;

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::LoaderError;
use coded::{Coding, SliceLayout};

/// Type of a volume's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voxel {
    /// Eight bits.
    U8,
    /// Eight bits with a sign.
    I8,
    /// Sixteen bits.
    U16,
    /// Sixteen bits with a sign.
    I16,
    /// Thirty-two bits.
    U32,
    /// Thirty-two bits with a sign.
    I32,
    /// 32-bit floating point.
    F32,
    /// 64-bit floating point.
    F64,
}

impl Voxel {
    /// Size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Name, as in torch.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::U32 => "uint32",
            Self::I32 => "int32",
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
    }

    fn read(self, bytes: &[u8]) -> f64 {
        macro_rules! of {
            ($kind:ty) => {
                bytes.try_into().map_or(0.0, |bytes| f64::from(<$kind>::from_ne_bytes(bytes)))
            };
        }
        match self {
            Self::U8 => of!(u8),
            Self::I8 => of!(i8),
            Self::U16 => of!(u16),
            Self::I16 => of!(i16),
            Self::U32 => of!(u32),
            Self::I32 => of!(i32),
            Self::F32 => of!(f32),
            Self::F64 => of!(f64),
        }
    }
}

/// Part of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Slices.
    pub depth: Range<u64>,
    /// Rows of each slice.
    pub rows: Range<u64>,
    /// Columns of each slice.
    pub columns: Range<u64>,
}

impl Block {
    fn shape(&self) -> [u64; 3] {
        [&self.depth, &self.rows, &self.columns].map(|range| range.end.saturating_sub(range.start))
    }
}

/// Storage of one slice.
#[derive(Clone, Debug)]
enum Slice {
    /// Contiguous values from this offset of a file.
    Plain { file: usize, start: u64 },
    /// Compressed, in fragments given by offset and length.
    Coded { file: usize, coding: Coding, parts: Vec<(u64, u64)> },
}

/// Volume of which only the headers were read.
#[derive(Debug)]
pub struct Volume {
    files: Vec<PathBuf>,
    /// `true` if the file is compressed as a whole, so that it is read from its beginning each time.
    gzip: bool,
    slices: Vec<Slice>,
    height: u64,
    width: u64,
    voxel: Voxel,
    /// `true` for big-endian values.
    big_endian: bool,
    /// Bits that hold the value; other bits are unspecified.
    bits: u32,
    slope: f64,
    intercept: f64,
    spacing: [f64; 3],
}

impl Volume {
    /// Opens a NIfTI file, a DICOM file, or a folder with a DICOM series; of several series, the one with
    /// this identifier.
    ///
    /// `frame` counts the volumes of a NIfTI file that has several.
    pub fn open(path: &Path, series: Option<&str>, frame: u64) -> Result<Self, LoaderError> {
        if path.is_dir() {
            return dicom::series(&files_of(path)?, path, series);
        }
        let mut begin = [0; 132];
        let got = File::open(path).and_then(|mut file| file.read(&mut begin)).map_err(|error| {
            LoaderError::BadSource { path: path.to_owned(), reason: format!("it cannot be read: {error}") }
        })?;
        if dicom::begins(&begin[..got]) {
            return dicom::series(&[path.to_owned()], path, series);
        }
        nifti::open(path, frame)
    }

    /// Opens several DICOM files as one series.
    pub fn from_series(paths: &[PathBuf], series: Option<&str>) -> Result<Self, LoaderError> {
        let first = paths.first().ok_or_else(|| LoaderError::Settings("there are no files".to_owned()))?;
        dicom::series(paths, first, series)
    }

    /// Number of slices, rows and columns.
    pub fn shape(&self) -> [u64; 3] {
        [self.slices.len() as u64, self.height, self.width]
    }

    /// Type of the stored values.
    pub fn voxel(&self) -> Voxel {
        self.voxel
    }

    /// Scale factor and offset of stored values.
    pub fn scale(&self) -> (f64, f64) {
        (self.slope, self.intercept)
    }

    /// Distance between slices, rows and columns in the file's unit (usually millimetres); zero if unknown.
    pub fn spacing(&self) -> [f64; 3] {
        self.spacing
    }

    /// Reads a block of stored values in native byte order, slice by slice; `out` has the length of the
    /// result.
    pub fn read(&self, block: &Block, out: &mut [u8]) -> Result<(), LoaderError> {
        let shape = self.shape();
        let wanted = block.shape();
        let inside = [&block.depth, &block.rows, &block.columns]
            .iter()
            .zip(shape)
            .all(|(range, length)| range.start < range.end && range.end <= length);
        if !inside {
            return Err(LoaderError::Settings(format!(
                "slices {:?}, rows {:?}, columns {:?} are not inside a volume of {}x{}x{}",
                block.depth, block.rows, block.columns, shape[0], shape[1], shape[2]
            )));
        }
        let size = self.voxel.bytes();
        let line = wanted[2] as usize * size;
        if wanted[0].saturating_mul(wanted[1]).saturating_mul(line as u64) != out.len() as u64 {
            return Err(LoaderError::Bug("a block and its memory differ".to_owned()));
        }
        let mut source = Source::new(self);
        let mut whole = Vec::new();
        for (number, slice) in (block.depth.clone()).zip(out.chunks_exact_mut(wanted[1] as usize * line)) {
            let stored = &self.slices[number as usize];
            if let Slice::Coded { file, coding, parts } = stored {
                let coded = source.parts(*file, parts)?;
                let form = SliceLayout { width: self.width, height: self.height, size };
                coding.decode(&coded, form, &mut whole).map_err(|error| LoaderError::Sample {
                    name: self.files[*file].display().to_string(),
                    error: Box::new(error),
                })?;
            }
            for (row, line) in block.rows.clone().zip(slice.chunks_exact_mut(line)) {
                let at = (row * self.width + block.columns.start) * size as u64;
                match stored {
                    Slice::Plain { file, start } => source.read(*file, start + at, line)?,
                    Slice::Coded { .. } => line.copy_from_slice(
                        whole
                            .get(at as usize..at as usize + line.len())
                            .ok_or_else(|| LoaderError::Bug("a slice is too short".to_owned()))?,
                    ),
                }
            }
        }
        self.to_native_order(out);
        Ok(())
    }

    /// Reads a block with the scale factor and offset applied.
    pub fn read_scaled(&self, block: &Block, out: &mut [f32]) -> Result<(), LoaderError> {
        let size = self.voxel.bytes();
        let [depth, rows, columns] = block.shape();
        if depth.saturating_mul(rows).saturating_mul(columns) != out.len() as u64 {
            return Err(LoaderError::Bug("a block and its memory differ".to_owned()));
        }
        // Slice by slice, so that only one is held as stored.
        let each = rows as usize * columns as usize;
        let mut stored = vec![0; each * size];
        for (number, out) in block.depth.clone().zip(out.chunks_exact_mut(each.max(1))) {
            self.read(&Block { depth: number..number + 1, ..block.clone() }, &mut stored)?;
            for (bytes, value) in stored.chunks_exact(size).zip(out) {
                *value = (self.voxel.read(bytes) * self.slope + self.intercept) as f32;
            }
        }
        Ok(())
    }

    /// Converts values to native byte order, and clears unspecified bits.
    fn to_native_order(&self, out: &mut [u8]) {
        let size = self.voxel.bytes();
        if self.big_endian != cfg!(target_endian = "big") && size > 1 {
            out.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        let all = size as u32 * 8;
        if self.bits >= all || self.bits == 0 {
            return;
        }
        let shift = all - self.bits;
        match self.voxel {
            Voxel::U8 => out.iter_mut().for_each(|value| *value = *value << shift >> shift),
            Voxel::I8 => out
                .iter_mut()
                .for_each(|value| *value = (value.cast_signed() << shift >> shift).cast_unsigned()),
            Voxel::U16 | Voxel::I16 => {
                for value in out.as_chunks_mut::<2>().0 {
                    *value = if self.voxel == Voxel::U16 {
                        (u16::from_ne_bytes(*value) << shift >> shift).to_ne_bytes()
                    } else {
                        (i16::from_ne_bytes(*value) << shift >> shift).to_ne_bytes()
                    };
                }
            }
            // Wider types have no unspecified bits.
            _ => {}
        }
    }
}

/// Files of a volume, opened at their first use; one is kept open at a time.
struct Source<'a> {
    volume: &'a Volume,
    open: Option<(usize, File)>,
    stream: Option<(Box<dyn std::io::Read>, u64)>,
}

impl<'a> Source<'a> {
    fn new(volume: &'a Volume) -> Self {
        Self { volume, open: None, stream: None }
    }

    fn file(&mut self, number: usize) -> Result<&File, LoaderError> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != number) {
            let path = &self.volume.files[number];
            let file = File::open(path).map_err(|error| LoaderError::BadSource {
                path: path.clone(),
                reason: format!("it cannot be read: {error}"),
            })?;
            self.open = Some((number, file));
        }
        self.open.as_ref().map(|(_, file)| file).ok_or_else(|| LoaderError::Bug("a file was lost".to_owned()))
    }

    fn read(&mut self, number: usize, at: u64, out: &mut [u8]) -> Result<(), LoaderError> {
        let path = self.volume.files[number].clone();
        let short = |error: std::io::Error| LoaderError::BadSource {
            path: path.clone(),
            reason: if error.kind() == std::io::ErrorKind::UnexpectedEof {
                "it is truncated".to_owned()
            } else {
                format!("it cannot be read: {error}")
            },
        };
        if !self.volume.gzip {
            return self.file(number)?.read_exact_at(out, at).map_err(short);
        }
        // A compressed file is read forwards, and from the beginning again for an earlier position.
        if self.stream.as_ref().is_none_or(|(_, place)| *place > at) {
            let file = File::open(&path).map_err(short)?;
            self.stream = Some((Box::new(nifti::unzipped(file)), 0));
        }
        let Some((stream, place)) = &mut self.stream else {
            return Err(LoaderError::Bug("a stream was lost".to_owned()));
        };
        let skipped =
            std::io::copy(&mut stream.by_ref().take(at - *place), &mut std::io::sink()).map_err(short)?;
        *place += skipped;
        stream.read_exact(out).map_err(short)?;
        *place += out.len() as u64;
        Ok(())
    }

    fn parts(&mut self, number: usize, parts: &[(u64, u64)]) -> Result<Vec<u8>, LoaderError> {
        let mut out = Vec::new();
        for &(at, length) in parts {
            let length = usize::try_from(length)
                .map_err(|_| LoaderError::Bug("a slice that no memory holds".to_owned()))?;
            let begin = out.len();
            out.resize(begin + length, 0);
            self.read(number, at, &mut out[begin..])?;
        }
        Ok(out)
    }
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>, LoaderError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
