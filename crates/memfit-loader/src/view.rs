//! Crop, size and flip: from the user's settings to coordinates of one image.

use crate::LoaderError;
use crate::pixels::Rect;
use crate::random::Stream;

/// Selection of a part of the image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Crop {
    /// The whole image, resized without regard to its aspect ratio.
    All,
    /// The whole image with its aspect ratio; the short side gets this length.
    Short(u32),
    /// This rectangle.
    Part(Rect),
    /// The centre, after the short side is resized to `resize`; without that, as much of it as the aspect
    /// ratio allows.
    Center {
        /// Length of the short side before the centre is cropped.
        resize: Option<u32>,
    },
    /// A random part, with its area as a share of the whole and its aspect ratio.
    Random {
        /// Minimum and maximum share of the area.
        scale: (f64, f64),
        /// Minimum and maximum ratio of width to height.
        ratio: (f64, f64),
    },
}

/// Geometric transformation of every image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Framing {
    /// Crop.
    pub crop: Crop,
    /// Width and height of the result; `None` keeps those of the crop.
    pub size: Option<(u32, u32)>,
    /// Probability of a horizontal flip.
    pub flip: f64,
}

impl Framing {
    /// Checks the settings.
    pub fn check(&self) -> Result<(), LoaderError> {
        let wrong = |text: String| Err(LoaderError::Settings(text));
        if self.size.is_some_and(|(width, height)| width == 0 || height == 0) {
            return wrong("size= has to be at least 1 in each direction".to_owned());
        }
        if !(0.0..=1.0).contains(&self.flip) {
            return wrong(format!("flip={} is not a share between 0 and 1", self.flip));
        }
        match self.crop {
            Crop::Center { resize: Some(resize) } => match self.size {
                Some((width, height)) if resize < width.max(height) => wrong(format!(
                    "resize={resize} leaves less than the {width}x{height} that are to be cut out of it; make it at least {}",
                    width.max(height)
                )),
                None => wrong("resize= needs size=, the size that is cut out".to_owned()),
                _ => Ok(()),
            },
            Crop::Random { scale: (least, most), ratio: (narrow, wide) } => {
                if !(least > 0.0 && least <= most && most <= 1.0) {
                    return wrong(format!("scale=({least}, {most}) are not two shares of an area"));
                }
                if !(narrow > 0.0 && narrow <= wide && wide.is_finite()) {
                    return wrong(format!("ratio=({narrow}, {wide}) are not two ratios of width to height"));
                }
                Ok(())
            }
            Crop::Short(0) => wrong("a side of 0 pixels is none".to_owned()),
            _ => Ok(()),
        }
    }

    /// Computes the view of an upright image of this size.
    ///
    /// `random` is the image's own random stream, used only for random settings.
    pub(crate) fn view(&self, width: u32, height: u32, random: &mut Stream) -> Result<View, LoaderError> {
        let whole = Rect::whole(width, height);
        let mut view = match self.crop {
            Crop::All => View::from_part(whole, self.size.unwrap_or((width, height))),
            Crop::Short(side) => View {
                size: self.size.unwrap_or(short_side(width, height, side)),
                ..View::from_part(whole, (0, 0))
            },
            Crop::Part(part) => {
                if !part.inside(width, height) {
                    return Err(LoaderError::CropOutside {
                        crop: format!("({}, {}, {}, {})", part.left, part.top, part.width, part.height),
                        width,
                        height,
                    });
                }
                View::from_part(part, self.size.unwrap_or((part.width, part.height)))
            }
            Crop::Center { resize } => center(width, height, resize, self.size),
            Crop::Random { scale, ratio } => {
                let part = random_part(width, height, scale, ratio, random);
                View::from_part(part, self.size.unwrap_or((part.width, part.height)))
            }
        };
        view.flip = self.flip > 0.0 && random.unit() < self.flip;
        Ok(view)
    }
}

/// Part of an upright image, and the size of the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct View {
    /// Pixels that may contribute to the result.
    pub(crate) clip: Rect,
    /// Left, top, width and height of the shown part, which may be fractional.
    pub(crate) frame: [f64; 4],
    /// Width and height of the result.
    pub(crate) size: (u32, u32),
    /// `true` if flipped horizontally.
    pub(crate) flip: bool,
}

