//! Images that a program passes to the driver for loading (ELF, fat binary or PTX), detected from their
//! bytes.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use memfit_kernels::binary::fatbin::{self, WRAPPER_MAGIC, u16_at, u32_at, u64_at};

use super::register::Wrapper;
use memfit_abi::In;

/// Upper bound on the bytes of an image; no real image comes near it.
const MAX_IMAGE_BYTES: u64 = 1 << 30;

/// An image read from memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Loaded {
    /// Machine code for one architecture.
    Machine {
        /// Ten times the major number plus the minor.
        target: u32,
        elf: Vec<u8>,
    },
    /// A container of images.
    Container(Vec<u8>),
    /// PTX assembly.
    Ptx { target: u32, kernels: Vec<String> },
}

/// Reads the image at an address; `None` if its format is not recognised.
pub(super) fn read_at(address: u64) -> Option<Loaded> {
    if address == 0 {
        return None;
    }
    // Every kind of image is longer than this; the length of the rest follows from it.
    let start = bytes_at(address, 16)?;
    match u32_at(&start, 0)? {
        // SAFETY: the magic number marks a fat binary wrapper.
        WRAPPER_MAGIC => container(unsafe { In::<Wrapper>::from_address(address) }.get()?.container()),
        fatbin::MAGIC => container(address),
        magic if magic == u32::from_le_bytes(*b"\x7fELF") => {
            let elf = bytes_at(address, elf_length(address)?)?;
            Some(Loaded::Machine { target: elf_target(&elf)?, elf })
        }
        _ => {
            // SAFETY: an image in no binary format is NUL-terminated text.
            let text = unsafe { In::<std::ffi::c_char>::from_address(address) }.text()?;
            ptx(&text)
        }
    }
}

fn container(address: u64) -> Option<Loaded> {
    let size = fatbin::container_size(&bytes_at(address, fatbin::HEADER as u64)?)?;
    Some(Loaded::Container(bytes_at(address, size as u64)?))
}

fn bytes_at(address: u64, length: u64) -> Option<Vec<u8>> {
    // SAFETY: the image's own headers state this length.
    (length <= MAX_IMAGE_BYTES).then(|| unsafe { In::<u8>::from_address(address) }.list(length as usize))
}

/// Length of an ELF image, from its headers: the end of the last table or section.
fn elf_length(address: u64) -> Option<u64> {
    const HEADER: u64 = 64;
    const NO_BITS: u32 = 8;
    let header = bytes_at(address, HEADER)?;
    let (programs, sections) = (u64_at(&header, 0x20)?, u64_at(&header, 0x28)?);
    let (program_size, program_count) = (u16_at(&header, 0x36)?, u16_at(&header, 0x38)?);
    let (section_size, section_count) = (u16_at(&header, 0x3a)?, u16_at(&header, 0x3c)?);
    let table = u64::from(section_size) * u64::from(section_count);
    let mut length = sections
        .checked_add(table)?
        .max(programs.checked_add(u64::from(program_size) * u64::from(program_count))?);
    if length > MAX_IMAGE_BYTES || u64::from(section_size) != HEADER {
        return None;
    }
    let table = bytes_at(address + sections, table)?;
    for section in table.chunks_exact(HEADER as usize) {
        if u32_at(section, 4)? != NO_BITS {
            length = length.max(u64_at(section, 0x18)?.checked_add(u64_at(section, 0x20)?)?);
        }
    }
    Some(length)
}

/// Architecture of machine code, from the header's flags: the second byte since ABI 8, the first before.
fn elf_target(elf: &[u8]) -> Option<u32> {
    let flags = u32_at(elf, 0x30)?;
    let newer = *elf.get(8)? >= 8;
    Some(if newer { flags >> 8 & 0xff } else { flags & 0xff })
}

/// Parses PTX for its architecture (`.target sm_90`) and its kernels (`.entry name(`).
fn ptx(text: &str) -> Option<Loaded> {
    let code = |line: &str| line.split("//").next().unwrap_or("").to_owned();
    let text: String = text.lines().map(|line| code(line) + "\n").collect();
    let target = text.split(".target").nth(1)?.trim_start().strip_prefix("sm_")?;
    let digits = target.find(|c: char| !c.is_ascii_digit()).unwrap_or(target.len());
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$');
    let kernels = text
        .split(".entry")
        .skip(1)
        .map(|rest| rest.trim_start().split(|c| !is_name(c)).next().unwrap_or("").to_owned());
    Some(Loaded::Ptx { target: target[..digits].parse().ok()?, kernels: kernels.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_tells_its_target_and_its_kernels() {
        let text = c"// .target sm_10\n.version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry add_kernel(\n.param .u64 x)\n{ ret; }\n.entry $b_1 ( ) { }";
        let loaded = read_at(text.as_ptr() as u64);
        let kernels = vec!["add_kernel".to_owned(), "$b_1".to_owned()];
        assert_eq!(loaded, Some(Loaded::Ptx { target: 90, kernels }));
    }

    #[test]
    fn an_image_is_as_long_as_its_headers_say() {
        // A header, one section, and the section table after it.
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        elf.resize(64 + 40 + 2 * 64, 0);
        elf[0x28..0x30].copy_from_slice(&104_u64.to_le_bytes());
        elf[0x3a..0x3e].copy_from_slice(&[64, 0, 2, 0]);
        elf[104 + 64 + 0x18..][..8].copy_from_slice(&64_u64.to_le_bytes());
        elf[104 + 64 + 0x20..][..8].copy_from_slice(&40_u64.to_le_bytes());
        elf[8] = 8;
        elf[0x30..0x34].copy_from_slice(&0x0600_5604_u32.to_le_bytes());
        let mut padded = elf.clone();
        padded.resize(elf.len() + 100, 0xaa);
        assert_eq!(read_at(padded.as_ptr() as u64), Some(Loaded::Machine { target: 86, elf: elf.clone() }));
        elf[8] = 7;
        elf[0x30..0x34].copy_from_slice(&0x0056_0556_u32.to_le_bytes());
        assert_eq!(read_at(elf.as_ptr() as u64), Some(Loaded::Machine { target: 86, elf }));
    }

    #[test]
    fn rubbish_is_no_image() {
        assert_eq!(read_at(0), None);
        assert_eq!(read_at(c"................................ nothing of the kind".as_ptr() as u64), None);
    }
}
