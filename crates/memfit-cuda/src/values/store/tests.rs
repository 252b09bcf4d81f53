//! Tests of the store of known bytes against a plain array.

use std::cell::RefCell;

use proptest::prelude::*;

use memfit_vocabulary::Assumption;

use super::*;

const BASE: u64 = 0x7f00_0000_0000;

/// Counts how often each byte is covered; must agree with the store at all times.
#[derive(Default)]
struct Counted(RefCell<BTreeMap<u64, i32>>);

impl Counted {
    fn change(&self, address: u64, length: usize, by: i32) {
        let mut counts = self.0.borrow_mut();
        for byte in address..address + length as u64 {
            *counts.entry(byte).or_default() += by;
        }
    }
}

impl Cover for Counted {
    fn add(&self, address: u64, length: usize) {
        self.change(address, length, 1);
    }
    fn remove(&self, address: u64, length: usize) {
        self.change(address, length, -1);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, bytes: Vec<u8> },
    Fill { at: u64, byte: u8, length: u64 },
    Copy { to: u64, from: u64, length: u64 },
    Forget { at: u64, length: u64 },
}

const SPACE: u64 = 96;

fn step() -> impl Strategy<Value = Step> {
    let at = 0..SPACE - 32;
    prop_oneof![
        (at.clone(), prop::collection::vec(any::<u8>(), 0..32))
            .prop_map(|(at, bytes)| Step::Write { at, bytes }),
        (at.clone(), any::<u8>(), 0..32u64).prop_map(|(at, byte, length)| Step::Fill { at, byte, length }),
        (at.clone(), at.clone(), 0..32u64).prop_map(|(to, from, length)| Step::Copy { to, from, length }),
        (at, 0..32u64).prop_map(|(at, length)| Step::Forget { at, length }),
    ]
}

proptest! {
    /// Compares the store with the simplest model: an array of bytes that may be unknown.
    #[test]
    fn holds_what_an_array_of_bytes_would(steps in prop::collection::vec(step(), 0..60)) {
        let mut store = Store::default();
        let cover = Counted::default();
        let mut model = vec![None; SPACE as usize];
        for step in steps {
            match step {
                Step::Write { at, bytes } => {
                    store.write(BASE + at, &bytes, Origin::True, &cover);
                    for (index, byte) in bytes.iter().enumerate() {
                        model[at as usize + index] = Some(*byte);
                    }
                }
                Step::Fill { at, byte, length } => {
                    store.fill(BASE + at, byte, length, Origin::True, &cover);
                    model[at as usize..(at + length) as usize].fill(Some(byte));
                }
                Step::Copy { to, from, length } => {
                    store.copy(BASE + to, BASE + from, length, &cover);
                    model.copy_within(from as usize..(from + length) as usize, to as usize);
                }
                Step::Forget { at, length } => {
                    store.forget(BASE + at, length, &cover);
                    model[at as usize..(at + length) as usize].fill(None);
                }
            }
        }
        for (index, expected) in model.iter().enumerate() {
            let found = store.get(BASE + index as u64, 1).map(|(bytes, _)| bytes[0]);
            prop_assert_eq!(found, *expected, "byte {}", index);
            let covered = cover.0.borrow().get(&(BASE + index as u64)).copied().unwrap_or(0);
            prop_assert_eq!(covered, i32::from(expected.is_some()), "cover of byte {}", index);
        }
        let known = model.iter().flatten().count();
        let mut all = vec![0; SPACE as usize];
        prop_assert_eq!(store.read(BASE, &mut all).known, known);
    }
}

#[test]
fn reading_leaves_unknown_bytes_unchanged() {
    let mut store = Store::default();
    store.write(BASE + 4, &[1, 2], Origin::True, &());
    let mut out = [9; 8];
    assert_eq!(store.read(BASE, &mut out), Found { known: 2, ..Found::default() });
    assert_eq!(out, [9, 9, 9, 9, 1, 2, 9, 9]);
    assert_eq!(store.get(BASE, 8), None, "partly known is not known");
}

