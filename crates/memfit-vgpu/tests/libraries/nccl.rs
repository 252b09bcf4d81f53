//! NCCL.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use std::{
    ffi::CStr,
    sync::{Mutex, PoisonError},
};

use memfit_vocabulary::Remark;

use crate::calls::*;
use crate::machine::{COMMUNICATOR, alone, enter, ledger};
use crate::real;

const INVALID_ARGUMENT: i32 = 4;
const INT32: i32 = 2;
const SUM: i32 = 0;
const MAX: i32 = 2;

/// Held while a rank joins: the environment variable determines whether it is alone.
static JOINING: Mutex<()> = Mutex::new(());

fn new_id() -> UniqueId {
    let mut id = UniqueId([0; 16]);
    assert_eq!(ncclGetUniqueId(&mut id), 0);
    id
}

fn join(id: UniqueId, size: i32, rank: i32) -> usize {
    let _joining = JOINING.lock().unwrap_or_else(PoisonError::into_inner);
    create_handle(|communicator| ncclCommInitRank(communicator, size, id, rank))
}

/// Joins as the only existing rank of many.
fn join_alone(size: i32, rank: i32) -> usize {
    let id = new_id();
    let _joining = JOINING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: tests read the environment through the standard library only, which locks it.
    unsafe { std::env::set_var(memfit_channel::env::LONE_RANK, "1") };
    let communicator = create_handle(|communicator| ncclCommInitRank(communicator, size, id, rank));
    // SAFETY: as above.
    unsafe { std::env::remove_var(memfit_channel::env::LONE_RANK) };
    communicator
}

/// Runs three ranks of one communicator, a thread each.
fn three_ranks(body: impl Fn(i32, usize) + Sync) {
    enter();
    let id = new_id();
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let body = &body;
            scope.spawn(move || {
                let communicator = join(id, 3, rank);
                body(rank, communicator);
                assert_eq!(ncclCommDestroy(communicator), 0);
            });
        }
    });
}

fn size_and_rank(communicator: usize) -> (i32, i32, i32) {
    let (mut size, mut rank, mut card) = (-1, -1, -1);
    assert_eq!(ncclCommCount(communicator, &mut size), 0);
    assert_eq!(ncclCommUserRank(communicator, &mut rank), 0);
    assert_eq!(ncclCommCuDevice(communicator, &mut card), 0);
    (size, rank, card)
}

