//! Machine code for one architecture: an ELF file whose `.nv.info` sections describe each kernel.
//!
//! Reads a kernel's parameters (offset and size of each) and the properties that determine its occupancy:
//! registers, static shared memory, local memory, launch bounds. Attribute numbers are those that `cuobjdump
//! -elf` prints by name.

use std::collections::HashMap;

use super::{
    code::Code,
    fatbin::{u16_at, u32_at, u64_at},
};

/// Description of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Registers per thread.
    pub registers: u32,
    /// Static shared memory per block, in bytes.
    pub shared: u32,
    /// Local memory (stack frame) per thread, in bytes.
    pub local: u32,
    /// Bytes of its constant bank that are neither parameters nor the driver's.
    pub constant: u32,
    /// Maximum threads per block by the kernel's launch bounds; 0 if it has none.
    pub launch_bound: u32,
    /// Work of a thread.
    pub code: Code,
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Offset in the parameter block.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// Sections accepted in an image. A real image has at most a few per kernel.
const MAX_SECTIONS: usize = 1 << 18;
/// Parameters accepted for a kernel, which has at most 32,764 bytes of them.
const MAX_PARAMS: u32 = 4096;
/// Bytes per section header.
const SECTION_HEADER: usize = 64;

/// Attributes of `.nv.info` sections.
mod attribute {
    pub(super) const MAX_THREADS: u8 = 0x05;
    pub(super) const REQUIRED_THREADS: u8 = 0x10;
    pub(super) const FRAME_SIZE: u8 = 0x11;
    pub(super) const KPARAM_INFO: u8 = 0x17;
    pub(super) const REGISTERS: u8 = 0x2f;
    /// In kernels with more than 4 KiB of parameters.
    pub(super) const LARGE_KPARAM_INFO: u8 = 0x45;
}

/// A section of an ELF file.
pub struct Section<'a> {
    /// Name.
    pub name: &'a str,
    /// Size in memory.
    size: u64,
    /// Bytes in the file; empty for a section without any.
    pub data: &'a [u8],
    info: u32,
    link: u32,
}

/// Kernels of a cubin, by mangled name. Inconsistent sections are skipped.
pub fn functions(elf: &[u8]) -> HashMap<String, Function> {
    let sections = sections(elf).unwrap_or_default();
    let mut functions: HashMap<String, Function> = HashMap::new();
    for section in &sections {
        if let Some(name) = section.name.strip_prefix(".text.") {
            // Before ABI 8, the register count is also here, in the upper byte.
            let function = functions.entry(name.to_owned()).or_default();
            function.registers = section.info >> 24;
            function.code = Code::parse(section.data);
        }
    }
    for section in &sections {
        if section.name == ".nv.info" {
            let symbols = symbols(section.link, &sections);
            shared_attributes(section.data, &symbols, &mut functions);
        } else if let Some(function) = owner(section, ".nv.info.", &mut functions) {
            own_attributes(section.data, function);
        } else if let Some(function) = owner(section, ".nv.shared.", &mut functions) {
            function.shared = section.size as u32;
        } else if let Some(function) = owner(section, ".nv.constant2.", &mut functions) {
            function.constant = section.size as u32;
        }
    }
    functions
}

fn owner<'f>(
    section: &Section<'_>,
    prefix: &str,
    functions: &'f mut HashMap<String, Function>,
) -> Option<&'f mut Function> {
    functions.get_mut(section.name.strip_prefix(prefix)?)
}

/// Sections of an ELF file; `None` if it is incomplete.
pub fn sections(elf: &[u8]) -> Option<Vec<Section<'_>>> {
    // 64-bit, little endian.
    if elf.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let table = usize::try_from(u64_at(elf, 0x28)?).ok()?;
    if usize::from(u16_at(elf, 0x3a)?) != SECTION_HEADER {
        return None;
    }
    // An image with very many kernels stores the true count in the first header.
    let count = match u16_at(elf, 0x3c)? {
        0 => usize::try_from(u64_at(elf, table.checked_add(0x20)?)?).ok()?,
        count => usize::from(count),
    };
    let names_index = match u16_at(elf, 0x3e)? {
        0xffff => u32_at(elf, table.checked_add(0x28)?)? as usize,
        index => usize::from(index),
    };
    let headers = elf.get(table..)?;
    let headers: Vec<&[u8]> = headers.chunks_exact(SECTION_HEADER).take(count.min(MAX_SECTIONS)).collect();
    let names = section_data(elf, headers.get(names_index)?)?;
    Some(headers.iter().filter_map(|header| section(elf, names, header)).collect())
}

