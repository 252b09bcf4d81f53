//! A TIFF whose pixels are numbers of colours: the decoder refuses it, so it is shown a directory in which
//! they are shades of grey.

use std::io::{self, Read, Seek, SeekFrom};

/// Tag of the directory: how pixels are to be understood.
const INTERPRETATION: u16 = 262;
const PALETTE: u16 = 3;
const GREY: u16 = 1;
/// A directory has fewer fields than this.
const MOST_FIELDS: u64 = 4096;

/// A TIFF in which one field reads as something else.
#[derive(Clone, Debug)]
pub(crate) struct Shown<R> {
    inner: R,
    at: u64,
    /// Where two bytes are shown in the place of others.
    changed: Option<(u64, [u8; 2])>,
}

impl<R: Read + Seek> Shown<R> {
    /// The file as a decoder of this page is to see it. What cannot be followed is shown as it is: the
    /// decoder says what is wrong with it.
    pub(crate) fn new(mut inner: R, page: u32) -> io::Result<Self> {
        let changed = palette(&mut inner, page).ok().flatten();
        inner.seek(SeekFrom::Start(0))?;
        Ok(Self { inner, at: 0, changed })
    }

    /// Whether its pixels are numbers of colours.
    pub(crate) fn indexed(&self) -> bool {
        self.changed.is_some()
    }
}

impl<R: Read> Read for Shown<R> {
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

impl<R: Seek> Seek for Shown<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = self.inner.seek(to)?;
        Ok(self.at)
    }
}

/// Where a page says that it has a palette, and the bytes of a page that says that it is grey.
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

    /// A place in the file.
    fn offset(&mut self, big: bool) -> io::Result<u64> {
        if big {
            let bytes = self.bytes()?;
            return Ok(if self.little { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) });
        }
        let bytes = self.bytes()?;
        Ok(u64::from(if self.little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }))
    }

    /// How many fields a directory has, and where they begin.
    fn fields(&mut self, big: bool, directory: u64) -> io::Result<(u64, u64)> {
        let count = if big { self.offset(true)? } else { u64::from(self.short()?) };
        if count > MOST_FIELDS || directory > u64::MAX / 2 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((count, directory + if big { 8 } else { 2 }))
    }
}
