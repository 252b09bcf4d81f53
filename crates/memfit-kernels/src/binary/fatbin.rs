//! Fat binaries: NVIDIA's containers of one translation unit's kernels, compiled for several architectures.
//!
//! A container is a header of 16 bytes and a list of entries. Each entry is an image (machine code as an ELF
//! file, or PTX as text) after a header with its architecture and compression. There is no public
//! description; this reads the fields that `cuobjdump` shows and nothing more. Anything that does not parse
//! is skipped.

use std::io::Read;

use super::arch::Target;

/// First four bytes of a container.
pub const MAGIC: u32 = 0xBA55_ED50;
/// First four bytes of the wrapper passed to `__cudaRegisterFatBinary`, which points to a container.
pub const WRAPPER_MAGIC: u32 = 0x4662_43B1;
/// Bytes of a container's header.
pub const HEADER: usize = 16;
/// Upper bound on an unpacked image, far above those of real libraries; a header that claims more is
/// rejected.
const MAX_IMAGE_BYTES: usize = 256 << 20;
/// Bytes of an entry's header that are read; newer compilers append more.
const ENTRY_HEADER_BYTES: usize = 64;

/// Kind of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Assembly text, which the driver compiles for any later device.
    Ptx,
    /// Machine code.
    Machine,
}

/// Compression of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Plain,
    Lz4,
    Zstd,
}

/// One image of a container.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// Machine code or PTX.
    pub kind: Kind,
    /// Architecture that it was compiled for.
    pub target: Target,
    packing: Packing,
    stored: &'a [u8],
    unpacked: usize,
}

/// Reason why an image could not be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// The header's size is implausible.
    #[error("the image claims {0} bytes")]
    TooLarge(usize),
    /// The compressed bytes are invalid.
    #[error("the image's compressed bytes are damaged")]
    Damaged,
}

/// Total size of the container that starts with `header`; `None` if it is not a container.
pub fn container_size(header: &[u8]) -> Option<usize> {
    let size = u64_at(header, 8)?;
    let header_bytes = usize::from(u16_at(header, 6)?);
    (u32_at(header, 0)? == MAGIC && header_bytes >= HEADER).then_some(())?;
    usize::try_from(size).ok()?.checked_add(header_bytes)
}

/// Images of a container, in order. Stops at the first inconsistent entry.
pub fn images(container: &[u8]) -> Vec<Image<'_>> {
    let mut images = Vec::new();
    let Some(size) = container_size(container) else { return images };
    let header_bytes = usize::from(u16_at(container, 6).unwrap_or(0));
    let Some(mut rest) = container.get(header_bytes..size.min(container.len())) else { return images };
    while let Some((length, image)) = entry(rest) {
        images.extend(image);
        rest = &rest[length..];
    }
    images
}

/// Reads the entry at the start of `bytes`: its length, and its image if the format is known.
fn entry(bytes: &[u8]) -> Option<(usize, Option<Image<'_>>)> {
    let header = u32_at(bytes, 4)? as usize;
    let payload = usize::try_from(u64_at(bytes, 8)?).ok()?;
    let length = header.checked_add(payload)?;
    if header < HEADER || length > bytes.len() {
        return None;
    }
    Some((length, image(&bytes[..header], &bytes[header..length])))
}

fn image<'a>(header: &[u8], payload: &'a [u8]) -> Option<Image<'a>> {
    if header.len() < ENTRY_HEADER_BYTES {
        return None;
    }
    let kind = match u16_at(header, 0)? {
        1 => Kind::Ptx,
        2 => Kind::Machine,
        _ => return None,
    };
    let flags = u64_at(header, 40)?;
    let packing = match flags {
        flags if flags & 0x8000 != 0 => Packing::Zstd,
        flags if flags & 0x2000 != 0 => Packing::Lz4,
        _ => Packing::Plain,
    };
    let stored = match packing {
        Packing::Plain => payload,
        // The payload is padded to eight bytes; the compressed length is exact.
        Packing::Lz4 | Packing::Zstd => payload.get(..u32_at(header, 16)? as usize)?,
    };
    let unpacked = match packing {
        Packing::Plain => payload.len(),
        Packing::Lz4 | Packing::Zstd => usize::try_from(u64_at(header, 56)?).ok()?,
    };
    Some(Image { kind, target: Target::new(u32_at(header, 28)?, flags), packing, stored, unpacked })
}

impl Image<'_> {
    /// Unpacks the image.
    pub fn unpack(&self) -> Result<Vec<u8>, UnpackError> {
        if self.unpacked > MAX_IMAGE_BYTES {
            return Err(UnpackError::TooLarge(self.unpacked));
        }
        match self.packing {
            Packing::Plain => Ok(self.stored.to_vec()),
            Packing::Lz4 => {
                lz4_flex::block::decompress(self.stored, self.unpacked).map_err(|_| UnpackError::Damaged)
            }
            Packing::Zstd => self.unpack_zstd(),
        }
    }

    fn unpack_zstd(&self) -> Result<Vec<u8>, UnpackError> {
        let decoder =
            ruzstd::decoding::StreamingDecoder::new(self.stored).map_err(|_| UnpackError::Damaged)?;
        // Grows with the data: a header alone must not make this process allocate hundreds of megabytes.
        let mut bytes = Vec::with_capacity(self.unpacked.min(self.stored.len().saturating_mul(16)));
        decoder.take(self.unpacked as u64 + 1).read_to_end(&mut bytes).map_err(|_| UnpackError::Damaged)?;
        if bytes.len() == self.unpacked { Ok(bytes) } else { Err(UnpackError::Damaged) }
    }
}

/// Reads two bytes at `offset`, little endian.
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u16::from_le_bytes(*chunk))
}

/// Reads four bytes at `offset`, little endian.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

/// Reads eight bytes at `offset`, little endian.
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests;
