//! NCCL.

use std::ffi::CStr;

use crate::calls::*;
use crate::machine::{alone, enter, ledger};
use crate::real;

const INVALID_ARGUMENT: i32 = 4;
const INT32: i32 = 2;
const SUM: i32 = 0;

fn join(size: i32, rank: i32) -> usize {
    let mut id = UniqueId([0; 16]);
    assert_eq!(ncclGetUniqueId(&mut id), 0);
    made(|communicator| ncclCommInitRank(communicator, size, id, rank))
}

fn place(communicator: usize) -> (i32, i32, i32) {
    let (mut size, mut rank, mut card) = (-1, -1, -1);
    assert_eq!(ncclCommCount(communicator, &mut size), 0);
    assert_eq!(ncclCommUserRank(communicator, &mut rank), 0);
    assert_eq!(ncclCommCuDevice(communicator, &mut card), 0);
    (size, rank, card)
}

#[test]
fn a_communicator_knows_its_place() {
    enter();
    let communicator = join(8, 5);
    assert_eq!(place(communicator), (8, 5, 0));
    let mut error = -1;
    assert_eq!(ncclCommGetAsyncError(communicator, &mut error), 0);
    assert_eq!(error, 0);
    let smaller = made(|made| ncclCommShrink(communicator, &[1, 7], 2, made, 0, 0));
    assert_eq!(place(smaller), (6, 4, 0), "one of those that left was before it");
    let part = made(|made| ncclCommSplit(communicator, 3, 2, made, 0));
    assert_eq!(place(part).1, 2, "the rank that the key asks for");
    let mut none = 1;
    assert_eq!(ncclCommSplit(communicator, -1, 0, &mut none, 0), 0);
    assert_eq!(none, 0, "no color, no part");
    for each in [part, smaller, communicator] {
        assert_eq!(ncclCommDestroy(each), 0);
    }
    let mut wrong = 0;
    for (size, rank) in [(0, 0), (4, 4), (4, -1)] {
        assert_eq!(ncclCommInitRank(&mut wrong, size, UniqueId([0; 16]), rank), INVALID_ARGUMENT);
    }
    assert_eq!(ncclCommCount(0, &mut error), INVALID_ARGUMENT);
}

#[test]
fn all_ranks_of_one_process_have_a_card_each() {
    enter();
    let mut all = [0; 2];
    assert_eq!(ncclCommInitAll(&mut all, 2, &[1, 0]), 0);
    assert_eq!(all.map(place), [(2, 0, 1), (2, 1, 0)]);
    assert_eq!(all.map(|each| ncclCommDestroy(each)), [0; 2]);
    assert_ne!(ncclCommInitAll(&mut all, 2, &[0, 9]), 0, "there is no such card");
}

#[test]
fn ids_are_never_the_same() {
    let mut ids = [UniqueId([0; 16]); 3];
    for id in &mut ids {
        assert_eq!(ncclGetUniqueId(id), 0);
    }
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
}

#[test]
fn every_rank_gets_what_this_one_sends() {
    enter();
    let communicator = join(3, 1);
    let (mine, all) = (upload(&[7, 8]), upload(&[0; 6]));
    assert_eq!(ncclAllGather(mine, all, 2, INT32, communicator, 0), 0);
    assert_eq!(download(all, 6), [7, 8, 7, 8, 7, 8]);
    let parts = upload(&[1, 2, 3, 4, 5, 6]);
    assert_eq!(ncclReduceScatter(parts, mine, 2, INT32, SUM, communicator, 0), 0);
    assert_eq!(download(mine, 2), [3, 4], "its own part");
    assert_eq!(ncclAllGather(mine, all, 2, 77, communicator, 0), INVALID_ARGUMENT, "no such type");
    assert_eq!(ncclSend(mine, 2, INT32, 3, communicator, 0), INVALID_ARGUMENT, "no such rank");
    assert_eq!(ncclSend(mine, 2, INT32, 2, communicator, 0), 0);
    for address in [mine, all, parts] {
        assert_eq!(cudaFree(address), 0);
    }
    assert_eq!(ncclCommDestroy(communicator), 0);
}

#[test]
fn its_memory_is_the_cards() {
    let _cards = alone();
    let mut address = 0;
    // The ledger is there from the first call on.
    assert_eq!(ncclMemAlloc(&mut address, 1), 0);
    assert_eq!(ncclMemFree(address), 0);
    let before = ledger().cards[0].used;
    assert_eq!(ncclMemAlloc(&mut address, 64 << 20), 0);
    assert_eq!(ledger().cards[0].used - before, 64 << 20);
    assert_eq!(ncclMemFree(address), 0);
    assert_eq!(ledger().cards[0].used, before);
    assert_ne!(ncclMemFree(address), 0, "twice");
    assert_ne!(ncclMemAlloc(&mut address, 1 << 40), 0, "more than there is");
}

#[test]
fn results_have_the_real_librarys_words() {
    // SAFETY: a string that ends with NUL, with or without the real library.
    let text = |code| unsafe { CStr::from_ptr(ncclGetErrorString(code)) }.to_str().unwrap();
    assert!(!text(4).is_empty());
    if real::loaded() {
        assert_eq!(text(0), "no error");
    }
}
