//! Compressed slices of a volume: run lengths, JPEG (baseline and lossless) and JPEG 2000.

use jpeg_decoder::{Decoder, PixelFormat};

use crate::LoaderError;
use crate::decode::catch_panic;

const NAME: &str = "DICOM";
/// Decoded size that any slice may have, and the maximum compression ratio of larger ones: all-black slices
/// are tiny, and large slices are not.
const UNLIMITED_SLICE_BYTES: usize = 64 << 20;
const MAX_RATIO: usize = 1024;

/// Compression of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// DICOM's run-length encoding.
    Runs,
    /// JPEG, including lossless.
    Jpeg,
    /// JPEG 2000.
    #[cfg(feature = "jpeg2000")]
    Jp2,
}

/// Layout of a decoded slice: row-major little-endian values of `size` bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceLayout {
    pub width: u64,
    pub height: u64,
    pub size: usize,
}

fn damaged(reason: impl Into<String>) -> LoaderError {
    LoaderError::Damaged { format: NAME, reason: reason.into() }
}

impl Coding {
    /// Compression of a DICOM transfer syntax, if it is supported.
    pub(super) fn from_syntax(syntax: &str) -> Option<Self> {
        match syntax.strip_prefix("1.2.840.10008.1.2.")? {
            "5" => Some(Self::Runs),
            "4.50" | "4.51" | "4.57" | "4.70" => Some(Self::Jpeg),
            #[cfg(feature = "jpeg2000")]
            "4.90" | "4.91" => Some(Self::Jp2),
            _ => None,
        }
    }

    /// Decodes a slice into `out`, which gets the length given by `stored`.
    pub(super) fn decode(
        self,
        coded: &[u8],
        stored: SliceLayout,
        out: &mut Vec<u8>,
    ) -> Result<(), LoaderError> {
        let values = stored.width.checked_mul(stored.height).and_then(|values| usize::try_from(values).ok());
        let whole = values.and_then(|values| Some((values, values.checked_mul(stored.size)?)));
        let (values, bytes) = whole.ok_or_else(|| damaged("a slice is larger than any memory"))?;
        if bytes > UNLIMITED_SLICE_BYTES.max(coded.len().saturating_mul(MAX_RATIO)) {
            return Err(damaged(format!("{} bytes cannot become {bytes}", coded.len())));
        }
        out.clear();
        out.resize(bytes, 0);
        catch_panic(|| match self {
            Self::Runs => runs(coded, values, stored.size, out),
            Self::Jpeg => jpeg(coded, stored, out),
            #[cfg(feature = "jpeg2000")]
            Self::Jp2 => jp2(coded, stored, out),
        })
    }
}

/// Writes values of at most 16 bits, each with `size` bytes.
fn fill(values: impl Iterator<Item = u32>, size: usize, out: &mut [u8]) {
    for (value, place) in values.zip(out.chunks_exact_mut(size)) {
        let bytes = value.to_le_bytes();
        let has = size.min(bytes.len());
        place[..has].copy_from_slice(&bytes[..has]);
    }
}

fn jpeg(coded: &[u8], stored: SliceLayout, out: &mut [u8]) -> Result<(), LoaderError> {
    let wrong = |error: jpeg_decoder::Error| match error {
        jpeg_decoder::Error::Unsupported(what) => {
            LoaderError::Unsupported { format: NAME, reason: format!("a JPEG in it has {what:?}") }
        }
        other => damaged(format!("a JPEG in it: {other}")),
    };
    let mut decoder = Decoder::new(coded);
    // While decoding, values are at most twice as wide. A header that claims more pixels gets no more memory.
    decoder.set_max_decoding_buffer_size(out.len().saturating_mul(2).saturating_add(1 << 16));
    decoder.read_info().map_err(wrong)?;
    let info = decoder.info().ok_or_else(|| damaged("a JPEG in it has no header"))?;
    if (u64::from(info.width), u64::from(info.height)) != (stored.width, stored.height) {
        return Err(damaged(format!(
            "a JPEG in it is {}x{}, and its header says {}x{}",
            info.width, info.height, stored.width, stored.height
        )));
    }
    let wide = match info.pixel_format {
        PixelFormat::L8 => 1,
        PixelFormat::L16 => 2,
        _ => {
            return Err(LoaderError::Unsupported {
                format: NAME,
                reason: "a JPEG in it is not greyscale".to_owned(),
            });
        }
    };
    if wide > stored.size {
        return Err(damaged("a JPEG in it has wider values than its header says"));
    }
    let pixels = decoder.decode().map_err(wrong)?;
    if (pixels.len() / wide) as u64 != stored.width * stored.height {
        return Err(damaged("a JPEG in it ends early"));
    }
    if wide == 1 {
        fill(pixels.iter().map(|value| u32::from(*value)), stored.size, out);
    } else {
        let values = pixels.as_chunks::<2>().0.iter();
        fill(values.map(|value| u16::from_ne_bytes(*value).into()), stored.size, out);
    }
    Ok(())
}

