//! False headers, truncated files and noise: each yields an error with its reason, and memory stays within
//! the charge.

use std::sync::Arc;

use memfit_loader::{
    Crop, Decoder, Format, Framing, Header, Input, LoaderError, Mode, Prepared, Rendering, Sample,
};
use proptest::prelude::*;

fn jpeg(width: u16, height: u16, progressive: bool) -> Vec<u8> {
    let pixels: Vec<u8> = (0..usize::from(width) * usize::from(height) * 3)
        .map(|at| ((at / 3 % usize::from(width)) * 255 / usize::from(width)) as u8)
        .collect();
    let mut out = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut out, 90);
    encoder.set_progressive(progressive);
    encoder.encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).expect("it can be encoded");
    out
}

fn png(width: u32, height: u32, depth: png::BitDepth, colour: png::ColorType) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(colour);
    encoder.set_depth(depth);
    let mut writer = encoder.write_header().expect("a header");
    let samples = match colour {
        png::ColorType::Rgb => 3,
        png::ColorType::Rgba => 4,
        _ => 1,
    };
    let bytes = if depth == png::BitDepth::Sixteen { 2 } else { 1 };
    let data: Vec<u8> = (0..width as usize * height as usize * samples * bytes).map(|at| at as u8).collect();
    writer.write_image_data(&data).expect("pixels");
    writer.finish().expect("an end");
    out
}

fn tiff_of(width: u32, height: u32) -> Vec<u8> {
    let mut out = std::io::Cursor::new(Vec::new());
    let data: Vec<u16> = (0..width * height).map(|at| at as u16).collect();
    tiff::encoder::TiffEncoder::new(&mut out)
        .and_then(|mut encoder| encoder.write_image::<tiff::encoder::colortype::Gray16>(width, height, &data))
        .expect("it can be encoded");
    out.into_inner()
}

fn webp(width: u32, height: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let data: Vec<u8> = (0..width * height * 3).map(|at| at as u8).collect();
    image_webp::WebPEncoder::new(&mut out)
        .encode(&data, width, height, image_webp::ColorType::Rgb8)
        .expect("it can be encoded");
    out
}

fn gif(width: u16, height: u16) -> Vec<u8> {
    let mut out = Vec::new();
    let palette: Vec<u8> = (0..=255).flat_map(|value| [value, 255 - value, value / 2]).collect();
    let mut encoder = gif::Encoder::new(&mut out, width, height, &palette).expect("a header");
    let pixels: Vec<u8> = (0..usize::from(width) * usize::from(height)).map(|at| at as u8).collect();
    encoder
        .write_frame(&gif::Frame { width, height, buffer: pixels.into(), ..gif::Frame::default() })
        .expect("a picture");
    drop(encoder);
    out
}

fn bmp(width: u32, height: u32) -> Vec<u8> {
    let stride = (width * 3).next_multiple_of(4);
    let mut out = b"BM".to_vec();
    for number in [54 + stride * height, 0, 54, 40, width, height] {
        out.extend(number.to_le_bytes());
    }
    out.extend([1, 0, 24, 0]);
    out.extend([0; 24]);
    out.extend((0..stride * height).map(|at| at as u8));
    out
}

fn ppm(width: u32, height: u32) -> Vec<u8> {
    let mut out = format!("P6\n# made up\n{width} {height}\n255\n").into_bytes();
    out.extend((0..width * height * 3).map(|at| at as u8));
    out
}

fn everything() -> Vec<(Format, Vec<u8>)> {
    vec![
        (Format::Gif, gif(31, 23)),
        (Format::Bmp, bmp(37, 21)),
        (Format::Pnm, ppm(29, 33)),
        (Format::Jpeg, jpeg(97, 61, false)),
        (Format::Jpeg, jpeg(97, 61, true)),
        (Format::Png, png(50, 70, png::BitDepth::Eight, png::ColorType::Rgb)),
        (Format::Png, png(50, 70, png::BitDepth::Sixteen, png::ColorType::Rgba)),
        (Format::Tiff, tiff_of(64, 48)),
        (Format::WebP, webp(33, 44)),
    ]
}

fn decode(bytes: &[u8], framing: &Framing) -> Result<Vec<u8>, LoaderError> {
    let rendering = Rendering { mode: Mode::Keep, ..Rendering::default() };
    let image = Prepared::new(Input::Memory(Arc::from(bytes)), framing, &rendering, &[1])?;
    let mut out = vec![0; image.bytes()];
    Decoder::new().decode(&image, true, &mut out)?;
    Ok(out)
}

const SMALL: Framing = Framing { crop: Crop::All, size: Some((16, 16)), flip: 0.0 };
const WHOLE: Framing = Framing { crop: Crop::All, size: None, flip: 0.0 };

#[test]
fn every_format_is_known_by_its_first_bytes() {
    for (format, bytes) in everything() {
        let header = Header::read(&mut std::io::Cursor::new(&bytes), 0).expect("a header");
        assert_eq!(header.format, format);
        assert!(decode(&bytes, &WHOLE).is_ok(), "{format:?}");
        assert!(decode(&bytes, &SMALL).is_ok(), "{format:?}");
    }
}

