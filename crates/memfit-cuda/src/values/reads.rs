//! Read-backs of numbers that nothing computed, and the probe's hints on them: the type that is being read,
//! and a size that the current operator computes.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{cell::Cell, slice};

use memfit_channel::scattered;
use memfit_kernels::memory::{Found, MAX_PIECE_BYTES, Memory, Origin};
use memfit_vocabulary::Assumption;

use super::{MAX_VALUE_BYTES, MEMORY};
use crate::machine;

thread_local! {
    /// Type information for the numbers being read.
    static READS: Cell<Reads> = const { Cell::new(Reads::ANYTHING) };
    /// Size that the current operator computes.
    static EXPECTED: Cell<Option<u64>> = const { Cell::new(None) };
    /// Maximum number of different elements that the current operator can find.
    static MOST_VALUES: Cell<Option<u64>> = const { Cell::new(None) };
    /// Reads of uncomputed integers so far.
    static UNKNOWN_INTEGERS: Cell<u64> = const { Cell::new(0) };
    /// Reads of uncomputed floating-point numbers so far.
    static UNKNOWN_FLOATS: Cell<u64> = const { Cell::new(0) };
    /// Assumptions that answered reads so far.
    static ASSUMPTIONS: Cell<u64> = const { Cell::new(0) };
    /// Reads of `any` of unknown values so far.
    static UNKNOWN_ANY: Cell<u64> = const { Cell::new(0) };
    /// Conditions on unknown values so far, ...
    static CONDITIONS: Cell<u64> = const { Cell::new(0) };
    /// ... and how many of them were inverted.
    static FLIPS: Cell<u64> = const { Cell::new(0) };
    /// Numbers that were replaced so far.
    static REPLACED: Cell<usize> = const { Cell::new(0) };
}

/// Maximum number of conditions that are inverted in a thread. Beyond it, the probe inverts those whose place
/// it knows.
const MAX_FLIPS: u64 = 1000;

/// Numbers that a repeated run reads in place of 0: for a position, which is one of at least two, ...
const OTHER_POSITION: u16 = 1;
/// ... and for those that stay floating-point numbers, one after the other: on both sides of a threshold, ...
const OTHER_FLOATS: [f32; 6] = [7.0, 0.5, -7.0, 0.25, -0.5, -0.25];
/// ... and, if the number for integers is small, none that a script may refuse.
const SMALL_FLOATS: [f32; 2] = [0.5, 2.0];
/// The largest small number.
const MAX_SMALL: u16 = 100;
/// Where numbers vary from read to read: one more than the largest integer, ...
const VARIED_INTEGERS: u64 = 16;
/// ... the denominator of floating-point numbers below 1, which all types represent, ...
const VARIED_PARTS: u64 = 256;
/// ... and how often one is larger, and by which factor.
const RARE: usize = 8;
const LARGE: f32 = 8.0;

/// Type of the numbers being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reads {
    float: Option<Float>,
    /// `true` if the numbers become integers, whatever their type.
    become_integers: bool,
}

/// Floating-point types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Float {
    Half,
    Brain,
    Single,
    Double,
}

impl Reads {
    const ANYTHING: Self = Self { float: None, become_integers: true };

    /// Decodes the probe's code for a type, which is negative if the numbers become integers.
    fn from_code(code: i32) -> Self {
        let float = match code.unsigned_abs() {
            1 => Some(Float::Half),
            2 => Some(Float::Brain),
            3 => Some(Float::Single),
            4 => Some(Float::Double),
            _ => None,
        };
        Self { float, become_integers: float.is_none() || code < 0 }
    }
}

impl Float {
    /// Bytes of a number.
    const fn width(self) -> usize {
        match self {
            Self::Half | Self::Brain => 2,
            Self::Single => 4,
            Self::Double => 8,
        }
    }

    /// Encodes a number of few digits, which all of these types hold exactly.
    fn encode(self, number: f32) -> Vec<u8> {
        match self {
            Self::Half => {
                // The exponent has 5 bits in place of 8, the mantissa 10 in place of 23.
                let bits = number.abs().to_bits() - ((127 - 15) << 23);
                let sign = u16::from(number.is_sign_negative()) << 15;
                ((bits >> 13) as u16 | sign).to_le_bytes().to_vec()
            }
            Self::Brain => ((number.to_bits() >> 16) as u16).to_le_bytes().to_vec(),
            Self::Single => number.to_le_bytes().to_vec(),
            Self::Double => f64::from(number).to_le_bytes().to_vec(),
        }
    }
}