fn section<'a>(elf: &'a [u8], names: &'a [u8], header: &[u8]) -> Option<Section<'a>> {
    Some(Section {
        name: text_at(names, u32_at(header, 0)? as usize)?,
        size: u64_at(header, 0x20)?,
        data: section_data(elf, header)?,
        link: u32_at(header, 0x28)?,
        info: u32_at(header, 0x2c)?,
    })
}

fn section_data<'a>(elf: &'a [u8], header: &[u8]) -> Option<&'a [u8]> {
    const NO_BITS: u32 = 8;
    if u32_at(header, 4)? == NO_BITS {
        return Some(&[]);
    }
    let start = usize::try_from(u64_at(header, 0x18)?).ok()?;
    let size = usize::try_from(u64_at(header, 0x20)?).ok()?;
    elf.get(start..start.checked_add(size)?)
}

fn text_at(names: &[u8], offset: usize) -> Option<&str> {
    let rest = names.get(offset..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

/// Names of the symbols in the symbol table with this index.
fn symbols<'a>(index: u32, sections: &[Section<'a>]) -> Vec<&'a str> {
    const SYMBOL: usize = 24;
    let Some(table) = sections.get(index as usize) else { return Vec::new() };
    let Some(names) = sections.get(table.link as usize) else { return Vec::new() };
    table
        .data
        .chunks_exact(SYMBOL)
        .map(|symbol| u32_at(symbol, 0).and_then(|offset| text_at(names.data, offset as usize)).unwrap_or(""))
        .collect()
}

/// Walks a list of attributes: a format, a number, and a value inline or after a length.
fn attributes(data: &[u8], mut each: impl FnMut(u8, &[u8])) {
    const BEHIND_LENGTH: u8 = 4;
    let mut rest = data;
    while let [format, number, low, high, tail @ ..] = rest {
        let mut value: &[u8] = &[];
        rest = tail;
        if *format == BEHIND_LENGTH {
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            let Some((own, after)) = tail.split_at_checked(length) else { return };
            (value, rest) = (own, after);
        }
        each(*number, value);
    }
}

/// Reads attributes that the image stores for all its kernels together, each with the index of the kernel's
/// symbol.
fn shared_attributes(data: &[u8], symbols: &[&str], functions: &mut HashMap<String, Function>) {
    attributes(data, |number, value| {
        let (Some(symbol), Some(amount)) = (u32_at(value, 0), u32_at(value, 4)) else { return };
        let Some(function) = symbols.get(symbol as usize).and_then(|name| functions.get_mut(*name)) else {
            return;
        };
        match number {
            attribute::REGISTERS => function.registers = amount,
            attribute::FRAME_SIZE => function.local = amount,
            _ => {}
        }
    });
}

fn own_attributes(data: &[u8], function: &mut Function) {
    attributes(data, |number, value| match number {
        attribute::MAX_THREADS | attribute::REQUIRED_THREADS => {
            let threads = (0..3).filter_map(|axis| u32_at(value, axis * 4));
            function.launch_bound =
                threads.fold(1, |product: u32, extent| product.saturating_mul(extent.max(1)));
        }
        // `…: u18, size in words: u14`
        attribute::KPARAM_INFO => own_parameter(value, |packed| packed >> 18, &mut function.params),
        // `size: u16, …: u16`
        attribute::LARGE_KPARAM_INFO => own_parameter(value, |packed| packed & 0xffff, &mut function.params),
        _ => {}
    });
}

/// Reads `index: u32, ordinal: u16, offset: u16`, and four bytes that contain the size.
fn own_parameter(value: &[u8], size: impl Fn(u32) -> u32, params: &mut Vec<Param>) {
    let (Some(ordinal), Some(offset), Some(packed)) = (u16_at(value, 4), u16_at(value, 6), u32_at(value, 8))
    else {
        return;
    };
    if u32::from(ordinal) >= MAX_PARAMS {
        return;
    }
    let ordinal = usize::from(ordinal);
    if params.len() <= ordinal {
        params.resize(ordinal + 1, Param { offset: 0, size: 0 });
    }
    params[ordinal] = Param { offset: u32::from(offset), size: size(packed) };
}

#[cfg(test)]
pub mod tests;
