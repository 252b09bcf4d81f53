//! Conversion of pixel values: bands and sample types.

use crate::LoaderError;
use crate::pixels::{Bands, Layout, Sample};

/// Bands of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Red, green, blue. Every image can be converted to it.
    #[default]
    Rgb,
    /// Brightness alone.
    Grey,
    /// Red, green, blue and alpha.
    Rgba,
    /// The bands of the file.
    Keep,
}

impl Mode {
    /// Mode with a name, as in Pillow.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "rgb" => Some(Self::Rgb),
            "l" | "grey" | "gray" => Some(Self::Grey),
            "rgba" => Some(Self::Rgba),
            "keep" => Some(Self::Keep),
            _ => None,
        }
    }

    /// Bands of the result for an image with bands `from`.
    pub fn bands(self, from: Bands) -> Bands {
        match self {
            Self::Rgb => Bands::Rgb,
            Self::Grey => Bands::Grey,
            Self::Rgba => Bands::Rgba,
            Self::Keep => from,
        }
    }
}

/// Checks whether values can be converted from one layout to another.
pub(crate) fn possible(from: Layout, to: Layout) -> Result<(), LoaderError> {
    let bands = from.bands == to.bands
        || match (from.bands, to.bands) {
            (Bands::Many(_), _) => false,
            (_, Bands::Grey | Bands::Rgb | Bands::Rgba) => true,
            _ => from.bands.count() == to.bands.count(),
        };
    if !bands {
        return Err(LoaderError::OtherBands { found: from.bands.count(), wanted: to.bands.count() });
    }
    // Floats have no fixed range that could be mapped to integers.
    if from.sample == Sample::F32 && to.sample != Sample::F32 {
        return Err(LoaderError::OtherType { found: from.sample.name(), wanted: to.sample.name() });
    }
    Ok(())
}

/// Arithmetic on one sample.
trait Value: Copy {
    const MAX: Self;
    fn luma(red: Self, green: Self, blue: Self) -> Self;
    /// White minus the colour that the ink and the black ink absorb.
    fn inked(ink: Self, black: Self) -> Self;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, out: &mut [u8]);
}

// ITU-R 601-2 weights as fractions of 65536, rounded as in Pillow.
const RED: u64 = 19595;
const GREEN: u64 = 38470;
const BLUE: u64 = 7471;

impl Value for u8 {
    const MAX: Self = u8::MAX;

    fn luma(red: Self, green: Self, blue: Self) -> Self {
        ((u64::from(red) * RED + u64::from(green) * GREEN + u64::from(blue) * BLUE + 0x8000) >> 16) as u8
    }

    fn inked(ink: Self, black: Self) -> Self {
        let paper = u32::from(u8::MAX - black);
        let product = u32::from(ink) * paper + 128;
        (paper - ((product + (product >> 8)) >> 8).min(paper)) as u8
    }

    fn read(bytes: &[u8]) -> Self {
        bytes[0]
    }

    fn write(self, out: &mut [u8]) {
        out[0] = self;
    }
}

impl Value for u16 {
    const MAX: Self = u16::MAX;

    fn luma(red: Self, green: Self, blue: Self) -> Self {
        ((u64::from(red) * RED + u64::from(green) * GREEN + u64::from(blue) * BLUE + 0x8000) >> 16) as u16
    }

    fn inked(ink: Self, black: Self) -> Self {
        let paper = u64::from(u16::MAX - black);
        (paper - (u64::from(ink) * paper + 0x7fff) / 0xffff) as u16
    }

    fn read(bytes: &[u8]) -> Self {
        Self::from_ne_bytes([bytes[0], bytes[1]])
    }

    fn write(self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_ne_bytes());
    }
}

impl Value for f32 {
    const MAX: Self = 1.0;

    fn luma(red: Self, green: Self, blue: Self) -> Self {
        (red * RED as f32 + green * GREEN as f32 + blue * BLUE as f32) / 65536.0
    }

    fn inked(ink: Self, black: Self) -> Self {
        (1.0 - black) * (1.0 - ink)
    }

    fn read(bytes: &[u8]) -> Self {
        Self::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn write(self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_ne_bytes());
    }
}

/// Converts pixels from one layout to another; `out` has the length of the result.
///
/// Conversions that [`possible`] does not allow leave `out` unchanged.
pub(crate) fn convert(data: &[u8], from: Layout, to: Layout, out: &mut [u8]) {
    match (from.sample, to.sample) {
        (one, other) if one == other => match one {
            Sample::U8 => bands::<u8>(data, from.bands, to.bands, out),
            Sample::U16 => bands::<u16>(data, from.bands, to.bands, out),
            Sample::F32 => bands::<f32>(data, from.bands, to.bands, out),
        },
        (Sample::U8, Sample::U16) => convert_bands(data, from, to, out, |value: u8| u16::from(value) * 257),
        (Sample::U16, Sample::U8) => {
            convert_bands(data, from, to, out, |value: u16| {
                ((u32::from(value) * 255 + 32_767) / 65_535) as u8
            });
        }
        (Sample::U8, Sample::F32) => convert_bands(data, from, to, out, |value: u8| f32::from(value) / 255.0),
        (Sample::U16, Sample::F32) => {
            convert_bands(data, from, to, out, |value: u16| f32::from(value) / 65_535.0);
        }
        _ => {}
    }
}