/// Size that the current operator computes, if the probe computed it.
pub(super) fn expected() -> Option<u64> {
    EXPECTED.get()
}

/// Maximum number of different integers among those that the current operator searches.
pub(super) fn most_values() -> Option<u64> {
    MOST_VALUES.get()
}

/// Completes a read-back: `bytes` hold the known contents, and zeros for the rest. Returns the assumptions
/// that answered.
pub(super) fn complete(bytes: &mut [u8], found: Found) -> Vec<Assumption> {
    let mut assumptions = found.answers;
    let reads = READS.get();
    if found.known < bytes.len() && bytes.len() as u64 <= MAX_VALUE_BYTES {
        match (bytes.len(), expected()) {
            (4 | 8, Some(size)) if found.known == 0 => {
                bytes.copy_from_slice(&size.to_le_bytes()[..bytes.len()]);
            }
            (1, _) => assumptions.push(Assumption::UnknownTruth),
            _ if !reads.become_integers => assumptions.push(Assumption::UnknownNumber),
            _ => assumptions.push(Assumption::UnknownInteger),
        }
    }
    ASSUMPTIONS.set(ASSUMPTIONS.get() + assumptions.len() as u64);
    if assumptions.contains(&Assumption::UnknownNumber) {
        UNKNOWN_FLOATS.set(UNKNOWN_FLOATS.get() + 1);
    }
    if assumptions.contains(&Assumption::UnknownAny) {
        UNKNOWN_ANY.set(UNKNOWN_ANY.get() + 1);
    }
    if assumptions.iter().any(|assumption| is_position(*assumption) || is_integer(*assumption)) {
        UNKNOWN_INTEGERS.set(UNKNOWN_INTEGERS.get() + 1);
    }
    let others = machine::get().ok().map(|machine| &machine.setup.others);
    if let Some((number, others)) = others.and_then(|others| Some((others.number?, others))) {
        let positions = others.positions;
        let other = if others.varied { Other::Varied { positions } } else { Other::Number(number) };
        replace_unknown(bytes, &assumptions, reads.float, other);
    }
    if bytes.len() == 1 && assumptions.iter().copied().any(is_condition) {
        CONDITIONS.set(CONDITIONS.get() + 1);
        if others.is_some_and(|others| others.conditions.is_some()) {
            flip_condition(bytes);
        }
    }
    assumptions
}

/// What replaces the zeros of unknown numbers.
#[derive(Clone, Copy)]
enum Other {
    /// This integer, or one of a few floating-point numbers.
    Number(u16),
    /// Another number each time; with `positions`, also for these, which may be out of range.
    Varied { positions: bool },
}

/// Replaces the zeros of unknown numbers, to detect whether anything depends on them.
fn replace_unknown(bytes: &mut [u8], assumptions: &[Assumption], float: Option<Float>, other: Other) {
    if assumptions == [Assumption::Ranking] {
        return other_positions(bytes);
    }
    let is_position = assumptions.iter().copied().any(is_position);
    let integer = |replaced: usize| match other {
        Other::Number(_) | Other::Varied { positions: false } if is_position => OTHER_POSITION,
        Other::Number(number) => number,
        Other::Varied { .. } => scattered(replaced as u64, VARIED_INTEGERS - 1) as u16 + 1,
    };
    if is_position || assumptions.iter().copied().any(is_integer) {
        let width = float.map_or_else(|| integer_width(bytes.len()), Float::width);
        replace_zeros(bytes, width, |replaced| match float {
            Some(float) => float.encode(f32::from(integer(replaced))),
            None => encode_integer(integer(replaced), width),
        });
    } else if let Some(float) = float.filter(|_| assumptions.contains(&Assumption::UnknownNumber)) {
        replace_zeros(bytes, float.width(), |replaced| {
            float.encode(match other {
                // No threshold has all of them on one side.
                Other::Number(number) if number > MAX_SMALL => OTHER_FLOATS[replaced % OTHER_FLOATS.len()],
                Other::Number(_) => SMALL_FLOATS[replaced % SMALL_FLOATS.len()],
                Other::Varied { .. } => varied_float(replaced),
            })
        });
    }
}

