//! JPEG decoder for a quarter and an eighth of the size. It skips coefficients that affect no pixel, several
//! in one lookup, and never reconstructs pixels outside of the region.
//!
//! Its pixels are identical to libjpeg-turbo's. It accepts baseline files in one scan with the common
//! sampling factors; other and invalid files are left to the library.

#![expect(clippy::inline_always, reason = "a call for each coefficient costs more than the coefficient")]

mod entropy;
#[cfg(test)]
mod tests;
mod transform;

use std::rc::Rc;

use entropy::{Bits, Code, Step};
use transform::Colours;

#[cfg(feature = "turbo")]
use super::{Backend, Prepared, jpeg};
#[cfg(feature = "turbo")]
use crate::header::Storage;
#[cfg(feature = "turbo")]
use crate::pixels::Bands;
use crate::pixels::Rect;

/// Zigzag order: row and column of frequencies for each coefficient in file order.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// Decodes the plan's region into `pixels`. Returns `None` if the library has to decode the file.
#[cfg(feature = "turbo")]
pub(super) fn decode(bytes: &[u8], image: &Prepared, pixels: &mut [u8]) -> Option<()> {
    let plan = &image.plan;
    let Storage::Jpeg { progressive: false, unusual: None, .. } = image.header.storage else { return None };
    // At a quarter, the library's SIMD code is as fast as skipping coefficients.
    let faster = plan.denominator == 8 || (plan.denominator == 4 && Backend::BEST.is_slow_in_full());
    if !faster || !matches!(plan.from.bands, Bands::Grey | Bands::Rgb) {
        return None;
    }
    let (file, data) = File::read(bytes)?;
    let size = (image.header.width as usize, image.header.height as usize);
    if (file.width, file.height) != size || !jpeg::has_end_marker(bytes) {
        return None;
    }
    file.decode(data, plan.denominator as usize, plan.region, pixels)
}

/// Decodes a whole file of up to `most` pixels at 1/`by`, where `by` is 4 or 8.
pub(super) fn whole(bytes: &[u8], by: usize, most: usize) -> Option<Vec<u8>> {
    let (file, data) = File::read(bytes)?;
    if !matches!(by, 4 | 8) || file.width * file.height > most {
        return None;
    }
    let region = Rect::whole(file.width.div_ceil(by) as u32, file.height.div_ceil(by) as u32);
    let mut out = vec![0; region.width as usize * region.height as usize * file.components.len()];
    file.decode(data, by, region, &mut out).map(|()| out)
}

/// Colour component.
struct Component {
    /// Blocks of a unit (MCU), horizontally and vertically.
    across: usize,
    down: usize,
    /// Coefficients in file order.
    steps: [Step; 64],
    first: Rc<Code>,
    others: Rc<Code>,
}

/// Parsed headers of a file.
struct File {
    width: usize,
    height: usize,
    components: Vec<Component>,
    /// Restart interval in units; 0 without restart markers.
    interval: usize,
}

