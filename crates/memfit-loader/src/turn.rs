//! Rotation and mirroring between stored and upright orientation.

use crate::pixels::{Pixels, Rect};

/// How a stored image must be turned to be upright.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// `true` if columns of the upright image are stored rows.
    swap: bool,
    /// `true` if stored columns count from the right.
    mirror_x: bool,
    /// `true` if stored rows count from below.
    mirror_y: bool,
}

impl Turn {
    /// From an EXIF orientation, 1 to 8.
    pub(crate) fn exif(orientation: u8) -> Self {
        let (swap, mirror_x, mirror_y) = match orientation {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, false, true),
            7 => (true, true, true),
            8 => (true, true, false),
            _ => (false, false, false),
        };
        Self { swap, mirror_x, mirror_y }
    }

    /// The same for the image mirrored left to right.
    pub(crate) fn flipped(self) -> Self {
        if self.swap {
            Self { mirror_y: !self.mirror_y, ..self }
        } else {
            Self { mirror_x: !self.mirror_x, ..self }
        }
    }

    /// Stored width and height.
    pub(crate) fn size(self, (width, height): (u32, u32)) -> (u32, u32) {
        if self.swap { (height, width) } else { (width, height) }
    }

    /// Converts a rectangle of the upright image to the stored image of this size.
    pub(crate) fn rect(self, rect: Rect, stored: (u32, u32)) -> Rect {
        let mut part = if self.swap {
            Rect { left: rect.top, top: rect.left, width: rect.height, height: rect.width }
        } else {
            rect
        };
        if self.mirror_x {
            part.left = stored.0 - part.right();
        }
        if self.mirror_y {
            part.top = stored.1 - part.bottom();
        }
        part
    }

    /// Converts fractional left, top, width and height.
    pub(crate) fn frame(self, [left, top, width, height]: [f64; 4], stored: (u32, u32)) -> [f64; 4] {
        let [mut left, mut top, width, height] =
            if self.swap { [top, left, height, width] } else { [left, top, width, height] };
        if self.mirror_x {
            left = f64::from(stored.0) - left - width;
        }
        if self.mirror_y {
            top = f64::from(stored.1) - top - height;
        }
        [left, top, width, height]
    }

    /// Writes a stored image in upright orientation, band by band if `planar`, pixel by pixel otherwise.
    ///
    /// `out` has the length of the image.
    pub(crate) fn place(self, stored: &Pixels, planar: bool, out: &mut [u8]) {
        let bands = stored.layout.bands.count() as usize;
        let sample = stored.layout.sample.bytes();
        if self == Self::default() && (!planar || bands == 1) {
            out.copy_from_slice(&stored.data[..out.len()]);
            return;
        }
        let (width, height) = self.size((stored.width, stored.height));
        let (width, height) = (width as usize, height as usize);
        // Offsets in stored pixels: for one step along a stored row and along a stored column, and of the
        // upright image's first pixel. `across` and `down` are steps along the upright rows and columns.
        let row = stored.width as isize;
        let step_x: isize = if self.mirror_x { -1 } else { 1 };
        let step_y = if self.mirror_y { -row } else { row };
        let first = if self.mirror_x { row - 1 } else { 0 }
            + if self.mirror_y { (stored.height as isize - 1) * row } else { 0 };
        let (across, down) = if self.swap { (step_y, step_x) } else { (step_x, step_y) };
        let walk = Walk { first, across, down, width, height };
        match (planar, sample) {
            (true, 1) => planes::<1>(&stored.data, bands, &walk, out),
            (true, 2) => planes::<2>(&stored.data, bands, &walk, out),
            (true, _) => planes::<4>(&stored.data, bands, &walk, out),
            (false, _) => {
                let size = bands * sample;
                let mut places = out.chunks_exact_mut(size);
                for y in 0..height {
                    for x in 0..width {
                        let at = walk.offset(x, y) * size;
                        if let Some(place) = places.next() {
                            place.copy_from_slice(&stored.data[at..at + size]);
                        }
                    }
                }
            }
        }
    }
}

struct Walk {
    first: isize,
    across: isize,
    down: isize,
    width: usize,
    height: usize,
}

impl Walk {
    fn offset(&self, x: usize, y: usize) -> usize {
        (self.first + x as isize * self.across + y as isize * self.down) as usize
    }
}

fn planes<const SIZE: usize>(data: &[u8], bands: usize, walk: &Walk, out: &mut [u8]) {
    let plane = walk.width * walk.height * SIZE;
    for (band, plane) in out.chunks_exact_mut(plane).take(bands).enumerate() {
        for (y, row) in plane.chunks_exact_mut(walk.width * SIZE).enumerate() {
            if walk.across == 1 {
                let from = walk.offset(0, y) * bands * SIZE;
                let pixels = data[from..].chunks_exact(bands * SIZE);
                for (place, pixel) in row.chunks_exact_mut(SIZE).zip(pixels) {
                    place.copy_from_slice(&pixel[band * SIZE..][..SIZE]);
                }
            } else {
                for (x, place) in row.chunks_exact_mut(SIZE).enumerate() {
                    let at = (walk.offset(x, y) * bands + band) * SIZE;
                    place.copy_from_slice(&data[at..at + SIZE]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pixels::{Bands, Layout, Sample};

    /// 2 rows of 3 pixels in each orientation, as shown in EXIF 2.32.
    #[test]
    fn each_orientation_shows_the_picture_as_exif_says() {
        let stored = Pixels {
            width: 3,
            height: 2,
            layout: Layout { bands: Bands::Grey, sample: Sample::U8 },
            data: b"abcdef".to_vec(),
        };
        for (orientation, rows) in [
            (1, "abc def"),
            (2, "cba fed"),
            (3, "fed cba"),
            (4, "def abc"),
            (5, "ad be cf"),
            (6, "da eb fc"),
            (7, "fc eb da"),
            (8, "cf be ad"),
        ] {
            let turn = Turn::exif(orientation);
            let mut out = vec![0; 6];
            turn.place(&stored, true, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), rows.replace(' ', ""), "orientation {orientation}");
            let (width, _) = turn.size((3, 2));
            let mut flipped = vec![0; 6];
            turn.flipped().place(&stored, false, &mut flipped);
            let mirrored: Vec<u8> =
                out.chunks(width as usize).flat_map(|row| row.iter().rev().copied()).collect();
            assert_eq!(flipped, mirrored, "orientation {orientation}, mirrored");
            // The stored position of the top left pixel of the upright image.
            let corner = turn.rect(Rect { left: 0, top: 0, width: 1, height: 1 }, (3, 2));
            assert_eq!(stored.data[(corner.top * 3 + corner.left) as usize], out[0]);
        }
    }

    #[test]
    fn bands_go_into_planes_of_their_own() {
        let stored = Pixels {
            width: 2,
            height: 1,
            layout: Layout { bands: Bands::Rgb, sample: Sample::U16 },
            data: [1_u16, 2, 3, 4, 5, 6].iter().flat_map(|value| value.to_ne_bytes()).collect(),
        };
        let mut out = vec![0; 12];
        Turn::default().place(&stored, true, &mut out);
        let wanted: Vec<u8> = [1_u16, 4, 2, 5, 3, 6].iter().flat_map(|value| value.to_ne_bytes()).collect();
        assert_eq!(out, wanted);
    }
}