/// The n-th of floating-point numbers that vary: between 0 and 1, but for a few that are larger.
fn varied_float(number: usize) -> f32 {
    let part = (scattered(number as u64, VARIED_PARTS - 1) + 1) as f32 / VARIED_PARTS as f32;
    if number % RARE == RARE - 1 { part * LARGE } else { part }
}

/// Inverts a condition on unknown values, a limited number of times: a loop may wait for it. The probe, which
/// knows the place, takes that back where another place is to be tried.
fn flip_condition(bytes: &mut [u8]) {
    if FLIPS.get() < MAX_FLIPS {
        for truth in bytes {
            *truth = u8::from(*truth == 0);
        }
        FLIPS.set(FLIPS.get() + 1);
    }
}

fn is_condition(assumption: Assumption) -> bool {
    matches!(assumption, Assumption::UnknownTruth | Assumption::AllTrue | Assumption::UnknownAny)
}

fn is_position(assumption: Assumption) -> bool {
    matches!(assumption, Assumption::Position | Assumption::Ranking)
}

fn is_integer(assumption: Assumption) -> bool {
    matches!(assumption, Assumption::UnknownInteger | Assumption::IntegerSum | Assumption::IntegerExtreme)
}

/// The width of integers in a read of `length` bytes: the largest that divides it.
fn integer_width(length: usize) -> usize {
    [8, 4].into_iter().find(|width| length.is_multiple_of(*width)).unwrap_or(length)
}

/// Encodes an integer in a word of this width.
fn encode_integer(number: u16, width: usize) -> Vec<u8> {
    let mut word = u64::from(number).to_le_bytes().to_vec();
    word.resize(width, 0);
    word
}

/// Replaces the positions of a ranking with others that are also in range. If none is position 0, or there is
/// only one, adds one to each (the guess leaves room for that); else replaces each with its successor,
/// cyclically.
fn other_positions(bytes: &mut [u8]) {
    let words = bytes.as_chunks_mut::<8>().0;
    let (least, greatest) = words.iter().fold((i64::MAX, 0), |(least, greatest), word| {
        let position = i64::from_le_bytes(*word);
        (least.min(position), greatest.max(position))
    });
    for word in words {
        let position = i64::from_le_bytes(*word);
        let other = if least > 0 || greatest == 0 || position < greatest { position + 1 } else { 0 };
        *word = other.to_le_bytes();
    }
}

/// Replaces each zero of this width with the number that `other` encodes for the zeros replaced so far.
fn replace_zeros(bytes: &mut [u8], width: usize, other: impl Fn(usize) -> Vec<u8>) {
    for word in bytes.chunks_exact_mut(width.max(1)).filter(|word| word.iter().all(|byte| *byte == 0)) {
        let replaced = REPLACED.get();
        REPLACED.set(replaced.wrapping_add(1));
        word.copy_from_slice(&other(replaced));
    }
}

/// Copies the contents of `size` bytes to `out` if all of them follow from what the script wrote. Returns 1
/// if so, else 0.
///
/// # Safety
/// `out` must be writable for `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memfit_vgpu_contents(address: u64, size: u64, out: *mut u8) -> i32 {
    match MEMORY.get(address, size) {
        Some((bytes, Origin::True)) if !out.is_null() => {
            // SAFETY: the caller guarantees the space.
            unsafe { slice::from_raw_parts_mut(out, bytes.len()) }.copy_from_slice(&bytes);
            1
        }
        _ => 0,
    }
}

/// Records an operator's result that the probe also computed on the host.
///
/// # Safety
/// `source` must be readable for `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memfit_vgpu_computed(address: u64, size: u64, source: *const u8) {
    if !source.is_null() && (1..=MAX_PIECE_BYTES as u64).contains(&size) {
        // SAFETY: the caller guarantees that the bytes are readable.
        MEMORY.write(address, unsafe { slice::from_raw_parts(source, size as usize) }, Origin::True);
    }
}

/// Sets the size that the current operator of this thread computes; a negative number clears it.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_expect(size: i64) {
    EXPECTED.set(u64::try_from(size).ok());
}

