//! Numbers that the host reads back and nobody computed, and what the probe tells of them: which type is
//! being read, and what an operator under way computes as a size.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{cell::Cell, slice};

use memfit_kernels::memory::{Found, LARGEST_PIECE, Memory, Origin};
use memfit_vocabulary::Assumption;

use super::{MEMORY, MOST_VALUES};
use crate::machine;

thread_local! {
    /// Whether what is read now is known to be no integer.
    static READS_FLOATS: Cell<bool> = const { Cell::new(false) };
    /// The size that the operator under way computes.
    static EXPECTED: Cell<Option<u64>> = const { Cell::new(None) };
    /// Reads so far of integers that nobody computed.
    static UNKNOWN_INTEGERS: Cell<u64> = const { Cell::new(0) };
    /// Assumptions that answered so far.
    static ASSUMPTIONS: Cell<u64> = const { Cell::new(0) };
}

/// The size that the operator under way computes, if the probe computed it.
pub(super) fn expected() -> Option<u64> {
    EXPECTED.get()
}

/// Completes what the host reads: `bytes` hold what is known, and zeros for the rest. Gives the assumptions
/// that answered.
pub(super) fn complete(bytes: &mut [u8], found: Found) -> Vec<Assumption> {
    let mut assumptions = found.answers;
    if found.known < bytes.len() && bytes.len() as u64 <= MOST_VALUES {
        match (bytes.len(), expected()) {
            (4 | 8, Some(size)) if found.known == 0 => {
                bytes.copy_from_slice(&size.to_le_bytes()[..bytes.len()]);
            }
            (1, _) => assumptions.push(Assumption::UnknownTruth),
            _ if READS_FLOATS.get() => assumptions.push(Assumption::UnknownNumber),
            _ => assumptions.push(Assumption::UnknownInteger),
        }
    }
    ASSUMPTIONS.set(ASSUMPTIONS.get() + assumptions.len() as u64);
    if let Some(other) = assumptions.iter().copied().filter_map(other_number).min() {
        UNKNOWN_INTEGERS.set(UNKNOWN_INTEGERS.get() + 1);
        if machine::get().is_ok_and(|machine| machine.setup.other_numbers) {
            replace_zeros(bytes, other);
        }
    }
    assumptions
}

/// The number that a second run reads where the first read zero, to see whether anything depends on it;
/// `None` for what is no unknown integer.
fn other_number(assumption: Assumption) -> Option<u8> {
    match assumption {
        // A position of at least two.
        Assumption::Position => Some(1),
        Assumption::UnknownInteger | Assumption::IntegerSum | Assumption::IntegerExtreme => Some(7),
        _ => None,
    }
}

/// Puts a small number in the place of each zero.
fn replace_zeros(bytes: &mut [u8], other: u8) {
    let size = [8, 4].into_iter().find(|size| bytes.len().is_multiple_of(*size)).unwrap_or(bytes.len());
    for word in bytes.chunks_exact_mut(size.max(1)).filter(|word| word.iter().all(|byte| *byte == 0)) {
        word[0] = other;
    }
}

/// Copies the content of `size` bytes to `out`, if all of it follows from what the script wrote; 1 if so,
/// else 0.
///
/// # Safety
/// `out` is good for writing `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memfit_vgpu_contents(address: u64, size: u64, out: *mut u8) -> i32 {
    match MEMORY.get(address, size) {
        Some((bytes, Origin::True)) if !out.is_null() => {
            // SAFETY: the caller vouches for the room.
            unsafe { slice::from_raw_parts_mut(out, bytes.len()) }.copy_from_slice(&bytes);
            1
        }
        _ => 0,
    }
}

/// Records what an operator has computed, which the probe computed on the host as well.
///
/// # Safety
/// `source` is good for reading `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memfit_vgpu_computed(address: u64, size: u64, source: *const u8) {
    if !source.is_null() && (1..=LARGEST_PIECE as u64).contains(&size) {
        // SAFETY: the caller vouches for the bytes.
        MEMORY.write(address, unsafe { slice::from_raw_parts(source, size as usize) }, Origin::True);
    }
}

/// Tells the size that the operator under way in this thread computes; a negative one tells of none.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_expect(size: i64) {
    EXPECTED.set(u64::try_from(size).ok());
}

/// Tells whether what this thread reads from now on is known to be no integer. Gives the number of its reads
/// so far of integers that nobody computed.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_reading(floats: i32) -> u64 {
    READS_FLOATS.set(floats != 0);
    UNKNOWN_INTEGERS.get()
}

/// The number of assumptions that answered reads of this thread so far.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_assumptions() -> u64 {
    ASSUMPTIONS.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_number_is_an_integer_unless_it_is_said_to_be_none() {
        let answered = |length: usize| {
            let mut bytes = vec![0; length];
            (complete(&mut bytes, Found::default()), bytes)
        };
        let before = memfit_vgpu_reading(0);
        assert_eq!(answered(8).0, [Assumption::UnknownInteger]);
        assert_eq!(answered(1).0, [Assumption::UnknownTruth]);
        assert_eq!(memfit_vgpu_reading(1), before + 1);
        assert_eq!(answered(4).0, [Assumption::UnknownNumber]);
        assert_eq!(memfit_vgpu_reading(0), before + 1);
        memfit_vgpu_expect(300);
        assert_eq!(answered(8), (vec![], 300_u64.to_le_bytes().to_vec()));
        memfit_vgpu_expect(-1);
        assert_eq!(answered(8).0, [Assumption::UnknownInteger]);
        let mut part = vec![3, 0, 0, 0, 0, 0, 0, 0];
        let found = Found { known: 4, ..Found::default() };
        assert_eq!(complete(&mut part, found), [Assumption::UnknownInteger], "a part is not known");
    }

    #[test]
    fn another_number_takes_the_place_of_zeros_alone() {
        let mut bytes = [1_u64, 0, 5].map(u64::to_le_bytes).concat();
        replace_zeros(&mut bytes, 7);
        assert_eq!(bytes, [1_u64, 7, 5].map(u64::to_le_bytes).concat());
        let mut narrow = [0_u8; 4];
        replace_zeros(&mut narrow, 7);
        assert_eq!(u32::from_le_bytes(narrow), 7);
    }
}
