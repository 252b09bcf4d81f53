//! Huffman codes of a baseline scan: coefficients that are wanted one by one, and all others passed over,
//! several at a lookup.

/// Bits that are looked up at once.
const LOOK: u32 = 12;
const LOOKS: usize = 1 << LOOK;
/// Coefficients of a block.
const BLOCK: u32 = 64;
/// No picture of 8 bits has greater coefficients than 1024, but for half a quantity; with those that are not
/// greater than this, sums stay within 32 bits.
const GREATEST: u32 = 1408;

/// In the place of a run: the block ends here. Of a first coefficient, which has none, it says that there is
/// no difference.
const END: u32 = 255;

/// A coefficient, in the order of the file.
#[derive(Clone, Copy, Default)]
pub(super) struct Step {
    /// Where it stands, by row and column of frequencies.
    pub(super) place: u8,
    /// What it is multiplied by.
    pub(super) quantity: u8,
}

/// A code.
pub(super) struct Code {
    /// By the next bits: the symbol, as `length | size << 8 | run << 16`; 0 where it is longer.
    one: Box<[u32; LOOKS]>,
    /// By the next bits: a whole coefficient, as `bits | run << 8 | value << 16`; 0 where it is longer.
    whole: Box<[i32; LOOKS]>,
    /// By the next bits: as many coefficients as they hold, as `bits | coefficients << 8 | end << 16`.
    many: Box<[u32; LOOKS]>,
    /// The greatest code of each length, and what its symbol's place is beyond it.
    greatest: [i32; 17],
    beyond: [i32; 17],
    symbols: Vec<u8>,
}

impl Code {
    /// The code with so many symbols of each length; `None` if there is no such code.
    pub(super) fn new(counts: &[u8; 16], symbols: &[u8]) -> Option<Self> {
        let mut one = Box::new([0_u32; LOOKS]);
        let (mut greatest, mut beyond) = ([-1; 17], [0; 17]);
        let (mut next, mut place) = (0_i32, 0_i32);
        for (length, &count) in (1_u32..).zip(counts) {
            beyond[length as usize] = place - next;
            for _ in 0..count {
                let symbol = u32::from(*symbols.get(place as usize)?);
                if next >= 1 << length {
                    return None;
                }
                if length <= LOOK {
                    let free = LOOK - length;
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
        let many = Box::new(std::array::from_fn(|bits| together(&one, bits as u32)));
        let whole = Box::new(std::array::from_fn(|bits| coefficient(&one, bits as u32)));
        Some(Self { one, whole, many, greatest, beyond, symbols: symbols.to_vec() })
    }
}

/// How many coefficients stand in these bits, and whether the block ends with them.
fn together(one: &[u32; LOOKS], bits: u32) -> u32 {
    let (mut used, mut coefficients) = (0, 0);
    loop {
        let entry = one[((bits << used) & ((1 << LOOK) - 1)) as usize];
        let (length, size, run) = (entry & 0xff, entry >> 8 & 15, entry >> 16);
        if length == 0 || used + length + size > LOOK {
            return used | coefficients << 8;
        }
        used += length + size;
        if size == 0 && run != 15 {
            return used | coefficients << 8 | 1 << 16;
        }
        coefficients += run + 1;
    }
}

/// The one coefficient with which these bits begin, or the end of the block.
fn coefficient(one: &[u32; LOOKS], bits: u32) -> i32 {
    let entry = one[bits as usize];
    let (length, size, run) = (entry & 0xff, entry >> 8 & 15, entry >> 16);
    if length == 0 || length + size > LOOK || (size == 0 && run > 0) {
        return 0;
    }
    if size == 0 {
        return (END << 8 | length) as i32;
    }
    let raw = (bits >> (LOOK - length - size)) & ((1 << size) - 1);
    extended(raw, size) << 16 | (run << 8 | (length + size)) as i32
}

/// A value of so many bits: those that begin with 0 are negative.
fn extended(raw: u32, size: u32) -> i32 {
    let raw = raw as i32;
    if raw < 1 << (size - 1) { raw - (1 << size) + 1 } else { raw }
}

/// The bits of a scan.
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, the first one foremost, and how many there are.
    next: u64,
    count: u32,
    /// Of these, zeros that stand for what is not there.
    made_up: u32,
    /// Something that no encoder writes was met.
    pub(super) wrong: bool,
}

impl<'a> Bits<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, next: 0, count: 0, made_up: 0, wrong: false }
    }