#[cfg(feature = "jpeg2000")]
fn jp2(coded: &[u8], stored: SliceLayout, out: &mut [u8]) -> Result<(), LoaderError> {
    use hayro_jpeg2000::{DecodeSettings, DecoderContext, Image};

    /// Offset in a code stream of the first component's bit depth and sign flag.
    const DEPTH: usize = 42;
    let wrong = |error: hayro_jpeg2000::DecodeError| damaged(format!("a JPEG 2000 in it: {error}"));
    let depth = coded.get(DEPTH).copied().ok_or_else(|| damaged("a JPEG 2000 in it has no header"))?;
    let (bits, signed) = (u32::from(depth & 0x7f) + 1, depth & 0x80 != 0);
    let image = Image::new(coded, &DecodeSettings::default()).map_err(wrong)?;
    if (u64::from(image.width()), u64::from(image.height())) != (stored.width, stored.height) {
        return Err(damaged("a JPEG 2000 in it has another size than its header says"));
    }
    if bits as usize > stored.size * 8 || bits > 16 {
        return Err(damaged("a JPEG 2000 in it has wider values than its header says"));
    }
    let mut context = DecoderContext::default();
    let decoded = image.decode(&mut context).map_err(wrong)?;
    let [plane] = decoded.components() else {
        return Err(LoaderError::Unsupported {
            format: NAME,
            reason: "a JPEG 2000 in it is not greyscale".to_owned(),
        });
    };
    if plane.samples().len() as u64 != stored.width * stored.height {
        return Err(damaged("a JPEG 2000 in it ends early"));
    }
    // The decoder's values start at the lowest possible value.
    let lowest = if signed { 1_i32 << (bits - 1) } else { 0 };
    let values = plane.samples().iter().map(|value| (value.round() as i32 - lowest).cast_unsigned());
    fill(values, stored.size, out);
    Ok(())
}

