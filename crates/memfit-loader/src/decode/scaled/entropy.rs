//! Huffman decoding of a baseline scan. Needed coefficients are decoded one by one; others are skipped,
//! several in one lookup.

/// Bits of a lookup.
const LOOKUP_BITS: u32 = 12;
const LOOKUP_SIZE: usize = 1 << LOOKUP_BITS;
/// Coefficients of a block.
const BLOCK_COEFFICIENTS: u32 = 64;
/// Maximum magnitude of a coefficient. Those of 8-bit images are at most 1024, plus half a quantisation step;
/// with this limit, sums fit into 32 bits.
const MAX_COEFFICIENT: u32 = 1408;

/// Run length that marks the end of a block. For a DC coefficient, which has no run, it marks a difference of
/// zero.
const END_OF_BLOCK: u32 = 255;

/// Coefficient in file order.
#[derive(Clone, Copy, Default)]
pub(super) struct Step {
    /// Position in the block, by row and column of frequencies.
    pub(super) place: u8,
    /// Quantisation factor.
    pub(super) quantity: u8,
}

/// Huffman code with lookup tables.
pub(super) struct Code {
    /// Symbol for the next bits, as `length | size << 8 | run << 16`; 0 if it is longer.
    one: Box<[u32; LOOKUP_SIZE]>,
    /// Complete coefficient for the next bits, as `bits | run << 8 | value << 16`; 0 if it is longer.
    whole: Box<[i32; LOOKUP_SIZE]>,
    /// Number of complete coefficients in the next bits, as `bits | coefficients << 8 | end << 16`.
    many: Box<[u32; LOOKUP_SIZE]>,
    /// Largest code of each length, and the offset from a code to its symbol's index.
    greatest: [i32; 17],
    beyond: [i32; 17],
    symbols: Vec<u8>,
}

impl Code {
    /// Builds the code with `counts` symbols of each length. Returns `None` if the lengths form no valid
    /// code.
    pub(super) fn new(counts: &[u8; 16], symbols: &[u8]) -> Option<Self> {
        let mut one = Box::new([0_u32; LOOKUP_SIZE]);
        let (mut greatest, mut beyond) = ([-1; 17], [0; 17]);
        let (mut next, mut place) = (0_i32, 0_i32);
        for (length, &count) in (1_u32..).zip(counts) {
            beyond[length as usize] = place - next;
            for _ in 0..count {
                let symbol = u32::from(*symbols.get(place as usize)?);
                if next >= 1 << length {
                    return None;
                }
                if length <= LOOKUP_BITS {
                    let free = LOOKUP_BITS - length;
                    let first = (next as usize) << free;
                    one[first..first + (1 << free)].fill(length | (symbol & 15) << 8 | (symbol >> 4) << 16);
                }
                next += 1;
                place += 1;
            }
            if count > 0 {
                greatest[length as usize] = next - 1;
            }
            next <<= 1;
        }
        let many = Box::new(std::array::from_fn(|bits| count_coefficients(&one, bits as u32)));
        let whole = Box::new(std::array::from_fn(|bits| coefficient(&one, bits as u32)));
        Some(Self { one, whole, many, greatest, beyond, symbols: symbols.to_vec() })
    }
}

/// Counts the complete coefficients in these bits, and determines whether the block ends with them.
fn count_coefficients(one: &[u32; LOOKUP_SIZE], bits: u32) -> u32 {
    let (mut used, mut coefficients) = (0, 0);
    loop {
        let entry = one[((bits << used) & ((1 << LOOKUP_BITS) - 1)) as usize];
        let (length, size, run) = (entry & 0xff, entry >> 8 & 15, entry >> 16);
        if length == 0 || used + length + size > LOOKUP_BITS {
            return used | coefficients << 8;
        }
        used += length + size;
        if size == 0 && run != 15 {
            return used | coefficients << 8 | 1 << 16;
        }
        coefficients += run + 1;
    }
}