impl File {
    /// Parses the headers. Returns them with the data of the scan.
    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut quantities: [Option<[Step; 64]>; 4] = [None; 4];
        let mut firsts: [Option<(Vec<u8>, [u8; 16])>; 4] = Default::default();
        let mut others: [Option<(Vec<u8>, [u8; 16])>; 4] = Default::default();
        let (mut frame, mut interval, mut adobe, mut jfif) = (None, 0, None, false);
        let mut at = 2;
        loop {
            if *bytes.get(at)? != 0xff {
                return None;
            }
            let marker = *bytes.get(at + 1)?;
            if marker == 0xff {
                at += 1;
                continue;
            }
            let length = usize::from(u16::from_be_bytes([*bytes.get(at + 2)?, *bytes.get(at + 3)?]));
            let segment = bytes.get(at + 4..at + 2 + length)?;
            at += 2 + length;
            match marker {
                0xdb => read_quantities(segment, &mut quantities)?,
                0xc4 => read_codes(segment, &mut firsts, &mut others)?,
                0xc0 | 0xc1 if frame.is_none() => frame = Some(segment),
                0xdd => interval = usize::from(u16::from_be_bytes(segment.try_into().ok()?)),
                0xe0 => jfif |= segment.starts_with(b"JFIF\0") && segment.len() >= 14,
                0xee if segment.starts_with(b"Adobe") && segment.len() >= 12 => adobe = Some(segment[11]),
                0xda => {
                    let components = components(frame?, segment, &quantities, &firsts, &others)?;
                    let ids: Vec<u8> = frame?.get(6..)?.chunks_exact(3).map(|part| part[0]).collect();
                    // Detects RGB as libjpeg does.
                    let plain = !jfif && adobe.map_or(ids == *b"RGB", |kind| kind == 0);
                    if components.len() == 3 && plain {
                        return None;
                    }
                    let [_, high, low, left, right, ..] = *frame? else { return None };
                    let file = Self {
                        width: usize::from(u16::from_be_bytes([left, right])),
                        height: usize::from(u16::from_be_bytes([high, low])),
                        components,
                        interval,
                    };
                    return Some((file, &bytes[at..]));
                }
                0xe0..=0xef | 0xfe => {}
                _ => return None,
            }
        }
    }

    /// Decodes a region, in pixels of the scaled size.
    fn decode(&self, data: &[u8], by: usize, region: Rect, out: &mut [u8]) -> Option<()> {
        let least = 8 / by;
        let widest = self.components.iter().map(|part| part.across).max()?;
        let tallest = self.components.iter().map(|part| part.down).max()?;
        let planes: Option<Vec<Plane>> =
            self.components.iter().map(|part| Plane::new(part, (widest, tallest), least)).collect();
        let mut planes = planes?;
        // Size of a unit in pixels of the result.
        let unit = (widest * least, tallest * least);
        let units = self.width.div_ceil(8 * widest);
        let (left, right) = (region.left as usize, region.right() as usize);
        let (top, bottom) = (region.top as usize, region.bottom() as usize);
        // One more unit on each side, since upsampling at the edge needs neighbours.
        let wanted = (left / unit.0).saturating_sub(1)..(right.div_ceil(unit.0) + 1).min(units);
        for plane in &mut planes {
            plane.room(units);
        }
        let bands = if self.components.len() == 1 { 1 } else { 3 };
        let line = (right - left) * bands;
        let colours = Colours::new();
        let mut bits = Bits::new(data);
        let mut before = [0_i32; 3];
        let mut count = 0_usize;
        for row in 0..bottom.div_ceil(unit.1) {
            let shown = (row + 1) * unit.1 > top;
            for column in 0..units {
                if self.interval > 0 && count > 0 && count.is_multiple_of(self.interval) {
                    if !bits.restart(((count / self.interval - 1) & 7) as u8) {
                        return None;
                    }
                    before = [0; 3];
                }
                count += 1;
                let wanted = shown && wanted.contains(&column);
                for ((part, plane), before) in self.components.iter().zip(&mut planes).zip(&mut before) {
                    plane.unit(part, &mut bits, before, wanted.then_some(column));
                }
            }
            if !bits.sound() {
                return None;
            }
            if !shown {
                continue;
            }
            for y in (row * unit.1).max(top)..((row + 1) * unit.1).min(bottom) {
                let target = out.get_mut((y - top) * line..(y - top + 1) * line)?;
                for plane in &mut planes {
                    plane.show(y - row * unit.1, self.width, by);
                }
                match planes.as_slice() {
                    [only] => target.copy_from_slice(only.row().get(left..right)?),
                    [light, blue, red] => colours.row(
                        light.row().get(left..right)?,
                        blue.row().get(left..right)?,
                        red.row().get(left..right)?,
                        target,
                    ),
                    _ => return None,
                }
            }
        }
        Some(())
    }
}

/// Row of units of one component.
struct Plane {
    /// Side of a block in samples.
    side: usize,
    /// Blocks of a unit, horizontally and vertically.
    across: usize,
    down: usize,
    /// `true` if a row has half as many samples as the result.
    half: bool,
    smooth: bool,
    stride: usize,
    samples: Vec<u8>,
    wide: Vec<u8>,
    at: usize,
}

impl Plane {
    /// Creates the plane of a component, where blocks of fully sampled components are `least` pixels wide.
    fn new(part: &Component, most: (usize, usize), least: usize) -> Option<Self> {
        let mut side = least;
        // The library decodes subsampled blocks at a larger scale if that fits in both directions.
        while side < 8
            && (most.0 * least).is_multiple_of(part.across * side * 2)
            && (most.1 * least).is_multiple_of(part.down * side * 2)
        {
            side *= 2;
        }
        let (wide, tall) = (most.0 * least, most.1 * least);
        let half = match (wide.checked_div(part.across * side)?, tall.checked_div(part.down * side)?) {
            (1, 1) => false,
            (2, 1) => true,
            _ => return None,
        };
        if side > 4 || wide % (part.across * side) != 0 || tall % (part.down * side) != 0 {
            return None;
        }
        Some(Self {
            side,
            across: part.across,
            down: part.down,
            half,
            smooth: least > 1,
            stride: 0,
            samples: Vec::new(),
            wide: Vec::new(),
            at: 0,
        })
    }

    fn room(&mut self, units: usize) {
        self.stride = units * self.across * self.side;
        self.samples = vec![0; self.stride * self.down * self.side];
        if self.half {
            self.wide = vec![0; 2 * self.stride];
        }
    }