#[test]
fn a_communicator_knows_its_place() {
    let _cards = alone();
    let communicator = join_alone(8, 5);
    assert_eq!(size_and_rank(communicator), (8, 5, 0));
    let mut error = -1;
    assert_eq!(ncclCommGetAsyncError(communicator, &mut error), 0);
    assert_eq!(error, 0);
    let smaller =
        create_handle(|create_handle| ncclCommShrink(communicator, &[1, 7], 2, create_handle, 0, 0));
    assert_eq!(size_and_rank(smaller), (6, 4, 0), "one of those that left was before it");
    let part = create_handle(|create_handle| ncclCommSplit(communicator, 3, 2, create_handle, 0));
    assert_eq!(size_and_rank(part).1, 2, "the rank that the key asks for");
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
    let _cards = alone();
    let mut all = [0; 2];
    assert_eq!(ncclCommInitAll(&mut all, 2, &[1, 0]), 0);
    assert_eq!(all.map(size_and_rank), [(2, 0, 1), (2, 1, 0)]);
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
fn a_rank_alone_gets_what_it_sends() {
    let _cards = alone();
    let communicator = join_alone(3, 1);
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
fn small_known_contents_travel_from_rank_to_rank() {
    let _cards = alone();
    three_ranks(|rank, communicator| {
        let (mine, all) = (upload(&[10 * rank, 10 * rank + 1]), upload(&[0; 6]));
        assert_eq!(ncclAllGather(mine, all, 2, INT32, communicator, 0), 0);
        assert_eq!(download(all, 6), [0, 1, 10, 11, 20, 21], "gathered");
        assert_eq!(ncclAllReduce(mine, mine, 2, INT32, SUM, communicator, 0), 0);
        assert_eq!(download(mine, 2), [30, 33], "reduced");
        let parts = upload(&[rank; 6]);
        assert_eq!(ncclReduceScatter(parts, mine, 2, INT32, MAX, communicator, 0), 0);
        assert_eq!(download(mine, 2), [2, 2], "the greatest");
        let said = upload(&[100 + rank]);
        assert_eq!(ncclBroadcast(said, said, 1, INT32, 1, communicator, 0), 0);
        assert_eq!(download(said, 1), [101], "what the root said");
        for address in [mine, all, parts, said] {
            assert_eq!(cudaFree(address), 0);
        }
    });
}

#[test]
fn all_send_to_all_in_one_group() {
    let _cards = alone();
    three_ranks(|rank, communicator| {
        let sent: Vec<usize> = (0..3).map(|peer| upload(&[10 * rank + peer])).collect();
        let received: Vec<usize> = (0..3).map(|_| upload(&[-1])).collect();
        assert_eq!(ncclGroupStart(), 0);
        for peer in 0..3 {
            // Receiving first: outside a group, every rank would wait for every other.
            assert_eq!(ncclRecv(received[peer as usize], 1, INT32, peer, communicator, 0), 0);
            assert_eq!(ncclSend(sent[peer as usize], 1, INT32, peer, communicator, 0), 0);
        }
        assert_eq!(ncclGroupEnd(), 0);
        let got: Vec<i32> = received.iter().flat_map(|address| download(*address, 1)).collect();
        assert_eq!(got, [rank, 10 + rank, 20 + rank]);
        for address in sent.into_iter().chain(received) {
            assert_eq!(cudaFree(address), 0);
        }
    });
}

#[test]
fn a_split_asks_everyone() {
    let _cards = alone();
    three_ranks(|rank, communicator| {
        // Ranks 0 and 2 form a part, in reverse order; rank 1 stays alone.
        let (color, key) = (rank % 2, -rank);
        let part = create_handle(|create_handle| ncclCommSplit(communicator, color, key, create_handle, 0));
        assert_eq!(size_and_rank(part).0, if rank == 1 { 1 } else { 2 });
        assert_eq!(size_and_rank(part).1, i32::from(rank == 0));
        let (mine, all) = (upload(&[rank]), upload(&[-1; 2]));
        assert_eq!(ncclAllGather(mine, all, 1, INT32, part, 0), 0);
        if rank != 1 {
            assert_eq!(download(all, 2), [2, 0], "in the order of the part");
        }
        assert_eq!(ncclCommDestroy(part), 0);
        for address in [mine, all] {
            assert_eq!(cudaFree(address), 0);
        }
    });
}

#[test]
fn a_rank_that_is_gone_is_not_waited_for() {
    let _cards = alone();
    let id = new_id();
    // The other rank is a process that has ended: its contribution never arrives.
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "nccl::role_of_the_other_rank", "--ignored", "--test-threads=1"])
        .env("MEMFIT_TEST_ID", format!("{:?}", id.0))
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let communicator = join(id, 2, 0);
    let flag = upload(&[7]);
    assert_eq!(ncclAllReduce(flag, flag, 1, INT32, SUM, communicator, 0), 0);
    assert_eq!(download(flag, 1), [7], "taken to be its own");
    assert!(remarked(Remark::RankSilent), "and the report says so");
    assert_eq!(ncclCommDestroy(communicator), 0);
    assert_eq!(cudaFree(flag), 0);
}

