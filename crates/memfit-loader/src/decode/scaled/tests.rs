//! The scaled decoder yields the library's pixels, and returns for any input.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use proptest::prelude::*;

use super::File;
use crate::pixels::Rect;

/// An image with edges, gradients and noise.
fn pixels(width: u16, height: u16, bands: usize) -> Vec<u8> {
    let mut noise = 1_u32;
    (0..usize::from(height))
        .flat_map(|y| (0..usize::from(width)).map(move |x| (x, y)))
        .flat_map(|(x, y)| (0..bands).map(move |band| (x, y, band)))
        .map(|(x, y, band)| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let edge = if (x / 7 + y / (5 + band)) % 2 == 0 { 90 } else { 0 };
            (edge + x * (3 + band) + y * 2 + (noise >> 27) as usize).min(255) as u8
        })
        .collect()
}

fn jpeg(
    (width, height): (u16, u16),
    sampling: SamplingFactor,
    quality: u8,
    interval: u16,
    kind: ColorType,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, quality);
    encoder.set_sampling_factor(sampling);
    encoder.set_restart_interval(interval);
    let bands = match kind {
        ColorType::Luma => 1,
        ColorType::Cmyk => 4,
        _ => 3,
    };
    encoder.encode(&pixels(width, height, bands), width, height, kind).unwrap();
    out
}

/// Pixels of the scaled decoder, if it accepts the file.
fn ours(bytes: &[u8], by: usize, region: Option<Rect>) -> Option<Vec<u8>> {
    let (file, data) = File::read(bytes)?;
    let whole = Rect::whole(file.width.div_ceil(by) as u32, file.height.div_ceil(by) as u32);
    let region = region.unwrap_or(whole);
    let bands = file.components.len();
    let mut out = vec![0; region.width as usize * region.height as usize * bands];
    file.decode(data, by, region, &mut out).map(|()| out)
}

#[test]
fn unusual_sampling_and_inks_are_left_to_the_library() {
    let size = (33, 21);
    for sampling in [SamplingFactor::F_1_2, SamplingFactor::F_4_1] {
        assert_eq!(ours(&jpeg(size, sampling, 90, 0, ColorType::Rgb), 8, None), None);
    }
    assert_eq!(ours(&jpeg(size, SamplingFactor::F_1_1, 90, 0, ColorType::Cmyk), 8, None), None);
    let mut progressive = Vec::new();
    let mut encoder = Encoder::new(&mut progressive, 90);
    encoder.set_progressive(true);
    encoder.encode(&pixels(33, 21, 3), 33, 21, ColorType::Rgb).unwrap();
    assert_eq!(ours(&progressive, 8, None), None);
}

#[test]
fn a_region_is_that_part_of_the_whole() {
    for sampling in [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_2_2] {
        let bytes = jpeg((333, 250), sampling, 92, 5, ColorType::Rgb);
        for by in [4, 8] {
            let whole = ours(&bytes, by, None).unwrap();
            let (width, height) = (333_usize.div_ceil(by) as u32, 250_usize.div_ceil(by) as u32);
            let (left, top) = (width / 3, height / 4);
            let region = Rect { left, top, width: width - left - 2, height: height / 2 };
            let part = ours(&bytes, by, Some(region)).unwrap();
            for y in 0..region.height {
                let from = (((top + y) * width + left) * 3) as usize;
                let line = (region.width * 3) as usize;
                let at = y as usize * line;
                assert_eq!(part[at..at + line], whole[from..from + line], "{sampling:?} 1/{by} row {y}");
            }
        }
    }
}

#[test]
fn truncated_files_are_passed_to_the_library() {
    let bytes = jpeg((120, 90), SamplingFactor::F_2_2, 90, 4, ColorType::Rgb);
    assert!(ours(&bytes, 8, None).is_some());
    for cut in (0..bytes.len() - 8).step_by(7) {
        assert_eq!(ours(&bytes[..cut], 8, None), None, "cut at {cut}");
    }
    // A restart marker with the wrong number.
    let mut wrong = bytes;
    let mark = wrong.windows(2).position(|pair| pair == [0xff, 0xd1]).unwrap();
    wrong[mark + 1] = 0xd5;
    assert_eq!(ours(&wrong, 8, None), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// No input causes a panic.
    #[test]
    fn bytes_that_are_changed_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        sampling in 0_usize..3,
        interval in 0_u16..4,
    ) {
        let sampling = [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_2_2][sampling];
        let mut bytes = jpeg((61, 43), sampling, 85, interval, ColorType::Rgb);
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        // Headers of huge images are skipped: the loader checks the budget before it decodes them.
        if let Some((file, data)) = File::read(&bytes) && file.width * file.height < 1 << 20 {
            for by in [4, 8] {
                let region = Rect::whole(file.width.div_ceil(by) as u32, file.height.div_ceil(by) as u32);
                let mut out = vec![0; region.width as usize * region.height as usize * file.components.len()];
                let _ = file.decode(data, by, region, &mut out);
            }
        }
    }
}

#[cfg(feature = "turbo")]
mod beside_the_library {
    use super::*;
    use crate::decode::turbo;

    fn scaled(bytes: &[u8], by: usize, bands: usize) -> Vec<u8> {
        turbo::whole(bytes, by, bands).unwrap()
    }

    #[test]
    fn pixels_are_the_librarys() {
        let sizes = [(1, 1), (3, 2), (8, 8), (16, 16), (17, 33), (31, 29), (64, 48), (65, 49), (200, 133)];
        let samplings = [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_2_2];
        for size in sizes {
            for sampling in samplings {
                for (quality, interval) in [(20, 0), (75, 3), (90, 0), (100, 1)] {
                    let bytes = jpeg(size, sampling, quality, interval, ColorType::Rgb);
                    for by in [4, 8] {
                        let mine = ours(&bytes, by, None).unwrap();
                        let theirs = scaled(&bytes, by, 3);
                        assert!(mine == theirs, "{size:?} {sampling:?} {quality} {interval} 1/{by}");
                    }
                }
            }
            let bytes = jpeg(size, SamplingFactor::F_1_1, 90, 2, ColorType::Luma);
            for by in [4, 8] {
                assert!(ours(&bytes, by, None).unwrap() == scaled(&bytes, by, 1), "{size:?} grey 1/{by}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// Damaged files that the decoder accepts decode to the library's pixels.
        #[test]
        fn decoded_pixels_equal_those_of_the_library(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            interval in 0_u16..4,
        ) {
            let mut bytes = jpeg((61, 43), SamplingFactor::F_2_2, 85, interval, ColorType::Rgb);
            let scan = bytes.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap() + 14;
            for (place, value) in changes {
                let place = scan + place.index(bytes.len() - scan - 2);
                bytes[place] = value;
            }
            for by in [4, 8] {
                if let Some(mine) = ours(&bytes, by, None) {
                    prop_assert!(mine == scaled(&bytes, by, 3), "1/{}", by);
                }
            }
        }
    }
}