/// Names the integers of `size` bytes each that the current operator of this thread searches for different
/// ones; no bytes clear it.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_search(address: u64, bytes: u64, size: usize) {
    let range = if bytes == 0 { None } else { MEMORY.bounds(address, bytes, size) };
    MOST_VALUES.set(range.and_then(|((least, greatest), _)| greatest.abs_diff(least).checked_add(1)));
}

/// Sets the type of this thread's next reads: 1 to 4 for the floating-point types, negated if the number
/// becomes an integer, 0 for any type. Returns the thread's reads of uncomputed integers so far.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_reading(code: i32) -> u64 {
    READS.set(Reads::from_code(code));
    UNKNOWN_INTEGERS.get()
}

/// Number of this thread's reads of uncomputed floating-point numbers so far.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_unknown_floats() -> u64 {
    UNKNOWN_FLOATS.get()
}

/// Number of assumptions that answered this thread's reads so far.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_assumptions() -> u64 {
    ASSUMPTIONS.get()
}

/// Number of this thread's reads of `any` of unknown values so far.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_unknown_any() -> u64 {
    UNKNOWN_ANY.get()
}

/// Number of this thread's conditions on unknown values so far.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_conditions() -> u64 {
    CONDITIONS.get()
}

/// Number of those that were inverted.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_flips() -> u64 {
    FLIPS.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_inverted_only_if_nobody_computed_it() {
        for (assumption, is_one) in [
            (Assumption::UnknownTruth, true),
            (Assumption::UnknownAny, true),
            (Assumption::AllTrue, true),
            (Assumption::Finite, false), // A correct script passes that.
            (Assumption::UnknownNumber, false),
        ] {
            assert_eq!(is_condition(assumption), is_one, "{assumption:?}");
        }
        let flipped = |truth: u8| {
            let mut bytes = [truth];
            flip_condition(&mut bytes);
            bytes[0]
        };
        assert_eq!((flipped(0), flipped(1), memfit_vgpu_flips()), (1, 0, 2));
        FLIPS.set(MAX_FLIPS);
        assert_eq!(flipped(0), 0, "a loop may wait for it");
    }

    #[test]
    fn conditions_that_nobody_computed_are_counted() {
        let counted = |length: usize, answers: Vec<Assumption>, known: usize| {
            let before = memfit_vgpu_conditions();
            complete(&mut vec![0; length], Found { answers, known, ..Found::default() });
            memfit_vgpu_conditions() - before
        };
        assert_eq!(counted(1, vec![], 0), 1);
        assert_eq!(counted(1, vec![Assumption::AllTrue], 1), 1);
        assert_eq!(counted(1, vec![], 1), 0, "it is known");
        assert_eq!(counted(4, vec![], 0), 0, "no condition");
    }

    #[test]
    fn an_unknown_number_is_an_integer_unless_it_is_said_to_be_none() {
        let answered = |length: usize| {
            let mut bytes = vec![0; length];
            (complete(&mut bytes, Found::default()), bytes)
        };
        let before = memfit_vgpu_reading(0);
        assert_eq!(answered(8).0, [Assumption::UnknownInteger]);
        assert_eq!(answered(1).0, [Assumption::UnknownTruth]);
        let floats = memfit_vgpu_unknown_floats();
        assert_eq!(memfit_vgpu_reading(3), before + 1);
        assert_eq!(answered(4).0, [Assumption::UnknownNumber]);
        assert_eq!(memfit_vgpu_unknown_floats(), floats + 1);
        assert_eq!(memfit_vgpu_reading(-3), before + 1);
        assert_eq!(answered(4).0, [Assumption::UnknownInteger], "it becomes one");
        assert_eq!(memfit_vgpu_reading(0), before + 2);
        memfit_vgpu_expect(300);
        assert_eq!(answered(8), (vec![], 300_u64.to_le_bytes().to_vec()));
        memfit_vgpu_expect(-1);
        assert_eq!(answered(8).0, [Assumption::UnknownInteger]);
        let mut part = vec![3, 0, 0, 0, 0, 0, 0, 0];
        let found = Found { known: 4, ..Found::default() };
        assert_eq!(complete(&mut part, found), [Assumption::UnknownInteger], "a part is not known");
    }

    #[test]
    fn other_positions_are_in_range_and_differ() {
        let other = |positions: &[i64]| {
            let mut bytes: Vec<u8> = positions.iter().flat_map(|position| position.to_le_bytes()).collect();
            other_positions(&mut bytes);
            bytes.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word)).collect::<Vec<_>>()
        };
        assert_eq!(other(&[1, 2, 3]), [2, 3, 4], "`topk` left room for one more");
        assert_eq!(other(&[0, 1, 2, 0, 1, 2]), [1, 2, 0, 1, 2, 0], "all there are, in two rows");
        assert_eq!(other(&[0]), [1], "the first of at least two");
    }

    #[test]
    fn another_number_takes_the_place_of_zeros_alone() {
        let mut bytes = [1_u64, 0, 5].map(u64::to_le_bytes).concat();
        assert_eq!(integer_width(24), 8);
        replace_zeros(&mut bytes, 8, |_| encode_integer(7, 8));
        assert_eq!(bytes, [1_u64, 7, 5].map(u64::to_le_bytes).concat());
        let mut narrow = [0_u8; 4];
        replace_zeros(&mut narrow, integer_width(4), |_| encode_integer(7, 4));
        assert_eq!(u32::from_le_bytes(narrow), 7);
        REPLACED.set(0);
        let mut reals = [0.5_f32, 0.0, 0.0, 0.0].map(f32::to_le_bytes).concat();
        replace_unknown(&mut reals, &[Assumption::UnknownNumber], Some(Float::Single), Other::Number(1032));
        assert_eq!(reals, [0.5_f32, 7.0, 0.5, -7.0].map(f32::to_le_bytes).concat());
        // The upper half of single precision.
        assert_eq!(Float::Brain.encode(1032.0), Float::Single.encode(1032.0)[2..]);
        assert_eq!(Float::Half.encode(7.0), [0x00, 0x47], "1.75 times 4: exponent 17, mantissa 0.75");
        assert_eq!(Float::Half.encode(-0.25), [0x00, 0xb4], "the sign, exponent 13");
        assert_eq!(Float::Half.encode(1032.0), [0x08, 0x64], "1024 + 8: exponent 25, mantissa 8");
    }

    #[test]
    fn the_number_takes_the_place_of_integers_and_positions_stay_in_range() {
        let read = |assumption: Assumption, float: Option<Float>| {
            let mut bytes = vec![0; 4];
            replace_unknown(&mut bytes, &[assumption], float, Other::Number(1032));
            bytes
        };
        assert_eq!(read(Assumption::IntegerSum, None), 1032_u32.to_le_bytes());
        assert_eq!(read(Assumption::UnknownInteger, Some(Float::Single)), 1032_f32.to_le_bytes());
        assert_eq!(read(Assumption::Position, None), 1_u32.to_le_bytes());
        REPLACED.set(0);
        assert_eq!(read(Assumption::UnknownNumber, Some(Float::Single)), 7_f32.to_le_bytes());
        assert_eq!(read(Assumption::UnknownNumber, Some(Float::Single)), 0.5_f32.to_le_bytes());
        assert_eq!(read(Assumption::AllTrue, None), [0; 4]);
    }

    #[test]
    fn varied_numbers_differ_from_read_to_read_and_are_exact_in_all_types() {
        REPLACED.set(0);
        let mut bytes = [0_u8; 8 * 40];
        replace_unknown(&mut bytes, &[Assumption::UnknownInteger], None, Other::Varied { positions: false });
        let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        assert_eq!(words.collect::<std::collections::BTreeSet<_>>(), (1..VARIED_INTEGERS).collect());
        for (positions, most) in [(false, 1), (true, VARIED_INTEGERS - 1)] {
            bytes.fill(0);
            replace_unknown(&mut bytes, &[Assumption::Position], None, Other::Varied { positions });
            let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
            assert_eq!(words.max(), Some(most), "a position");
        }
        let numbers: Vec<f32> = (0..100).map(varied_float).collect();
        assert!(numbers.iter().all(|number| (0.0..=8.0).contains(number) && *number != 0.0));
        assert!(numbers.iter().any(|number| *number > 4.0));
        // The lower half of single precision, and all but the first 10 bits of the mantissa, are zeros.
        assert!(numbers.iter().all(|number| number.to_bits().trailing_zeros() >= 16));
        let different: std::collections::BTreeSet<u32> = numbers.iter().map(|one| one.to_bits()).collect();
        assert!(different.len() > 70, "{different:?}");
    }
}