#[test]
fn a_part_that_nobody_sizes_has_the_size_of_the_whole() {
    let _cards = alone();
    let communicator = join_alone(8, 3);
    let part = create_handle(|create_handle| ncclCommSplit(communicator, 0, 5, create_handle, 0));
    assert_eq!((size_and_rank(part).0, size_and_rank(part).1), (8, 5));
    assert!(remarked(Remark::NcclSplit));
    for each in [part, communicator] {
        assert_eq!(ncclCommDestroy(each), 0);
    }
}

#[test]
fn message_that_does_not_fit_on_the_board_is_reported() {
    let _cards = alone();
    let id = new_id();
    let both = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let both = &both;
            scope.spawn(move || {
                let communicator = join(id, 2, rank);
                both.wait();
                if rank == 0 {
                    fill_boards();
                    let flag = upload(&[7]);
                    assert_eq!(ncclSend(flag, 1, INT32, 1, communicator, 0), 0);
                    assert_eq!(cudaFree(flag), 0);
                }
                both.wait();
                assert_eq!(ncclCommDestroy(communicator), 0);
            });
        }
    });
    assert!(remarked(Remark::RanksFull));
}

/// Extends the boards of the run to their maximum size, without writing that much.
fn fill_boards() {
    const LONGER_THAN_ANY: u64 = 1 << 30;
    let run = std::env::var_os(memfit_channel::env::RUN_DIR).unwrap();
    let files = std::fs::read_dir(run).unwrap().map(|entry| entry.unwrap());
    let boards: Vec<_> =
        files.filter(|file| file.file_name().to_string_lossy().starts_with("board-")).collect();
    assert!(!boards.is_empty());
    for board in boards {
        std::fs::OpenOptions::new().write(true).open(board.path()).unwrap().set_len(LONGER_THAN_ANY).unwrap();
    }
}

#[test]
#[ignore = "child process of the other tests"]
fn role_of_the_other_rank() {
    let id = std::env::var("MEMFIT_TEST_ID").unwrap();
    let words: Vec<u64> = id.trim_matches(['[', ']']).split(", ").map(|word| word.parse().unwrap()).collect();
    join(UniqueId(words.try_into().unwrap()), 2, 1);
}

#[test]
fn buffers_come_with_what_is_used() {
    let _cards = alone();
    // The ledger exists from the first call on.
    let (mine, all) = (upload(&[1]), upload(&[0; 4]));
    let total = || ledger().cards[0].outside.communication;
    // Other tests leave communicators of ranks that are gone.
    let of_others = total();
    let communicator = join_alone(4, 0);
    let booked = || total() - of_others;
    let start = booked();
    assert!(start > 0, "something from the start");
    assert_eq!(ncclAllGather(mine, all, 1, INT32, communicator, 0), 0);
    let ring = booked();
    assert!(ring > start, "rings");
    assert_eq!(ncclAllReduce(mine, mine, 1, INT32, SUM, communicator, 0), 0);
    assert_eq!(booked(), COMMUNICATOR, "and trees, which make it whole");
    assert_eq!(ncclAllReduce(mine, mine, 1, INT32, SUM, communicator, 0), 0);
    assert_eq!(booked(), COMMUNICATOR, "once");
    for (peer, more) in [(1, true), (1, false), (2, true), (0, false)] {
        let before = booked();
        assert_eq!(ncclSend(mine, 1, INT32, peer, communicator, 0), 0);
        assert_eq!(booked() > before, more, "peer {peer}");
    }
    assert_eq!(ncclCommDestroy(communicator), 0);
    assert_eq!(booked(), 0, "all of it goes");
    for address in [mine, all] {
        assert_eq!(cudaFree(address), 0);
    }
}

#[test]
fn its_memory_is_the_cards() {
    let _cards = alone();
    let mut address = 0;
    // The ledger exists from the first call on.
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
    // SAFETY: a NUL-terminated string, with or without the real library.
    let text = |code| unsafe { CStr::from_ptr(ncclGetErrorString(code)) }.to_str().unwrap();
    assert!(!text(4).is_empty());
    if real::loaded() {
        assert_eq!(text(0), "no error");
    }
}