impl View {
    fn from_part(part: Rect, size: (u32, u32)) -> Self {
        let frame = [part.left, part.top, part.width, part.height].map(f64::from);
        Self { clip: part, frame, size, flip: false }
    }

    /// The same view of the image in another size; both sizes are width and height.
    pub(crate) fn scaled(&self, from: (u32, u32), to: (u32, u32)) -> Self {
        let across = f64::from(to.0) / f64::from(from.0);
        let down = f64::from(to.1) / f64::from(from.1);
        let side = |low: u32, high: u32, by: f64, end: u32| {
            let low = ((f64::from(low) * by).floor() as u32).min(end.saturating_sub(1));
            (low, ((f64::from(high) * by).ceil() as u32).clamp(low + 1, end.max(1)))
        };
        let (left, right) = side(self.clip.left, self.clip.right(), across, to.0);
        let (top, bottom) = side(self.clip.top, self.clip.bottom(), down, to.1);
        let [x, y, width, height] = self.frame;
        Self {
            clip: Rect { left, top, width: right - left, height: bottom - top },
            frame: [x * across, y * down, width * across, height * down],
            ..*self
        }
    }

    /// Mapping of points of the image: `x' = a x + b`, `y' = c y + d` as `[a, b, c, d]`.
    pub(crate) fn mapping(&self) -> [f64; 4] {
        let [left, top, width, height] = self.frame;
        let (across, down) = (f64::from(self.size.0) / width, f64::from(self.size.1) / height);
        if self.flip {
            [-across, f64::from(self.size.0) + left * across, down, -top * down]
        } else {
            [across, -left * across, down, -top * down]
        }
    }
}

/// Width and height for a short side of this length; the long side is rounded down.
fn short_side(width: u32, height: u32, side: u32) -> (u32, u32) {
    let long = |long: u32, short: u32| {
        (u64::from(side) * u64::from(long) / u64::from(short)).clamp(1, u64::from(u32::MAX)) as u32
    };
    if width <= height { (side, long(height, width)) } else { (long(width, height), side) }
}

fn center(width: u32, height: u32, resize: Option<u32>, size: Option<(u32, u32)>) -> View {
    let whole = Rect::whole(width, height);
    let Some(size) = size else {
        // Without a size, the centre is the largest square.
        let side = width.min(height);
        let part = Rect { left: (width - side) / 2, top: (height - side) / 2, width: side, height: side };
        return View::from_part(part, (side, side));
    };
    let resize = resize.or((size.0 == size.1).then_some(size.0));
    let frame = if let Some(resize) = resize {
        let (wide, tall) = short_side(width, height, resize);
        let (across, down) = (f64::from(width) / f64::from(wide), f64::from(height) / f64::from(tall));
        // Half of an odd remainder is rounded to even, as by Python's `round`.
        let left = (f64::from(wide - size.0) / 2.0).round_ties_even();
        let top = (f64::from(tall - size.1) / 2.0).round_ties_even();
        [left * across, top * down, f64::from(size.0) * across, f64::from(size.1) * down]
    } else {
        let scale = (f64::from(width) / f64::from(size.0)).min(f64::from(height) / f64::from(size.1));
        let (wide, tall) = (f64::from(size.0) * scale, f64::from(size.1) * scale);
        [(f64::from(width) - wide) / 2.0, (f64::from(height) - tall) / 2.0, wide, tall]
    };
    View { clip: whole, frame, size, flip: false }
}

