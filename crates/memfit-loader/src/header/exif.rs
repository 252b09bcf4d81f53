//! Orientation from EXIF; other fields are ignored.

/// Orientation in a block of EXIF, from 1 to 8; 1 if there is none.
///
/// `block` begins with the TIFF header (`II` or `MM`), with or without `Exif\0\0` before it.
pub(super) fn orientation(block: &[u8]) -> u8 {
    let block = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
    find(block).filter(|value| (1..=8).contains(value)).map_or(1, |value| value as u8)
}

fn find(block: &[u8]) -> Option<u16> {
    let little = match block.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let short = |at: usize| -> Option<u16> {
        let bytes = block.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| -> Option<u32> {
        let bytes = block.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = long(4)? as usize;
    let entries = usize::from(short(directory)?);
    (0..entries).find_map(|entry| {
        let at = directory.checked_add(2)?.checked_add(entry * 12)?;
        // 0x0112 is Orientation, 3 the type of 16-bit numbers.
        (short(at)? == 0x0112 && short(at + 2)? == 3).then(|| short(at + 8))?
    })
}

#[cfg(test)]
mod tests {
    use super::orientation;

    fn block(little: bool, tag: u16, value: u16) -> Vec<u8> {
        let mut bytes = if little { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
        let short = |value: u16| if little { value.to_le_bytes() } else { value.to_be_bytes() };
        let long = |value: u32| if little { value.to_le_bytes() } else { value.to_be_bytes() };
        bytes.extend(long(8));
        bytes.extend(short(1));
        bytes.extend(short(tag));
        bytes.extend(short(3));
        bytes.extend(long(1));
        bytes.extend(short(value));
        bytes.extend(short(0));
        bytes
    }

    #[test]
    fn both_byte_orders_are_read() {
        for little in [true, false] {
            for value in 1..=8 {
                assert_eq!(u16::from(orientation(&block(little, 0x0112, value))), value);
            }
        }
        let mut with_prefix = b"Exif\0\0".to_vec();
        with_prefix.extend(block(true, 0x0112, 6));
        assert_eq!(orientation(&with_prefix), 6);
    }

    #[test]
    fn invalid_orientations_rotate_nothing() {
        for value in [0, 9, 65535] {
            assert_eq!(orientation(&block(true, 0x0112, value)), 1);
        }
        assert_eq!(orientation(&block(true, 0x0100, 6)), 1);
        let whole = block(false, 0x0112, 8);
        for end in 0..whole.len() - 2 {
            assert_eq!(orientation(&whole[..end]), 1, "cut after {end} bytes");
        }
        assert_eq!(orientation(b"II*\0\xff\xff\xff\xff"), 1);
    }
}
