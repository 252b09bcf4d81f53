//! Palette TIFFs, which the decoder rejects: it is shown a directory that declares the indices as grey
//! values.

use std::io::{self, Read, Seek, SeekFrom};

/// Tag of the photometric interpretation.
const INTERPRETATION: u16 = 262;
const PALETTE: u16 = 3;
const GREY: u16 = 1;
/// Maximum number of fields in a directory.
const MAX_FIELDS: u64 = 4096;

/// View of a TIFF with one field replaced.
#[derive(Clone, Debug)]
pub(crate) struct PatchedReader<R> {
    inner: R,
    at: u64,
    /// Offset and replacement of two bytes.
    changed: Option<(u64, [u8; 2])>,
}

impl<R: Read + Seek> PatchedReader<R> {
    /// Creates the view of a page. An invalid file is shown unchanged, and the decoder reports its fault.
    pub(crate) fn new(mut inner: R, page: u32) -> io::Result<Self> {
        let changed = palette(&mut inner, page).ok().flatten();
        inner.seek(SeekFrom::Start(0))?;
        Ok(Self { inner, at: 0, changed })
    }

    /// Returns `true` if the pixels are palette indices.
    pub(crate) fn indexed(&self) -> bool {
        self.changed.is_some()
    }
}

impl<R: Read> Read for PatchedReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(out)?;
        if let Some((place, bytes)) = self.changed {
            for (offset, byte) in (place..).zip(bytes) {
                if (self.at..self.at + got as u64).contains(&offset) {
                    out[(offset - self.at) as usize] = byte;
                }
            }
        }
        self.at += got as u64;
        Ok(got)
    }
}

impl<R: Seek> Seek for PatchedReader<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = self.inner.seek(to)?;
        Ok(self.at)
    }
}

/// Finds the field that declares a palette, with the bytes that declare grey values.
fn palette<R: Read + Seek>(reader: &mut R, page: u32) -> io::Result<Option<(u64, [u8; 2])>> {
    let mut numbers = Numbers { reader, little: true };
    numbers.to(0)?;
    numbers.little = match numbers.bytes::<2>()? {
        [b'I', b'I'] => true,
        [b'M', b'M'] => false,
        _ => return Ok(None),
    };
    let big = numbers.short()? == 43;
    numbers.to(if big { 8 } else { 4 })?;
    let mut directory = numbers.offset(big)?;
    for _ in 0..page {
        numbers.to(directory)?;
        let (fields, begin) = numbers.fields(big, directory)?;
        numbers.to(begin + fields * if big { 20 } else { 12 })?;
        directory = numbers.offset(big)?;
    }
    numbers.to(directory)?;
    let (fields, begin) = numbers.fields(big, directory)?;
    for field in 0..fields {
        let (size, value) = if big { (20, 12) } else { (12, 8) };
        numbers.to(begin + field * size)?;
        if numbers.short()? == INTERPRETATION {
            let place = begin + field * size + value;
            numbers.to(place)?;
            let grey = if numbers.little { GREY.to_le_bytes() } else { GREY.to_be_bytes() };
            return Ok((numbers.short()? == PALETTE).then_some((place, grey)));
        }
    }
    Ok(None)
}

struct Numbers<'a, R> {
    reader: &'a mut R,
    little: bool,
}

impl<R: Read + Seek> Numbers<'_, R> {
    fn to(&mut self, offset: u64) -> io::Result<()> {
        self.reader.seek(SeekFrom::Start(offset)).map(drop)
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map(|()| bytes)
    }

    fn short(&mut self) -> io::Result<u16> {
        let bytes = self.bytes()?;
        Ok(if self.little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    }

    /// Reads an offset.
    fn offset(&mut self, big: bool) -> io::Result<u64> {
        if big {
            let bytes = self.bytes()?;
            return Ok(if self.little { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) });
        }
        let bytes = self.bytes()?;
        Ok(u64::from(if self.little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }))
    }

    /// Number of fields in a directory, and the offset of the first.
    fn fields(&mut self, big: bool, directory: u64) -> io::Result<(u64, u64)> {
        let count = if big { self.offset(true)? } else { u64::from(self.short()?) };
        if count > MAX_FIELDS || directory > u64::MAX / 2 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((count, directory + if big { 8 } else { 2 }))
    }
}
