//! Inverse transforms from coefficients to pixels at a quarter and an eighth of the size, bit-exact with
//! libjpeg's reduced transforms.
//!
//! This is based in part on the work of the Independent JPEG Group (`jidctred.c`, `jdcolor.c`, `jdsample.c`).

const CONST_BITS: u32 = 13;
const PASS1_BITS: u32 = 2;

/// Computes `(x + half) >> bits`, libjpeg's rounding.
#[inline(always)]
const fn descaled(value: i32, bits: u32) -> i32 {
    (value + (1 << (bits - 1))) >> bits
}

/// Converts a value centred on 0 to a sample: clamped, and far outside of the range wrapped like libjpeg's
/// table.
#[inline(always)]
pub(super) fn sample(value: i32) -> u8 {
    match value & 1023 {
        low @ 0..128 => (low + 128) as u8,
        128..512 => 255,
        512..896 => 0,
        high => (high - 896) as u8,
    }
}

/// Sample of a block of one colour; also of a block that is reduced to one sample.
#[inline(always)]
pub(super) fn transform_1x1(first: i16) -> u8 {
    sample(descaled(i32::from(first), 3))
}

/// Row of dequantised coefficients.
#[inline(always)]
fn row(block: &[i16; 64], number: usize) -> [i32; 8] {
    std::array::from_fn(|column| i32::from(block[8 * number + column]))
}

/// Transforms a block to two by two samples.
///
/// libjpeg skips columns and rows of zeros, with the same result.
#[inline(always)]
pub(super) fn transform_2x2(block: &[i16; 64], out: &mut [u8], stride: usize) {
    let odd = |first: i32, third: i32, fifth: i32, seventh: i32| {
        seventh * -5906 + fifth * 6967 + third * -10426 + first * 29692
    };
    let [zeroth, first, third, fifth, seventh] = [0, 1, 3, 5, 7].map(|number| row(block, number));
    let mut between = [[0; 8]; 2];
    for column in 0..8 {
        let even = zeroth[column] << (CONST_BITS + 2);
        let odd = odd(first[column], third[column], fifth[column], seventh[column]);
        between[0][column] = descaled(even + odd, CONST_BITS - PASS1_BITS + 2);
        between[1][column] = descaled(even - odd, CONST_BITS - PASS1_BITS + 2);
    }
    for (row, line) in between.iter().zip(out.chunks_mut(stride)) {
        let even = row[0] << (CONST_BITS + 2);
        let odd = odd(row[1], row[3], row[5], row[7]);
        line[0] = sample(descaled(even + odd, CONST_BITS + PASS1_BITS + 5));
        line[1] = sample(descaled(even - odd, CONST_BITS + PASS1_BITS + 5));
    }
}

/// Transforms a block to four by four samples.
#[inline(always)]
pub(super) fn transform_4x4(block: &[i16; 64], out: &mut [u8], stride: usize) {
    let parts = |line: [i32; 8]| {
        let [zeroth, first, second, third, _, fifth, sixth, seventh] = line;
        let even = zeroth << (CONST_BITS + 1);
        let around = second * 15137 + sixth * -6270;
        let inner = seventh * -1730 + fifth * 11893 + third * -17799 + first * 8697;
        let outer = seventh * -4176 + fifth * -4926 + third * 7373 + first * 20995;
        [even + around + outer, even - around + inner, even - around - inner, even + around - outer]
    };
    let rows: [[i32; 8]; 8] = std::array::from_fn(|number| row(block, number));
    let mut between = [[0; 8]; 4];
    for column in 0..8 {
        let line = std::array::from_fn(|number| rows[number][column]);
        for (row, value) in between.iter_mut().zip(parts(line)) {
            row[column] = descaled(value, CONST_BITS - PASS1_BITS + 1);
        }
    }
    for (row, line) in between.iter().zip(out.chunks_mut(stride)) {
        for (place, value) in line.iter_mut().zip(parts(*row)) {
            *place = sample(descaled(value, CONST_BITS + PASS1_BITS + 4));
        }
    }
}

/// Converter from luma and two chroma values to red, green and blue.
pub(super) struct Colours {
    red: [i32; 256],
    blue: [i32; 256],
    green: [(i32, i32); 256],
}

impl Colours {
    pub(super) fn new() -> Self {
        let centered = |value: usize| value as i32 - 128;
        // 1.402, 1.772, 0.71414 and 0.34414, multiplied by 65536.
        Self {
            red: std::array::from_fn(|value| (91881 * centered(value) + 32768) >> 16),
            blue: std::array::from_fn(|value| (116_130 * centered(value) + 32768) >> 16),
            green: std::array::from_fn(|value| (-22554 * centered(value) + 32768, -46802 * centered(value))),
        }
    }

    /// Converts a row.
    pub(super) fn row(&self, light: &[u8], blue: &[u8], red: &[u8], out: &mut [u8]) {
        let differences = blue.iter().zip(red);
        for ((pixel, &light), (&blue, &red)) in out.chunks_exact_mut(3).zip(light).zip(differences) {
            let (light, blue, red) = (i32::from(light), usize::from(blue), usize::from(red));
            pixel[0] = (light + self.red[red]).clamp(0, 255) as u8;
            pixel[1] = (light + ((self.green[blue].0 + self.green[red].1) >> 16)).clamp(0, 255) as u8;
            pixel[2] = (light + self.blue[blue]).clamp(0, 255) as u8;
        }
    }
}

/// Upsamples a row with half as many samples by a factor of two. If `smooth`, each new sample lies a quarter
/// of the way to its neighbour; otherwise samples are repeated. `from` has the file's length.
pub(super) fn upsample(from: &[u8], smooth: bool, out: &mut [u8]) {
    if !smooth || from.len() <= 2 {
        for (pair, &value) in out.chunks_exact_mut(2).zip(from) {
            pair.fill(value);
        }
        return;
    }
    let last = from.len() - 1;
    for (at, pair) in out.chunks_exact_mut(2).take(from.len()).enumerate() {
        let here = u32::from(from[at]);
        pair[0] = if at == 0 { from[0] } else { ((3 * here + u32::from(from[at - 1]) + 1) >> 2) as u8 };
        pair[1] = if at == last { from[last] } else { ((3 * here + u32::from(from[at + 1]) + 2) >> 2) as u8 };
    }
}