    /// Decodes the component's blocks of a unit; `column` is the column of a unit that is shown.
    #[inline(always)]
    fn unit(&mut self, part: &Component, bits: &mut Bits<'_>, before: &mut i32, column: Option<usize>) {
        for y in 0..self.down {
            for x in 0..self.across {
                *before = before.wrapping_add(bits.difference(&part.first));
                let first = bits.bounded(before.wrapping_mul(i32::from(part.steps[0].quantity)));
                let Some(column) = column else {
                    bits.skip_coefficients(&part.others);
                    continue;
                };
                let place = y * self.side * self.stride + (column * self.across + x) * self.side;
                if self.side == 1 {
                    bits.skip_coefficients(&part.others);
                    self.samples[place] = transform::transform_1x1(first);
                    continue;
                }
                let mut block = [0; 64];
                block[0] = first;
                let varies = bits.coefficients(&part.others, &part.steps, &mut block);
                let out = &mut self.samples[place..];
                match self.side {
                    _ if !varies => {
                        let value = transform::transform_1x1(first);
                        for line in out.chunks_mut(self.stride).take(self.side) {
                            line[..self.side].fill(value);
                        }
                    }
                    2 => transform::transform_2x2(&block, out, self.stride),
                    _ => transform::transform_4x4(&block, out, self.stride),
                }
            }
        }
    }

    /// Prepares a row of an image of this width that is decoded at 1/`by`.
    fn show(&mut self, row: usize, width: usize, by: usize) {
        self.at = row * self.stride;
        if self.half {
            // Number of samples in a row that the library uses; padding of the last block is excluded.
            let known = (width * 8 / by).div_ceil(2 * 8).min(self.stride);
            let from = &self.samples[self.at..self.at + known];
            transform::upsample(from, self.smooth, &mut self.wide);
        }
    }

    fn row(&self) -> &[u8] {
        if self.half { &self.wide } else { &self.samples[self.at..self.at + self.stride] }
    }
}

fn read_quantities(mut segment: &[u8], tables: &mut [Option<[Step; 64]>; 4]) -> Option<()> {
    while let [kind, rest @ ..] = segment {
        // 16-bit tables are left to the library.
        let table = tables.get_mut(usize::from(*kind))?;
        let values = rest.get(..64)?;
        *table = Some(std::array::from_fn(|at| Step { place: ZIGZAG[at], quantity: values[at] }));
        segment = &rest[64..];
    }
    Some(())
}

type Codes = [Option<(Vec<u8>, [u8; 16])>; 4];

fn read_codes(mut segment: &[u8], firsts: &mut Codes, others: &mut Codes) -> Option<()> {
    while let [kind, rest @ ..] = segment {
        let counts: [u8; 16] = rest.get(..16)?.try_into().ok()?;
        let count: usize = counts.iter().map(|&count| usize::from(count)).sum();
        let symbols = rest.get(16..16 + count)?;
        let tables = if kind >> 4 == 0 { &mut *firsts } else { &mut *others };
        if kind >> 4 > 1 {
            return None;
        }
        *tables.get_mut(usize::from(kind & 15))? = Some((symbols.to_vec(), counts));
        segment = &rest[16 + count..];
    }
    Some(())
}

/// Components of a frame, all of which must be in one scan.
fn components(
    frame: &[u8],
    scan: &[u8],
    quantities: &[Option<[Step; 64]>; 4],
    firsts: &Codes,
    others: &Codes,
) -> Option<Vec<Component>> {
    let count = usize::from(*frame.get(5)?);
    let whole = scan.get(1 + 2 * count..)? == [0, 63, 0];
    if frame[0] != 8 || !matches!(count, 1 | 3) || usize::from(*scan.first()?) != count || !whole {
        return None;
    }
    let described = frame.get(6..6 + 3 * count)?.chunks_exact(3);
    let (mut made_firsts, mut made_others) = (BuiltCodes::default(), BuiltCodes::default());
    described
        .zip(scan[1..].chunks_exact(2))
        .map(|(part, read)| {
            let &[id, sampling, table] = part else { return None };
            let (across, down) = (usize::from(sampling >> 4), usize::from(sampling & 15));
            if read[0] != id || !(1..=2).contains(&across) || !(1..=2).contains(&down) {
                return None;
            }
            Some(Component {
                // In a scan of one component, a unit is one block.
                across: if count == 1 { 1 } else { across },
                down: if count == 1 { 1 } else { down },
                steps: (*quantities.get(usize::from(table))?)?,
                first: code(firsts, &mut made_firsts, read[1] >> 4)?,
                others: code(others, &mut made_others, read[1] & 15)?,
            })
        })
        .collect()
}

/// Codes built from their descriptions.
type BuiltCodes = [Option<Rc<Code>>; 4];

/// Code with a number, shared between components.
fn code(codes: &Codes, made: &mut BuiltCodes, number: u8) -> Option<Rc<Code>> {
    let slot = made.get_mut(usize::from(number))?;
    if slot.is_none() {
        let (symbols, counts) = codes.get(usize::from(number))?.as_ref()?;
        *slot = Some(Rc::new(Code::new(counts, symbols)?));
    }
    slot.clone()
}
