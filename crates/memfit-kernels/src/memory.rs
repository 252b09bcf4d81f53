//! The device's memory as kernels see it: which contents are known, and how far an address reaches.

mod extremes;
mod mask;

use memfit_channel::ValuePolicy;
use memfit_vocabulary::Assumption;

pub use extremes::Extremes;
pub use mask::Mask;

/// Longer contents are not kept.
pub const LARGEST_PIECE: usize = 1 << 20;
/// Longer guesses are not kept.
pub const LARGEST_GUESS: usize = 4096;

/// The number of ones among elements that are zero or one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ones {
    /// Unknown: those of a mask.
    Of(Mask),
    /// Known.
    Exactly(u64),
}

/// The source of a known content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The script wrote it, or it follows from what the script wrote.
    True,
    /// A rule of this device put it in place of what a kernel would have computed; the name is for the
    /// report.
    Answer(Assumption),
    /// The host reads it, under this rule's name, but nothing follows from it: what is computed of it stays
    /// unknown, so that sizes keep their bounds.
    Guess(Assumption),
    /// Nothing is known but that each element is zero or one, and perhaps how many are one.
    Flags(Ones),
    /// The content is not kept: only its extremes are known, of all that was written together.
    Within(Extremes),
}

impl Origin {
    /// The origin of what was made of two contents: an answer if either was.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self == Self::True { other } else { self }
    }

    /// The rule that the host hears of when it reads this.
    pub fn rule(self) -> Option<Assumption> {
        match self {
            // The host reads nothing of it.
            Self::True | Self::Within(_) => None,
            Self::Answer(rule) | Self::Guess(rule) => Some(rule),
            Self::Flags(Ones::Of(Mask { supposed: Some(_), .. })) => Some(Assumption::Finite),
            Self::Flags(_) => Some(Assumption::UnknownNumber),
        }
    }

    /// Whether something may be computed of it.
    pub fn is_known(self) -> bool {
        matches!(self, Self::True | Self::Answer(_))
    }
}

/// The result of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Bytes of the range that are known.
    pub known: usize,
    /// The rules that supplied some of them.
    pub answers: Vec<Assumption>,
    /// Whether some of it is only a guess.
    pub guessed: bool,
}

/// The extent of memory behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Bytes from it to the end of its block.
    pub bytes: u64,
    /// Whether it is the block's first address.
    pub first: bool,
}

/// Device memory: its known contents and its blocks.
pub trait Memory {
    /// The block behind an address; `None` if it is no address of a card.
    fn reach(&self, address: u64) -> Option<Reach>;

    /// Where rules take a size between its bounds; `None` where rules do not answer.
    fn policy(&self) -> Option<ValuePolicy>;

    /// The size that the operator under way computes, where someone has computed it.
    fn expected(&self) -> Option<u64> {
        None
    }

    /// False if surely nothing is known about this address.
    fn perhaps(&self, address: u64) -> bool;

    /// The number of ones, if the elements at this address are known to be zero or one each.
    fn flags(&self, address: u64) -> Option<Ones>;

    /// The least and the greatest integer of `size` bytes each within a range, and whether both are surely in
    /// it; `None` where bounds are not known.
    fn extremes(&self, _address: u64, _length: u64, _size: usize) -> Option<((i64, i64), bool)> {
        None
    }

    /// The content of a range, if all of it is known.
    fn get(&self, address: u64, length: u64) -> Option<(Vec<u8>, Origin)>;

    /// Reads what is known into `out`; the rest stays as it is.
    fn read(&self, address: u64, out: &mut [u8]) -> Found;

    /// Records a content.
    fn write(&self, address: u64, bytes: &[u8], origin: Origin);

    /// Records that every one of `length` bytes is `byte`.
    fn fill(&self, address: u64, byte: u8, length: u64, origin: Origin);

    /// Nothing is known of a range any more.
    fn forget(&self, address: u64, length: u64);

    /// Nothing is known any more of what was written together with this address, from the address on.
    fn forget_from(&self, address: u64);

    /// Nothing is known any more of the block behind this address, from the address on.
    fn forget_block(&self, address: u64);

    /// Whether rules answer for what kernels would have computed.
    fn answers(&self) -> bool {
        self.policy().is_some()
    }

    /// Records what the host is to read of unknown numbers, without anything following from it; false if
    /// there are too many of them.
    fn guess(&self, address: u64, bytes: &[u8], rule: Assumption) -> bool {
        let kept = self.answers() && bytes.len() <= LARGEST_GUESS;
        if kept {
            self.write(address, bytes, Origin::Guess(rule));
        }
        kept
    }

    /// Records that each of the elements from this address on is zero or one.
    fn mark_flags(&self, address: u64, length: u64, ones: Ones) {
        // Who asks looks at the first of them; the host reads what they are supposed to be.
        let byte = matches!(ones, Ones::Of(Mask { supposed: Some(true), .. }));
        self.fill(address, u8::from(byte), length.min(LARGEST_GUESS as u64), Origin::Flags(ones));
    }

    /// The content of a range as the host would read it, and whether a rule answered for some of it; `None`
    /// where nothing is known, or not `all`.
    fn known(&self, address: u64, length: u64, all: bool) -> Option<(Vec<u8>, bool)> {
        if length > LARGEST_PIECE as u64 {
            return None;
        }
        let mut bytes = vec![0; length as usize];
        let found = self.read(address, &mut bytes);
        let least = if all { bytes.len() } else { 1 };
        (found.known >= least).then_some((bytes, !found.answers.is_empty()))
    }

    /// The 32-bit numbers at an address, as far as they are known from the first one on; none where a rule
    /// answered.
    fn known_numbers(&self, address: u64, length: u64) -> Vec<i32> {
        let mut bytes = vec![0; length.min(LARGEST_PIECE as u64) as usize];
        let known = self.read(address, &mut bytes).known;
        let found = if known > 0 { self.known(address, known as u64, true) } else { None };
        let Some((bytes, false)) = found else { return Vec::new() };
        bytes.as_chunks().0.iter().map(|number| i32::from_le_bytes(*number)).collect()
    }
}

#[cfg(test)]
pub mod testing;