#[test]
fn values_come_out_as_they_are() {
    let image = decode(&tiff_of(64, 48), &WHOLE).expect("it can be decoded");
    let wanted: Vec<u8> = (0..64 * 48_u16).flat_map(u16::to_ne_bytes).collect();
    assert_eq!(image, wanted);
    let image = decode(&webp(33, 44), &WHOLE).expect("it can be decoded");
    assert_eq!(&image[..4], [0, 3, 6, 9], "the first band of a lossless image");
    let deep = png(8, 8, png::BitDepth::Sixteen, png::ColorType::Grayscale);
    let rendering = Rendering { mode: Mode::Keep, ..Rendering::default() };
    let image = Prepared::new(Input::Memory(deep.into()), &WHOLE, &rendering, &[]).expect("a header");
    assert_eq!(image.layout().sample, Sample::U16);
    let mut out = vec![0; image.bytes()];
    Decoder::new().decode(&image, false, &mut out).expect("it can be decoded");
    assert_eq!(u16::from_ne_bytes([out[2], out[3]]), 0x0203);
}

#[test]
fn an_image_that_ends_early_is_named_as_damaged() {
    for (format, bytes) in everything() {
        for part in [0.3, 0.6, 0.8] {
            let cut = &bytes[..(bytes.len() as f64 * part) as usize];
            let result = decode(cut, &WHOLE);
            assert!(
                matches!(result, Err(LoaderError::Damaged { .. })),
                "{format:?} cut to {part}: {result:?}"
            );
        }
    }
}

/// A header that claims 65,500 x 65,500 pixels is compared with the file size before memory is allocated.
#[test]
fn a_false_header_takes_no_more_memory_than_it_declares() {
    let mut bytes = jpeg(97, 61, false);
    let frame = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("there is a frame");
    bytes[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xdc, 0xff, 0xdc]);
    let image =
        Prepared::new(Input::Memory(bytes.into()), &WHOLE, &Rendering::default(), &[]).expect("a header");
    assert!(image.cost().total() > 65_500 * 65_500 * 3);
}

#[test]
fn a_huge_png_is_charged_for_rows_and_not_for_pixels() {
    let wide = png(4000, 3000, png::BitDepth::Sixteen, png::ColorType::Rgb);
    let image =
        Prepared::new(Input::Memory(wide.into()), &SMALL, &Rendering::default(), &[]).expect("a header");
    assert!(image.cost().total() < 4 << 20, "{} bytes", image.cost().total());
    let mut out = vec![0; image.bytes()];
    let mut decoder = Decoder::new();
    decoder.decode(&image, true, &mut out).expect("it can be decoded");
    assert!(decoder.held() as u64 <= image.cost().buffers, "{} of {}", decoder.held(), image.cost().buffers);
}

/// Decoding in strips yields the result of the whole image, except for rounding: PNG and TIFF are decoded by
/// rows, WebP whole.
#[test]
fn strips_give_what_the_whole_gives() {
    let rows: Vec<u8> =
        (0..300 * 200 * 3_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let one = png_of(&rows, 300, 200);
    let mut tiff_bytes = std::io::Cursor::new(Vec::new());
    tiff::encoder::TiffEncoder::new(&mut tiff_bytes)
        .and_then(|mut encoder| {
            let mut image = encoder.new_image::<tiff::encoder::colortype::RGB8>(300, 200)?;
            image.rows_per_strip(7)?;
            image.write_data(&rows)
        })
        .expect("it can be encoded");
    let lossless = {
        let mut out = Vec::new();
        image_webp::WebPEncoder::new(&mut out)
            .encode(&rows, 300, 200, image_webp::ColorType::Rgb8)
            .expect("it can be encoded");
        out
    };
    for framing in [
        SMALL,
        Framing { crop: Crop::Center { resize: Some(64) }, size: Some((48, 48)), flip: 0.0 },
        Framing {
            crop: Crop::Random { scale: (0.1, 0.9), ratio: (0.5, 2.0) },
            size: Some((40, 30)),
            flip: 0.5,
        },
        WHOLE,
    ] {
        let whole = decode(&lossless, &framing).expect("it can be decoded");
        for (format, bytes) in [("PNG", one.as_slice()), ("TIFF", tiff_bytes.get_ref())] {
            let strips = decode(bytes, &framing).expect("it can be decoded");
            assert_eq!(strips.len(), whole.len());
            // Horizontal and vertical passes round in another order.
            let apart = strips.iter().zip(&whole).map(|(one, other)| one.abs_diff(*other)).max();
            assert!(apart <= Some(1), "{format}, {framing:?}: {apart:?} apart");
        }
    }
}

fn png_of(rows: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(rows).expect("pixels");
    writer.finish().expect("an end");
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Any change yields a result or an error, and no panic of a decoder.
    #[test]
    fn changed_files_give_an_answer(
        which in 0_usize..9, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20), cut in 0.2_f64..1.0
    ) {
        let (_, mut bytes) = everything().swap_remove(which);
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        bytes.truncate((bytes.len() as f64 * cut) as usize);
        let rendering = Rendering { mode: Mode::Keep, ..Rendering::default() };
        if let Ok(image) = Prepared::new(Input::Memory(bytes.into()), &SMALL, &rendering, &[]) {
            // As in the loader, an image that exceeds the budget is not decoded.
            if image.cost().total() < 64 << 20 {
                let mut out = vec![0; image.bytes()];
                let result = Decoder::new().decode(&image, true, &mut out);
                prop_assert!(!matches!(result, Err(LoaderError::Bug(_))), "{result:?}");
            }
        }
    }
}
