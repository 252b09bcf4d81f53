//! A later frame of an animated PNG, composed with those before it.

use std::io::{BufRead, Seek};

use png::{BlendOp, DisposeOp, FrameControl, Reader};

use super::{NAME, Prepared, damaged, to_native_order};
use crate::LoaderError;
use crate::buffer::Buffer;
use crate::pixels::{Bands, Layout, Sample};
use crate::reduce::Reducer;

pub(super) fn decode<R: BufRead + Seek>(
    reader: &mut Reader<R>,
    image: &Prepared,
    buffer: &mut Buffer,
    reducer: &mut Reducer<'_>,
) -> Result<(), LoaderError> {
    let wrong = |reason: String| LoaderError::Damaged { format: NAME, reason };
    let layout = image.plan.from;
    let line = image.header.width as usize * layout.pixel();
    let whole = line * image.header.height as usize;
    if reader.output_buffer_size() != Some(whole) {
        return Err(wrong("its size contradicts itself".to_owned()));
    }
    // The default image need not be a frame of the animation.
    let apart = reader.info().frame_control().is_none();
    let animated = reader.info().animation_control().map_or(0, |control| control.num_frames);
    let count = animated.saturating_add(apart.into());
    if image.page >= count {
        return Err(wrong(format!("it has {count} images, but number {} was requested", image.page)));
    }
    let interlaced = reader.info().interlaced;
    let part = buffer.room(3 * whole);
    let (canvas, rest) = part.split_at_mut(whole);
    let (picture, before) = rest.split_at_mut(whole);
    canvas.fill(0);
    for number in 0..=image.page {
        reader.next_frame(picture).map_err(damaged)?;
        let Some(control) = reader.info().frame_control().copied().filter(|_| number > 0 || !apart) else {
            continue;
        };
        let area = Area::from_control(&control, &image.header, layout)
            .ok_or_else(|| wrong("a frame lies outside of the canvas".to_owned()))?;
        let last = number == image.page;
        if control.dispose_op == DisposeOp::Previous && !last {
            before.copy_from_slice(canvas);
        }
        // The rows of an interlaced frame have the stride of the screen.
        let apart = if interlaced { line } else { area.width };
        for row in 0..area.rows {
            let drawn = &picture[row * apart..][..area.width];
            let under = &mut canvas[area.start + row * line..][..area.width];
            match (control.blend_op, layout.bands) {
                (BlendOp::Over, Bands::Rgba | Bands::GreyAlpha) => blend_over(under, drawn, layout),
                _ => under.copy_from_slice(drawn),
            }
        }
        if last {
            break;
        }
        match control.dispose_op {
            DisposeOp::None => {}
            DisposeOp::Background => {
                for row in 0..area.rows {
                    canvas[area.start + row * line..][..area.width].fill(0);
                }
            }
            DisposeOp::Previous => canvas.copy_from_slice(before),
        }
    }
    to_native_order(canvas, layout.sample);
    reducer.rows(image.header.height, canvas)
}

/// Area of a frame on the screen: first byte, bytes of a row, and number of rows.
struct Area {
    start: usize,
    width: usize,
    rows: usize,
}

impl Area {
    fn from_control(control: &FrameControl, screen: &crate::header::Header, layout: Layout) -> Option<Self> {
        let right = control.x_offset.checked_add(control.width)?;
        let bottom = control.y_offset.checked_add(control.height)?;
        if right > screen.width || bottom > screen.height {
            return None;
        }
        let pixel = layout.pixel();
        let line = screen.width as usize * pixel;
        Some(Self {
            start: control.y_offset as usize * line + control.x_offset as usize * pixel,
            width: control.width as usize * pixel,
            rows: control.height as usize,
        })
    }
}

/// Blends pixels over others by their alpha.
fn blend_over(under: &mut [u8], drawn: &[u8], layout: Layout) {
    let size = layout.sample.bytes();
    let value = |bytes: &[u8]| match *bytes {
        [high, low] => f64::from(u16::from_be_bytes([high, low])),
        [value] => f64::from(value),
        _ => 0.0,
    };
    let put = |value: f64, place: &mut [u8]| match place {
        [value_of_8_bits] => *value_of_8_bits = value.round() as u8,
        place => place.copy_from_slice(&(value.round() as u16).to_be_bytes()),
    };
    let most = if layout.sample == Sample::U16 { 65535.0 } else { 255.0 };
    for (below, above) in under.chunks_exact_mut(layout.pixel()).zip(drawn.chunks_exact(layout.pixel())) {
        let opacity = layout.pixel() - size;
        let (of_above, of_below) = (value(&above[opacity..]) / most, value(&below[opacity..]) / most);
        if of_above <= 0.0 {
            continue;
        }
        if of_above >= 1.0 {
            below.copy_from_slice(above);
            continue;
        }
        let rest = of_below * (1.0 - of_above);
        let both = of_above + rest;
        let colours = below[..opacity].chunks_exact_mut(size).zip(above[..opacity].chunks_exact(size));
        for (below, above) in colours {
            put((value(above) * of_above + value(below) * rest) / both, below);
        }
        put(both * most, &mut below[opacity..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translucent_pixels_are_blended() {
        let layout = Layout { bands: Bands::Rgba, sample: Sample::U8 };
        for (below, above, wanted) in [
            ([10, 20, 30, 255], [250, 0, 90, 0], [10, 20, 30, 255]),
            ([10, 20, 30, 255], [250, 0, 90, 255], [250, 0, 90, 255]),
            ([0, 100, 200, 255], [200, 100, 0, 51], [40, 100, 160, 255]),
            // Over transparent pixels, colours stay unchanged.
            ([9, 9, 9, 0], [200, 100, 0, 51], [200, 100, 0, 51]),
        ] {
            let mut mixed = below;
            blend_over(&mut mixed, &above, layout);
            assert_eq!(mixed, wanted);
        }
        let layout = Layout { bands: Bands::GreyAlpha, sample: Sample::U16 };
        let pixel = |grey: u16, opacity: u16| [grey.to_be_bytes(), opacity.to_be_bytes()].concat();
        let mut mixed = pixel(1000, 65535);
        blend_over(&mut mixed, &pixel(61000, 13107), layout);
        assert_eq!(mixed, pixel(13000, 65535));
    }
}