/// Decodes the one coefficient at the start of these bits, or the end of the block.
fn coefficient(one: &[u32; LOOKUP_SIZE], bits: u32) -> i32 {
    let entry = one[bits as usize];
    let (length, size, run) = (entry & 0xff, entry >> 8 & 15, entry >> 16);
    if length == 0 || length + size > LOOKUP_BITS || (size == 0 && run > 0) {
        return 0;
    }
    if size == 0 {
        return (END_OF_BLOCK << 8 | length) as i32;
    }
    let raw = (bits >> (LOOKUP_BITS - length - size)) & ((1 << size) - 1);
    extended(raw, size) << 16 | (run << 8 | (length + size)) as i32
}

/// Sign-extends a value of `size` bits: values that begin with a 0 bit are negative.
fn extended(raw: u32, size: u32) -> i32 {
    let raw = raw as i32;
    if raw < 1 << (size - 1) { raw - (1 << size) + 1 } else { raw }
}

/// Bit reader of a scan.
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// Next bits, left-aligned, and their number.
    next: u64,
    count: u32,
    /// Number of zero bits appended after the end of the data.
    made_up: u32,
    /// `true` after data that no encoder writes.
    pub(super) wrong: bool,
}

impl<'a> Bits<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, next: 0, count: 0, made_up: 0, wrong: false }
    }

    /// Returns `true` if all bits read were in the file and are valid encoder output.
    pub(super) fn sound(&self) -> bool {
        !self.wrong && self.count >= self.made_up
    }

    /// Skips the restart marker with this number. Returns `false` if it is not there.
    pub(super) fn restart(&mut self, number: u8) -> bool {
        // Padding bits of the last byte are skipped; a whole byte more would be data.
        let left = self.count.saturating_sub(self.made_up);
        let stands = self.data.get(self.at..self.at + 2) == Some(&[0xff, 0xd0 + number]);
        if !self.sound() || left >= 8 || !stands {
            return false;
        }
        *self = Self { at: self.at + 2, ..Self::new(self.data) };
        true
    }

    /// Ensures that at least 32 bits are buffered.
    #[inline(always)]
    fn fill(&mut self) {
        if self.count > 32 {
            return;
        }
        if let Some(four) = self.data.get(self.at..self.at + 4)
            && let Ok(four) = four.try_into()
        {
            let word = u32::from_be_bytes(four);
            let turned = !word;
            // None of these bytes is 255, which precedes a marker or a stuffed zero byte.
            if turned.wrapping_sub(0x0101_0101) & !turned & 0x8080_8080 == 0 {
                self.next |= u64::from(word) << (32 - self.count);
                self.count += 32;
                self.at += 4;
                return;
            }
        }
        self.fill_slowly();
    }

    #[cold]
    #[inline(never)]
    fn fill_slowly(&mut self) {
        while self.count <= 56 {
            let byte = match self.data.get(self.at) {
                Some(0xff) if self.data.get(self.at + 1) == Some(&0) => {
                    self.at += 2;
                    0xff
                }
                // A marker, or the end of the data.
                Some(0xff) | None => {
                    self.made_up += 8;
                    0
                }
                Some(byte) => {
                    self.at += 1;
                    *byte
                }
            };
            self.next |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    #[inline(always)]
    fn look(&self) -> usize {
        (self.next >> (64 - LOOKUP_BITS)) as usize
    }

    #[inline(always)]
    fn pass(&mut self, bits: u32) {
        self.next <<= bits;
        self.count = self.count.wrapping_sub(bits);
    }

    /// Reads a value of 1 to 15 buffered bits.
    #[inline(always)]
    fn value(&mut self, size: u32) -> i32 {
        let raw = (self.next >> (64 - size)) as u32;
        self.pass(size);
        extended(raw, size)
    }

    /// Decodes the next symbol's run and size.
    #[inline(always)]
    fn symbol(&mut self, code: &Code) -> (u32, u32) {
        let entry = code.one[self.look()];
        if entry == 0 {
            return self.long_symbol(code);
        }
        self.pass(entry & 0xff);
        (entry >> 16, entry >> 8 & 15)
    }

    #[cold]
    #[inline(never)]
    fn long_symbol(&mut self, code: &Code) -> (u32, u32) {
        for length in LOOKUP_BITS + 1..=16 {
            let found = (self.next >> (64 - length)) as i32;
            if found <= code.greatest[length as usize] {
                let place = found + code.beyond[length as usize];
                self.pass(length);
                let symbol = usize::try_from(place).ok().and_then(|place| code.symbols.get(place));
                let Some(&symbol) = symbol else { break };
                return (u32::from(symbol >> 4), u32::from(symbol & 15));
            }
        }
        self.wrong = true;
        (0, 0)
    }

    /// Checks a coefficient's magnitude.
    #[inline(always)]
    pub(super) fn bounded(&mut self, value: i32) -> i16 {
        let possible = value.unsigned_abs() <= MAX_COEFFICIENT;
        self.wrong |= !possible;
        if possible { value as i16 } else { 0 }
    }

    /// Decodes the difference of the DC coefficient from that of the last block.
    #[inline(always)]
    pub(super) fn difference(&mut self, code: &Code) -> i32 {
        self.fill();
        let entry = code.whole[self.look()];
        if entry != 0 {
            self.pass((entry & 0xff) as u32);
            self.wrong |= entry >> 8 & 0xff != 0 && entry >> 8 & 0xff != END_OF_BLOCK as i32;
            return entry >> 16;
        }
        let (run, size) = self.symbol(code);
        if run > 0 {
            // More than 15 bits.
            self.wrong = true;
            return 0;
        }
        if size == 0 { 0 } else { self.value(size) }
    }

    /// Decodes the AC coefficients into a zeroed block, dequantised and in place. Returns whether there are
    /// any.
    #[inline(always)]
    pub(super) fn coefficients(&mut self, code: &Code, steps: &[Step; 64], block: &mut [i16; 64]) -> bool {
        let mut at = 1;
        while at < BLOCK_COEFFICIENTS {
            self.fill();
            let entry = code.whole[self.look()];
            let value = if entry != 0 {
                self.pass((entry & 0xff) as u32);
                let run = (entry >> 8 & 0xff) as u32;
                if run == END_OF_BLOCK {
                    return at > 1;
                }
                at += run;
                entry >> 16
            } else {
                let (run, size) = self.symbol(code);
                if size == 0 {
                    if run != 15 {
                        return at > 1;
                    }
                    at += 16;
                    continue;
                }
                at += run;
                self.value(size)
            };
            if at >= BLOCK_COEFFICIENTS {
                self.wrong = true;
                return true;
            }
            let step = &steps[at as usize];
            let value = value * i32::from(step.quantity);
            block[usize::from(step.place & 63)] = self.bounded(value);
            at += 1;
        }
        self.wrong |= at > BLOCK_COEFFICIENTS;
        true
    }

    /// Skips the AC coefficients of a block.
    #[inline(always)]
    pub(super) fn skip_coefficients(&mut self, code: &Code) {
        let mut at = 1;
        while at < BLOCK_COEFFICIENTS {
            self.fill();
            let mut entry = code.many[self.look()];
            let (bits, coefficients) = (entry & 0xff, entry >> 8 & 0xff);
            // The last coefficient has no end-of-block code after it: what follows belongs to the next block.
            if bits != 0 && at + coefficients < BLOCK_COEFFICIENTS {
                self.pass(bits);
                at += coefficients;
                if entry >> 16 != 0 {
                    return;
                }
                // Both lookups are covered by the buffered bits.
                entry = code.many[self.look()];
                let (bits, coefficients) = (entry & 0xff, entry >> 8 & 0xff);
                if bits != 0 && at + coefficients < BLOCK_COEFFICIENTS {
                    self.pass(bits);
                    at += coefficients;
                    if entry >> 16 != 0 {
                        return;
                    }
                }
                continue;
            }
            let (run, size) = self.symbol(code);
            if size == 0 {
                if run != 15 {
                    return;
                }
                at += 16;
                continue;
            }
            self.pass(size);
            at += run + 1;
        }
        self.wrong |= at > BLOCK_COEFFICIENTS;
    }
}