/// Follows torchvision's `RandomResizedCrop`: ten tries, then the centre with an allowed ratio.
fn random_part(width: u32, height: u32, scale: (f64, f64), ratio: (f64, f64), random: &mut Stream) -> Rect {
    let area = f64::from(width) * f64::from(height);
    let (narrow, wide) = (ratio.0.ln(), ratio.1.ln());
    for _ in 0..10 {
        let target = area * random.between(scale.0, scale.1);
        let shape = random.between(narrow, wide).exp();
        let (across, down) =
            ((target * shape).sqrt().round_ties_even(), (target / shape).sqrt().round_ties_even());
        if across >= 1.0 && down >= 1.0 && across <= f64::from(width) && down <= f64::from(height) {
            let (across, down) = (across as u32, down as u32);
            return Rect {
                left: random.below(width - across + 1),
                top: random.below(height - down + 1),
                width: across,
                height: down,
            };
        }
    }
    let shape = f64::from(width) / f64::from(height);
    let (across, down) = if shape < ratio.0 {
        (width, (f64::from(width) / ratio.0).round() as u32)
    } else if shape > ratio.1 {
        ((f64::from(height) * ratio.1).round() as u32, height)
    } else {
        (width, height)
    };
    let (across, down) = (across.clamp(1, width), down.clamp(1, height));
    Rect { left: (width - across) / 2, top: (height - down) / 2, width: across, height: down }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn view(crop: Crop, size: Option<(u32, u32)>, width: u32, height: u32) -> View {
        let framing = Framing { crop, size, flip: 0.0 };
        framing.check().expect("the settings are good");
        framing.view(width, height, &mut Stream::new(&[1])).expect("there is a view")
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "the same operations on the same numbers")]
    fn the_middle_is_where_torchvision_finds_it() {
        // Resize(256) of 500x375 yields 341x256, of which CenterCrop(224) takes columns from 58 (58.5) and
        // rows from 16.
        let found = view(Crop::Center { resize: Some(256) }, Some((224, 224)), 500, 375);
        let (across, down) = (500.0 / 341.0, 375.0 / 256.0);
        assert_eq!(found.frame, [58.0 * across, 16.0 * down, 224.0 * across, 224.0 * down]);
        assert_eq!(found.clip, Rect::whole(500, 375));
    }

    #[test]
    fn points_are_mapped_with_the_picture() {
        let mut found =
            view(Crop::Part(Rect { left: 10, top: 20, width: 40, height: 80 }), Some((20, 20)), 100, 100);
        let map = |view: &View, x: f64, y: f64| {
            let [a, b, c, d] = view.mapping();
            (a * x + b, c * y + d)
        };
        assert_eq!(map(&found, 10.0, 20.0), (0.0, 0.0));
        assert_eq!(map(&found, 50.0, 100.0), (20.0, 20.0));
        found.flip = true;
        assert_eq!(map(&found, 10.0, 20.0), (20.0, 0.0));
        assert_eq!(map(&found, 50.0, 100.0), (0.0, 20.0));
    }

    #[test]
    fn settings_that_cannot_be_are_told() {
        for (crop, size) in [
            (Crop::Center { resize: Some(100) }, Some((224, 224))),
            (Crop::Center { resize: Some(100) }, None),
            (Crop::All, Some((0, 5))),
            (Crop::Random { scale: (0.0, 1.0), ratio: (1.0, 1.0) }, None),
            (Crop::Random { scale: (0.5, 0.2), ratio: (1.0, 1.0) }, None),
            (Crop::Random { scale: (0.5, 1.0), ratio: (2.0, 1.0) }, None),
        ] {
            assert!(Framing { crop, size, flip: 0.0 }.check().is_err(), "{crop:?} {size:?}");
        }
    }

    proptest! {
        #[test]
        fn every_view_lies_inside(
            width in 1_u32..5000, height in 1_u32..5000, target in 1_u32..600, other in 1_u32..600, seed: u64, kind in 0..4
        ) {
            let crop = match kind {
                0 => Crop::Center { resize: None },
                1 => Crop::Center { resize: Some(target.max(other) + 32) },
                2 => Crop::Random { scale: (0.08, 1.0), ratio: (0.75, 4.0 / 3.0) },
                _ => Crop::Short(target),
            };
            let size = (kind != 3).then_some((target, other));
            let framing = Framing { crop, size, flip: 0.5 };
            let view = framing.view(width, height, &mut Stream::new(&[seed])).expect("there is a view");
            prop_assert!(view.clip.inside(width, height));
            let [left, top, wide, tall] = view.frame;
            prop_assert!(left >= -1e-6 && top >= -1e-6 && wide > 0.0 && tall > 0.0);
            prop_assert!(left + wide <= f64::from(width) + 1e-6 && top + tall <= f64::from(height) + 1e-6);
            prop_assert!(view.size.0 > 0 && view.size.1 > 0);
        }
    }
}
