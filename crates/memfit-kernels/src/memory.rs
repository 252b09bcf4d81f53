//! Device memory as kernels see it: its known contents, and the blocks behind addresses.

mod extremes;
mod mask;

use memfit_channel::ValuePolicy;
use memfit_vocabulary::Assumption;

pub use extremes::Extremes;
pub use mask::Mask;

/// Maximum bytes of contents that are kept.
pub const MAX_PIECE_BYTES: usize = 1 << 20;
/// Maximum bytes of guesses that are kept.
pub const MAX_GUESS_BYTES: usize = 4096;

/// Number of ones among elements that are each zero or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ones {
    /// Unknown: the ones of a mask.
    OfMask(Mask),
    /// Known.
    Exactly(u64),
}

/// Source of known contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The script wrote it, or it follows from what the script wrote.
    True,
    /// A rule of this device replaced what a kernel would have computed; the name is for the report.
    Answer(Assumption),
    /// The host reads it, under this rule's name, but nothing is derived from it: results computed from it
    /// stay unknown, so that sizes keep their bounds.
    Guess(Assumption),
    /// Each element is zero or one; the number of ones may be known.
    Flags(Ones),
    /// The contents are not kept: only the extremes of everything that was written together are known.
    Within(Extremes),
}

impl Origin {
    /// Origin of a result computed from two contents: an answer if either was.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self == Self::True { other } else { self }
    }

    /// Rule reported when the host reads this.
    pub fn rule(self) -> Option<Assumption> {
        match self {
            // The host reads none of it.
            Self::True | Self::Within(_) => None,
            Self::Answer(rule)
            | Self::Guess(rule)
            | Self::Flags(Ones::OfMask(Mask { supposed: Some(_), rule, .. })) => Some(rule),
            Self::Flags(_) => Some(Assumption::UnknownNumber),
        }
    }

    /// Returns `true` if results may be computed from it.
    pub fn is_known(self) -> bool {
        matches!(self, Self::True | Self::Answer(_))
    }
}

/// Result of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Bytes of the range that are known.
    pub known: usize,
    /// Rules that supplied some of them.
    pub answers: Vec<Assumption>,
    /// `true` if some of it is only a guess.
    pub guessed: bool,
}

/// Memory behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Bytes from the address to the end of its block.
    pub bytes: u64,
    /// `true` if it is the block's first address.
    pub first: bool,
}

/// Device memory: its known contents and its blocks.
pub trait Memory {
    /// Block behind an address; `None` if it is not a device address.
    fn reach(&self, address: u64) -> Option<Reach>;

    /// Policy by which rules choose a size between its bounds; `None` if rules do not answer.
    fn policy(&self) -> Option<ValuePolicy>;

    /// Size that the current operator computes, if it was computed elsewhere.
    fn expected(&self) -> Option<u64> {
        None
    }

    /// Maximum number of different elements that the current operator can find, if that is known.
    fn most_values(&self) -> Option<u64> {
        None
    }

    /// Returns `false` if nothing is known about this address; `true` may be wrong.
    fn perhaps(&self, address: u64) -> bool;

    /// Number of ones, if the elements at this address are known to be zero or one each.
    fn flags(&self, address: u64) -> Option<Ones>;

    /// Least and greatest integer of `size` bytes within a range, and whether both certainly occur in it;
    /// `None` if there are no known bounds.
    fn extremes(&self, _address: u64, _length: u64, _size: usize) -> Option<((i64, i64), bool)> {
        None
    }

    /// Does the same also where the contents are kept, which may be too many to be searched one by one.
    fn bounds(&self, address: u64, length: u64, size: usize) -> Option<((i64, i64), bool)> {
        let kept_in_full = || {
            let (bytes, _) = self.get(address, length).filter(|(_, origin)| *origin == Origin::True)?;
            Extremes::from_bytes(&bytes)?.as_integers_of(size).map(|range| (range, true))
        };
        self.extremes(address, length, size).or_else(kept_in_full)
    }

    /// Records that `length` bytes hold integers between these extremes.
    fn mark_extremes(&self, _address: u64, _length: u64, _extremes: Extremes) {}

    /// Contents of a range, if all of it is known.
    fn get(&self, address: u64, length: u64) -> Option<(Vec<u8>, Origin)>;

    /// Reads known bytes into `out`; the others are left unchanged.
    fn read(&self, address: u64, out: &mut [u8]) -> Found;

    /// Records contents.
    fn write(&self, address: u64, bytes: &[u8], origin: Origin);

    /// Records that every one of `length` bytes is `byte`.
    fn fill(&self, address: u64, byte: u8, length: u64, origin: Origin);

    /// Forgets the contents of a range.
    fn forget(&self, address: u64, length: u64);

    /// Forgets everything from this address on that was written together with it.
    fn forget_from(&self, address: u64);

    /// Forgets the block behind this address, from the address on.
    fn forget_block(&self, address: u64);

    /// Returns `true` if rules answer for values that kernels would have computed.
    fn rules_answer(&self) -> bool {
        self.policy().is_some()
    }

    /// Records values for the host to read in place of unknown numbers, without deriving anything from them.
    /// Returns `false` if there are too many.
    fn guess(&self, address: u64, bytes: &[u8], rule: Assumption) -> bool {
        let kept = self.rules_answer() && bytes.len() <= MAX_GUESS_BYTES;
        if kept {
            self.write(address, bytes, Origin::Guess(rule));
        }
        kept
    }

    /// Records that each of the elements from this address on is zero or one.
    fn mark_flags(&self, address: u64, length: u64, ones: Ones) {
        // Queries look at the first elements; the host reads the supposed value.
        let byte = matches!(ones, Ones::OfMask(Mask { supposed: Some(true), .. }));
        self.fill(address, u8::from(byte), length.min(MAX_GUESS_BYTES as u64), Origin::Flags(ones));
    }

    /// Contents of a range as the host would read them, and whether a rule answered for any of them; `None`
    /// if nothing is known, or with `all` if any byte is unknown.
    fn known_contents(&self, address: u64, length: u64, all: bool) -> Option<(Vec<u8>, bool)> {
        if length > MAX_PIECE_BYTES as u64 {
            return None;
        }
        let mut bytes = vec![0; length as usize];
        let found = self.read(address, &mut bytes);
        let least = if all { bytes.len() } else { 1 };
        (found.known >= least).then_some((bytes, !found.answers.is_empty()))
    }

    /// The 32-bit numbers at an address, up to the first unknown one; empty if a rule answered.
    fn known_numbers(&self, address: u64, length: u64) -> Vec<i32> {
        let mut bytes = vec![0; length.min(MAX_PIECE_BYTES as u64) as usize];
        let known = self.read(address, &mut bytes).known;
        let found = if known > 0 { self.known_contents(address, known as u64, true) } else { None };
        let Some((bytes, false)) = found else { return Vec::new() };
        bytes.as_chunks().0.iter().map(|number| i32::from_le_bytes(*number)).collect()
    }
}

#[cfg(test)]
pub mod testing;
