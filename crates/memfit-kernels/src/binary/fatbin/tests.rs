//! Tests of the fat binary reader on synthetic containers.

use proptest::prelude::*;

use super::*;

/// Builds an entry as the compiler writes it, with a header of today's length.
fn entry(kind: u16, version: u32, flags: u64, stored: &[u8], unpacked: usize) -> Vec<u8> {
    let payload = stored.len().next_multiple_of(8);
    let mut bytes = vec![0; ENTRY_HEADER_BYTES];
    bytes[0..2].copy_from_slice(&kind.to_le_bytes());
    bytes[4..8].copy_from_slice(&(ENTRY_HEADER_BYTES as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&(payload as u64).to_le_bytes());
    bytes[16..20].copy_from_slice(&(stored.len() as u32).to_le_bytes());
    bytes[28..32].copy_from_slice(&version.to_le_bytes());
    bytes[40..48].copy_from_slice(&flags.to_le_bytes());
    bytes[56..64].copy_from_slice(&(unpacked as u64).to_le_bytes());
    bytes.extend_from_slice(stored);
    bytes.resize(ENTRY_HEADER_BYTES + payload, 0);
    bytes
}

fn container(entries: &[Vec<u8>]) -> Vec<u8> {
    let body = entries.concat();
    let mut bytes = MAGIC.to_le_bytes().to_vec();
    bytes.extend(1u16.to_le_bytes());
    bytes.extend((HEADER as u16).to_le_bytes());
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Builds a zstd frame that stores `bytes` uncompressed: a frame needs no compressor.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    // Magic; one segment with its size in four bytes; one raw block, the last.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend((bytes.len() as u32).to_le_bytes());
    frame.extend(&(((bytes.len() as u32) << 3) | 1).to_le_bytes()[..3]);
    frame.extend(bytes);
    frame
}

/// Builds an LZ4 block of literals only.
fn lz4(bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() < 15);
    let mut block = vec![(bytes.len() as u8) << 4];
    block.extend(bytes);
    block
}

const ZSTD: u64 = 0x8011;
const LZ4: u64 = 0x2011;
const PLAIN: u64 = 0x11;

#[test]
fn every_packing_gives_the_same_bytes() {
    let image = b"an elf image";
    let entries = [
        entry(2, 80, PLAIN, b"16 bytes, plain.", 0),
        entry(2, 86, ZSTD, &zstd(image), image.len()),
        entry(2, 90, LZ4, &lz4(image), image.len()),
        entry(1, 90, ZSTD, &zstd(image), image.len()),
    ];
    let bytes = container(&entries);
    let images = images(&bytes);
    let seen: Vec<_> = images.iter().map(|image| (image.kind, image.target.version)).collect();
    assert_eq!(seen, [(Kind::Machine, 80), (Kind::Machine, 86), (Kind::Machine, 90), (Kind::Ptx, 90)]);
    assert_eq!(images[0].unpack().unwrap(), b"16 bytes, plain.");
    for image_of in &images[1..] {
        assert_eq!(image_of.unpack().unwrap(), image);
    }
}

#[test]
fn unknown_kinds_are_passed_over() {
    let bytes = container(&[entry(9, 80, PLAIN, b"12345678", 0), entry(2, 86, PLAIN, b"12345678", 0)]);
    assert_eq!(images(&bytes).len(), 1);
}

#[test]
fn a_wrong_size_is_damage() {
    for (flags, stored) in [(ZSTD, zstd(b"twelve bytes")), (LZ4, lz4(b"twelve bytes"))] {
        for claimed in [0, 11, 13] {
            let bytes = container(&[entry(2, 80, flags, &stored, claimed)]);
            let unpacked = images(&bytes)[0].unpack();
            // LZ4 does not know its own end; with a larger claim, it yields the bytes that exist.
            let accepted = flags == LZ4 && claimed == 13;
            assert_eq!(unpacked.is_ok(), accepted, "{flags:#x} {claimed}: {unpacked:?}");
        }
    }
}

#[test]
fn a_claim_out_of_proportion_is_refused_before_anything_is_allocated() {
    for flags in [ZSTD, LZ4] {
        let bytes = container(&[entry(2, 80, flags, &[0; 16], usize::MAX)]);
        assert_eq!(images(&bytes)[0].unpack(), Err(UnpackError::TooLarge(usize::MAX)));
    }
}

#[test]
fn no_container_no_size() {
    assert_eq!(container_size(b""), None);
    assert_eq!(container_size(&[0; 16]), None);
    let mut bytes = container(&[]);
    assert_eq!(container_size(&bytes), Some(HEADER));
    bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(container_size(&bytes), None, "the size would pass the end of memory");
}

#[test]
fn entries_that_reach_past_the_end_stop_the_walk() {
    let mut bytes = container(&[entry(2, 80, PLAIN, b"12345678", 0), entry(2, 86, PLAIN, b"12345678", 0)]);
    let second = HEADER + ENTRY_HEADER_BYTES + 8;
    bytes[second + 8..second + 16].copy_from_slice(&9u64.to_le_bytes());
    assert_eq!(images(&bytes).len(), 1);
}

proptest! {
    /// Corruption anywhere causes no panic, and no output longer than the header claims.
    #[test]
    fn damage_never_panics(flips in prop::collection::vec((0usize..400, any::<u8>()), 1..12), cut in 0usize..400) {
        let image = b"an elf image";
        let mut bytes = container(&[
            entry(2, 86, ZSTD, &zstd(image), image.len()),
            entry(2, 90, LZ4, &lz4(image), image.len()),
            entry(1, 90, PLAIN, image, 0),
        ]);
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(cut.max(1));
        for image in images(&bytes) {
            if let Ok(unpacked) = image.unpack() {
                prop_assert!(unpacked.len() <= MAX_IMAGE_BYTES);
            }
        }
    }
}