/// Decodes run lengths: one segment for each byte of a value, the highest first, each in PackBits encoding.
fn runs(coded: &[u8], values: usize, size: usize, out: &mut [u8]) -> Result<(), LoaderError> {
    let damaged = |reason: &str| LoaderError::Damaged { format: NAME, reason: reason.to_owned() };
    let word = |at: usize| -> Option<usize> {
        Some(u32::from_le_bytes(coded.get(at * 4..at * 4 + 4)?.try_into().ok()?) as usize)
    };
    if word(0) != Some(size) {
        return Err(damaged("its run lengths have another number of segments"));
    }
    for segment in 0..size {
        let short = || damaged("its run lengths end early");
        let start = word(1 + segment).ok_or_else(short)?;
        let end = if segment + 1 < size { word(2 + segment).ok_or_else(short)? } else { coded.len() };
        let mut bytes = coded.get(start..end).ok_or_else(short)?.iter().copied();
        let mut filled = 0;
        while filled < values {
            let control = bytes.next().ok_or_else(short)?;
            let (count, repeated) = match control {
                0..=127 => (usize::from(control) + 1, None),
                128 => continue,
                129..=255 => (257 - usize::from(control), Some(bytes.next().ok_or_else(short)?)),
            };
            for _ in 0..count {
                let value = match repeated {
                    Some(value) => value,
                    None => bytes.next().ok_or_else(short)?,
                };
                if filled < values {
                    out[filled * size + (size - 1 - segment)] = value;
                    filled += 1;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: SliceLayout = SliceLayout { width: 7, height: 5, size: 2 };

    /// Encodes a lossless JPEG: differences from the value to the left, in a code of 17 words of five bits,
    /// one for each length.
    fn lossless(values: &[u16], stored: SliceLayout, precision: u8) -> Vec<u8> {
        let (width, height) = (stored.width as usize, stored.height as usize);
        let mut out =
            vec![0xff, 0xd8, 0xff, 0xc3, 0, 11, precision, 0, height as u8, 0, width as u8, 1, 1, 0x11, 0];
        out.extend([0xff, 0xc4, 0, 19 + 17, 0]);
        out.extend((1..=16).map(|length| if length == 5 { 17 } else { 0 }));
        out.extend(0..17);
        out.extend([0xff, 0xda, 0, 8, 1, 1, 0, 1, 0, 0]);
        let mut bits: Vec<bool> = Vec::new();
        let mut push =
            |value: u32, count: u32| bits.extend((0..count).rev().map(|bit| value >> bit & 1 == 1));
        for (at, value) in values.iter().enumerate() {
            let before = match (at % width, at / width) {
                (0, 0) => 1 << (precision - 1),
                (0, _) => values[at - width],
                _ => values[at - 1],
            };
            let difference = i32::from(value.wrapping_sub(before).cast_signed());
            let length = 32 - difference.unsigned_abs().leading_zeros();
            push(length, 5);
            if length < 16 {
                let coded = if difference < 0 { difference - 1 } else { difference };
                push(coded.cast_unsigned() & ((1 << length) - 1), length);
            }
        }
        bits.resize(bits.len().next_multiple_of(8), true);
        for byte in bits.as_chunks::<8>().0 {
            let byte = byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
            out.push(byte);
            if byte == 0xff {
                out.push(0);
            }
        }
        out.extend([0xff, 0xd9]);
        out
    }

    fn decoded(coding: Coding, coded: &[u8], stored: SliceLayout) -> Result<Vec<u16>, LoaderError> {
        let mut out = Vec::new();
        coding.decode(coded, stored, &mut out)?;
        Ok(out.as_chunks::<2>().0.iter().map(|value| u16::from_le_bytes(*value)).collect())
    }

    #[test]
    fn jpegs_without_loss_come_back_to_the_bit() {
        for (precision, spread) in [(16, 1), (16, 1871), (12, 113), (16, 0)] {
            let mask = if precision == 16 { 0xffff } else { 0x0fff };
            let values: Vec<u16> =
                (0..35_u16).map(|at| at.wrapping_mul(spread).wrapping_add(40) & mask).collect();
            let coded = lossless(&values, LAYOUT, precision);
            assert_eq!(decoded(Coding::Jpeg, &coded, LAYOUT).unwrap(), values, "{precision} bits, {spread}");
        }
        // Fewer bits than the type has.
        let bytes: Vec<u16> = (0..35).map(|at| at * 7).collect();
        assert_eq!(decoded(Coding::Jpeg, &lossless(&bytes, LAYOUT, 8), LAYOUT).unwrap(), bytes);
    }

    #[test]
    fn data_that_contradicts_its_header_is_refused() {
        let coded = lossless(&[9; 35], LAYOUT, 16);
        for other in [
            SliceLayout { width: 8, ..LAYOUT },
            SliceLayout { height: 4, ..LAYOUT },
            SliceLayout { size: 1, ..LAYOUT },
            SliceLayout { width: 60_000, height: 60_000, size: 2 },
        ] {
            assert!(Coding::Jpeg.decode(&coded, other, &mut Vec::new()).is_err(), "{other:?}");
        }
        for length in 0..coded.len() - 2 {
            // Decoding returns for every truncation; half of a file is an error.
            let cut = decoded(Coding::Jpeg, &coded[..length], LAYOUT);
            assert!(length > coded.len() / 2 || cut.is_err(), "{length}");
        }
        assert_eq!(Coding::from_syntax("1.2.840.10008.1.2.4.80"), None);
    }
}