#[test]
fn an_answer_is_named_once_and_travels_with_copies() {
    let mut store = Store::default();
    store.write(BASE, &[1], Origin::Answer(Assumption::UnknownTruth), &());
    store.write(BASE + 1, &[2], Origin::Answer(Assumption::UnknownTruth), &());
    store.write(BASE + 2, &[3], Origin::True, &());
    store.copy(BASE + 100, BASE, 3, &());
    let mut out = [0; 3];
    assert_eq!(store.read(BASE + 100, &mut out).answers, [Assumption::UnknownTruth]);
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn long_writes_forget_and_are_not_kept() {
    let mut store = Store::default();
    store.write(BASE, &[7; 64], Origin::True, &());
    store.write(BASE, &vec![8; MAX_PIECE_BYTES + 1], Origin::True, &());
    assert_eq!((store.get(BASE, 64), store.kept_bytes()), (None, 0));
}

#[test]
fn the_oldest_go_first_and_the_bound_holds() {
    let mut store = Store::default();
    let piece = vec![5; MAX_PIECE_BYTES];
    let at = |index: usize| BASE + (index * MAX_PIECE_BYTES) as u64;
    let most = MAX_TOTAL_BYTES[0] / MAX_PIECE_BYTES;
    for index in 0..=most {
        store.write(at(index), &piece, Origin::True, &());
        // Writing the first piece again makes it the youngest.
        if index == most - 1 {
            store.write(at(0), &piece, Origin::True, &());
        }
    }
    assert_eq!(store.kept_bytes(), MAX_TOTAL_BYTES[0]);
    assert!(store.get(at(0), 1).is_some());
    assert!(store.get(at(1), 1).is_none());
    assert!(store.get(at(2), 1).is_some());
}

#[test]
fn large_pieces_do_not_evict_short_ones() {
    let mut store = Store::default();
    store.write(BASE, &[1; 4], Origin::True, &());
    for index in 1..=2 * MAX_TOTAL_BYTES[0] / MAX_PIECE_BYTES {
        let at = BASE + (index * MAX_PIECE_BYTES) as u64;
        store.write(at, &vec![5; MAX_PIECE_BYTES], Origin::True, &());
    }
    assert_eq!(store.get(BASE, 4), Some((vec![1; 4], Origin::True)));
    assert_eq!(store.kept_bytes(), MAX_TOTAL_BYTES[0] + 4);
}

#[test]
fn short_pieces_have_a_bound_of_their_own() {
    let mut store = Store::default();
    for index in 0..MAX_PIECES as u64 + 2 {
        store.fill(BASE + 16 * index, 0, 8, Origin::True, &());
    }
    assert_eq!(store.pieces.len(), MAX_PIECES);
    assert!(store.get(BASE + 16, 8).is_none());
    assert!(store.get(BASE + 32, 8).is_some());
}

#[test]
fn the_queue_of_ages_does_not_grow_with_rewriting() {
    let mut store = Store::default();
    for _ in 0..100_000 {
        store.write(BASE, &[1; 8], Origin::True, &());
    }
    let ages = store.shelves.iter().map(|shelf| shelf.ages.len()).sum::<usize>();
    assert!(ages < 4096, "{ages}");
}

#[test]
fn a_small_rest_does_not_hold_a_large_whole() {
    let mut store = Store::default();
    store.write(BASE, &vec![1; MAX_PIECE_BYTES], Origin::True, &());
    store.forget(BASE + 8, MAX_PIECE_BYTES as u64, &());
    let Content::Window { whole, .. } = &store.pieces[&BASE].bytes else { panic!("a window") };
    assert_eq!(whole.len(), 8);
}

#[test]
fn a_write_of_unknown_length_ends_with_the_piece() {
    let mut store = Store::default();
    store.write(BASE, &[1; 16], Origin::True, &());
    store.write(BASE + 16, &[2; 16], Origin::True, &());
    store.forget_from(BASE + 4, &());
    store.forget_from(BASE + 100, &());
    assert_eq!(store.get(BASE, 4), Some((vec![1; 4], Origin::True)));
    assert_eq!(store.get(BASE + 4, 1), None);
    assert!(store.get(BASE + 16, 16).is_some());
}

#[test]
fn extremes_hold_for_parts_and_copies_until_any_of_it_is_written_over() {
    let bytes: Vec<u8> = [3_i64, -100, 20, 0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let extremes = Extremes::from_bytes(&bytes).unwrap();
    let mut store = Store::default();
    store.summarise(100, 32, extremes, &());
    let range = (-100, 20);
    assert_eq!(store.extremes(100, 32, 8), Some((range, true)));
    // For a part, they are bounds. Extremes are unknown past the end, for other types, and for the bytes
    // themselves.
    assert_eq!(store.extremes(108, 8, 8), Some((range, false)));
    assert_eq!(store.extremes(108, 32, 8), None);
    assert_eq!(store.extremes(100, 32, 1), None);
    assert_eq!(store.get(100, 32), None);
    assert_eq!(store.read(100, &mut [7; 32]), Found::default());
    store.copy(500, 100, 32, &());
    store.write(116, &[1; 8], Origin::True, &());
    assert_eq!(store.extremes(100, 32, 8), None);
    assert_eq!(store.extremes(100, 16, 8), Some((range, false)));
    assert_eq!(store.extremes(500, 32, 8), Some((range, true)));
    store.forget_from(500, &());
    assert_eq!(store.extremes(500, 32, 8), None);
}