/// Converts the bands first, in the file's own precision, and then each value.
fn convert_bands<A: Value, B: Value>(
    data: &[u8],
    from: Layout,
    to: Layout,
    out: &mut [u8],
    turn: impl Fn(A) -> B,
) {
    let (small, large) = (from.sample.bytes(), to.sample.bytes());
    let (before, after) = (from.pixel(), to.bands.count() as usize);
    let mut pixel = vec![0; after * small];
    for (source, target) in data.chunks_exact(before).zip(out.chunks_exact_mut(after * large)) {
        bands::<A>(source, from.bands, to.bands, &mut pixel);
        for (value, place) in pixel.chunks_exact(small).zip(target.chunks_exact_mut(large)) {
            turn(A::read(value)).write(place);
        }
    }
}

fn bands<V: Value>(data: &[u8], from: Bands, to: Bands, out: &mut [u8]) {
    if from == to {
        out.copy_from_slice(&data[..out.len()]);
        return;
    }
    let size = size_of::<V>();
    let pixels =
        data.chunks_exact(from.count() as usize * size).zip(out.chunks_exact_mut(to.count() as usize * size));
    let get = |pixel: &[u8], band: usize| V::read(&pixel[band * size..][..size]);
    let rgb = |pixel: &[u8]| -> [V; 3] {
        match from {
            Bands::Grey | Bands::GreyAlpha => [get(pixel, 0); 3],
            Bands::Cmyk => {
                let black = get(pixel, 3);
                [0, 1, 2].map(|band| V::inked(get(pixel, band), black))
            }
            _ => [0, 1, 2].map(|band| get(pixel, band)),
        }
    };
    for (source, target) in pixels {
        match to {
            Bands::Grey => {
                let value = if from == Bands::GreyAlpha {
                    get(source, 0)
                } else {
                    let [red, green, blue] = rgb(source);
                    V::luma(red, green, blue)
                };
                value.write(&mut target[..size]);
            }
            Bands::Rgb | Bands::Rgba => {
                for (band, value) in rgb(source).into_iter().enumerate() {
                    value.write(&mut target[band * size..][..size]);
                }
                if to == Bands::Rgba {
                    let opacity = if from == Bands::GreyAlpha { get(source, 1) } else { V::MAX };
                    opacity.write(&mut target[3 * size..][..size]);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bands: Bands, sample: Sample) -> Layout {
        Layout { bands, sample }
    }

    fn check(from: Bands, pixel: &[u8], to: Bands, wanted: &[u8]) {
        let mut out = vec![0; wanted.len()];
        convert(pixel, layout(from, Sample::U8), layout(to, Sample::U8), &mut out);
        assert_eq!(out, wanted, "{from:?} {pixel:?} as {to:?}");
    }

    /// The expected values are Pillow's: `Image.new(mode, (1, 1), pixel).convert(other).getpixel((0, 0))`.
    #[test]
    fn band_conversion_equals_pillows() {
        check(Bands::Rgb, &[255, 0, 0], Bands::Grey, &[76]);
        check(Bands::Rgb, &[0, 255, 0], Bands::Grey, &[150]);
        check(Bands::Rgb, &[0, 0, 255], Bands::Grey, &[29]);
        check(Bands::Rgb, &[12, 200, 77], Bands::Grey, &[130]);
        check(Bands::Grey, &[9], Bands::Rgb, &[9, 9, 9]);
        check(Bands::Grey, &[9], Bands::Rgba, &[9, 9, 9, 255]);
        check(Bands::GreyAlpha, &[9, 3], Bands::Rgba, &[9, 9, 9, 3]);
        check(Bands::GreyAlpha, &[9, 3], Bands::Grey, &[9]);
        check(Bands::Rgba, &[1, 2, 3, 4], Bands::Rgb, &[1, 2, 3]);
        check(Bands::Cmyk, &[0, 0, 0, 0], Bands::Rgb, &[255, 255, 255]);
        check(Bands::Cmyk, &[255, 0, 100, 30], Bands::Rgb, &[0, 225, 137]);
        check(Bands::Cmyk, &[10, 20, 30, 255], Bands::Rgb, &[0, 0, 0]);
    }

    #[test]
    fn every_eight_bit_value_survives_sixteen_bits() {
        for value in 0..=255_u8 {
            let mut wide = [0; 2];
            convert(&[value], layout(Bands::Grey, Sample::U8), layout(Bands::Grey, Sample::U16), &mut wide);
            let mut back = [0];
            convert(&wide, layout(Bands::Grey, Sample::U16), layout(Bands::Grey, Sample::U8), &mut back);
            assert_eq!(back, [value]);
        }
    }

    #[test]
    fn lossy_conversions_are_refused() {
        let many = layout(Bands::Many(7), Sample::U16);
        assert!(possible(many, layout(Bands::Rgb, Sample::U16)).is_err());
        assert!(possible(many, many).is_ok());
        let float = layout(Bands::Grey, Sample::F32);
        assert!(possible(float, layout(Bands::Grey, Sample::U8)).is_err());
        assert!(possible(layout(Bands::Grey, Sample::U8), float).is_ok());
    }
}
