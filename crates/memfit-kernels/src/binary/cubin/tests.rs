//! Tests of the machine code reader on synthetic ELF images.

use proptest::prelude::*;

use super::*;

/// A section to build: name, bytes, `sh_info`, `sh_link`, and a size if it has no bytes in the file.
struct Part {
    name: &'static str,
    data: Vec<u8>,
    info: u32,
    link: u32,
    no_bits: Option<u64>,
}

fn part(name: &'static str, data: Vec<u8>) -> Part {
    Part { name, data, info: 0, link: 0, no_bits: None }
}

fn behind_length(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![4, number];
    bytes.extend((value.len() as u16).to_le_bytes());
    bytes.extend(value);
    bytes
}

fn parameter(ordinal: u16, offset: u16, size: u32) -> Vec<u8> {
    let mut value = 0u32.to_le_bytes().to_vec();
    value.extend(ordinal.to_le_bytes());
    value.extend(offset.to_le_bytes());
    value.extend(((size << 18) | 0x1f000).to_le_bytes());
    behind_length(0x17, &value)
}

fn pair(number: u8, symbol: u32, amount: u32) -> Vec<u8> {
    behind_length(number, &[symbol.to_le_bytes(), amount.to_le_bytes()].concat())
}

fn symbol(name_offset: u32) -> Vec<u8> {
    let mut bytes = name_offset.to_le_bytes().to_vec();
    bytes.resize(24, 0);
    bytes
}

/// Builds an ELF image of the parts, after the null section and the name table.
fn elf(parts: &[Part]) -> Vec<u8> {
    let mut names = b"\0.shstrtab\0".to_vec();
    let mut offsets = Vec::new();
    for part in parts {
        offsets.push(names.len() as u32);
        names.extend(part.name.as_bytes());
        names.push(0);
    }
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
    let mut headers = vec![0; SECTION_HEADER];
    let mut add = |bytes: &mut Vec<u8>, name: u32, part: &Part| {
        let mut header = vec![0u8; SECTION_HEADER];
        header[..4].copy_from_slice(&name.to_le_bytes());
        header[4..8].copy_from_slice(&(if part.no_bits.is_some() { 8u32 } else { 1 }).to_le_bytes());
        header[0x18..0x20].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        header[0x20..0x28].copy_from_slice(&part.no_bits.unwrap_or(part.data.len() as u64).to_le_bytes());
        header[0x28..0x2c].copy_from_slice(&part.link.to_le_bytes());
        header[0x2c..0x30].copy_from_slice(&part.info.to_le_bytes());
        headers.extend(header);
        bytes.extend(&part.data);
    };
    add(&mut bytes, 1, &part(".shstrtab", names));
    for (part, name) in parts.iter().zip(offsets) {
        add(&mut bytes, name, part);
    }
    let table = bytes.len() as u64;
    bytes.extend(headers);
    bytes[0x28..0x30].copy_from_slice(&table.to_le_bytes());
    bytes[0x3a..0x3c].copy_from_slice(&64u16.to_le_bytes());
    bytes[0x3c..0x3e].copy_from_slice(&(parts.len() as u16 + 2).to_le_bytes());
    bytes[0x3e..0x40].copy_from_slice(&1u16.to_le_bytes());
    bytes
}

/// Builds a kernel `k` as ABI 8 describes it: sections 2 to 7.
pub(crate) fn kernel_k(registers: u32, shared: u64, launch_bound: [u32; 3]) -> Vec<u8> {
    let own = [
        parameter(1, 8, 24),
        parameter(0, 0, 8),
        behind_length(0x05, &launch_bound.map(u32::to_le_bytes).concat()),
        // Formats without a length: one that is skipped.
        vec![3, 0x1b, 0xff, 0],
    ]
    .concat();
    let all = [pair(0x2f, 1, registers), pair(0x11, 1, 16), pair(0x2f, 9, 1)].concat();
    elf(&[
        Part { link: 3, ..part(".symtab", [symbol(0), symbol(1)].concat()) },
        part(".strtab", b"\0k\0".to_vec()),
        Part { link: 2, ..part(".nv.info", all) },
        part(".nv.info.k", own),
        part(".text.k", vec![0; 16]),
        Part { no_bits: Some(shared), ..part(".nv.shared.k", Vec::new()) },
    ])
}

#[test]
fn a_kernel_is_read_whole() {
    let functions = functions(&kernel_k(40, 1024, [128, 2, 1]));
    let expected = Function {
        params: vec![Param { offset: 0, size: 8 }, Param { offset: 8, size: 24 }],
        registers: 40,
        shared: 1024,
        local: 16,
        constant: 0,
        launch_bound: 256,
        code: Code::default(),
    };
    assert_eq!(functions.len(), 1);
    assert_eq!(functions["k"], expected);
}

#[test]
fn more_than_four_kilobytes_of_parameters_are_stated_in_another_way() {
    let large = |ordinal: u16, offset: u16, size: u32| {
        let fields = [&ordinal.to_le_bytes()[..], &offset.to_le_bytes(), &size.to_le_bytes()].concat();
        behind_length(0x45, &[&[0; 4][..], &fields].concat())
    };
    let own = [large(1, 0x64a8, 1), large(0, 0, 0x64a8)].concat();
    let image = elf(&[part(".nv.info.k", own), part(".text.k", vec![0; 16])]);
    let params = vec![Param { offset: 0, size: 25_768 }, Param { offset: 25_768, size: 1 }];
    assert_eq!(functions(&image)["k"].params, params);
}

#[test]
fn registers_of_older_images_are_beside_the_code() {
    let image = elf(&[Part { info: 24 << 24 | 5, ..part(".text.k", vec![0; 16]) }]);
    assert_eq!(functions(&image)["k"].registers, 24);
}

#[test]
fn other_bytes_have_no_kernels() {
    for bytes in [&b""[..], b"\x7fELF", &[0; 256], b".version 8.0\n.target sm_80"] {
        assert!(functions(bytes).is_empty());
    }
}

proptest! {
    /// Corruption anywhere causes no panic, and parameters stay within their bound.
    #[test]
    fn damage_never_panics(flips in prop::collection::vec((0usize..2000, any::<u8>()), 1..16), cut in 0usize..2000) {
        let mut bytes = kernel_k(40, 1024, [128, 2, 1]);
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(cut.max(64));
        for function in functions(&bytes).values() {
            prop_assert!(function.params.len() <= MAX_PARAMS as usize);
        }
    }
}