    /// Whether all that was read was there, and was what encoders write.
    pub(super) fn sound(&self) -> bool {
        !self.wrong && self.count >= self.made_up
    }

    /// Passes the mark between two intervals, of this number; `false` if it does not stand there.
    pub(super) fn restart(&mut self, number: u8) -> bool {
        // Bits that fill the last byte are left; those of a byte more would be data.
        let left = self.count.saturating_sub(self.made_up);
        let stands = self.data.get(self.at..self.at + 2) == Some(&[0xff, 0xd0 + number]);
        if !self.sound() || left >= 8 || !stands {
            return false;
        }
        *self = Self { at: self.at + 2, ..Self::new(self.data) };
        true
    }

    /// Sees to 32 bits at least.
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
            // No byte of them is 255, which stands before a mark or before a 0 that is no data.
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
                // A mark, or the end.
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
        (self.next >> (64 - LOOK)) as usize
    }

    #[inline(always)]
    fn pass(&mut self, bits: u32) {
        self.next <<= bits;
        self.count = self.count.wrapping_sub(bits);
    }

    /// A value of so many bits, from 1 to 15, which are there.
    #[inline(always)]
    fn value(&mut self, size: u32) -> i32 {
        let raw = (self.next >> (64 - size)) as u32;
        self.pass(size);
        extended(raw, size)
    }

    /// The next symbol's run and size.
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
        for length in LOOK + 1..=16 {
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

    /// A coefficient, if it can be one.
    #[inline(always)]
    pub(super) fn bounded(&mut self, value: i32) -> i16 {
        let possible = value.unsigned_abs() <= GREATEST;
        self.wrong |= !possible;
        if possible { value as i16 } else { 0 }
    }

    /// By how much the first coefficient differs from the last block's.
    #[inline(always)]
    pub(super) fn difference(&mut self, code: &Code) -> i32 {
        self.fill();
        let entry = code.whole[self.look()];
        if entry != 0 {
            self.pass((entry & 0xff) as u32);
            self.wrong |= entry >> 8 & 0xff != 0 && entry >> 8 & 0xff != END as i32;
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

    /// The other coefficients of a block that was zero, each where it belongs and multiplied by its quantity;
    /// gives whether there is any.
    #[inline(always)]
    pub(super) fn coefficients(&mut self, code: &Code, steps: &[Step; 64], block: &mut [i16; 64]) -> bool {
        let mut at = 1;
        while at < BLOCK {
            self.fill();
            let entry = code.whole[self.look()];
            let value = if entry != 0 {
                self.pass((entry & 0xff) as u32);
                let run = (entry >> 8 & 0xff) as u32;
                if run == END {
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
            if at >= BLOCK {
                self.wrong = true;
                return true;
            }
            let step = &steps[at as usize];
            let value = value * i32::from(step.quantity);
            block[usize::from(step.place & 63)] = self.bounded(value);
            at += 1;
        }
        self.wrong |= at > BLOCK;
        true
    }

    /// Passes over the other coefficients of a block.
    #[inline(always)]
    pub(super) fn pass_over(&mut self, code: &Code) {
        let mut at = 1;
        while at < BLOCK {
            self.fill();
            let mut entry = code.many[self.look()];
            let (bits, coefficients) = (entry & 0xff, entry >> 8 & 0xff);
            // The last coefficient has no end behind it, so what follows there is the next block's.
            if bits != 0 && at + coefficients < BLOCK {
                self.pass(bits);
                at += coefficients;
                if entry >> 16 != 0 {
                    return;
                }
                // Two lookups are within the bits that are there.
                entry = code.many[self.look()];
                let (bits, coefficients) = (entry & 0xff, entry >> 8 & 0xff);
                if bits != 0 && at + coefficients < BLOCK {
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
        self.wrong |= at > BLOCK;
    }
}
