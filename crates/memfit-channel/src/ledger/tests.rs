//! Tests within one process; `tests/processes.rs` has those between processes.

use std::{fs, path::PathBuf, sync::atomic::AtomicU32};

use memfit_devices::{Bytes, Catalogue, Overhead};
use proptest::prelude::*;

use super::*;
use crate::{CardSetup, PROTOCOL};

const MIB: u64 = 1 << 20;

/// A temporary run directory, removed with the test.
struct Run(PathBuf);

impl Run {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("memfit-ledger-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn dir(&self) -> RunDir {
        RunDir::new(&self.0)
    }

    fn ledger(&self, capacities: &[u64]) -> Ledger {
        Ledger::open(&self.dir(), &setup(capacities), None).unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn setup(capacities: &[u64]) -> Setup {
    let catalogue = Catalogue::builtin().unwrap();
    let device = catalogue.find("t4").unwrap();
    let card =
        |&bytes: &u64| CardSetup::new(device.clone().with_memory(Bytes::new(bytes)), Overhead::default());
    Setup::new(capacities.iter().map(card).collect())
}

fn interval(low: u64, typical: u64, high: u64) -> Interval {
    Interval { low: Bytes::from_mib(low), typical: Bytes::from_mib(typical), high: Bytes::from_mib(high) }
}

#[test]
fn refuses_what_does_not_fit_with_everything_outside_at_its_upper_bound() {
    let run = Run::new();
    let ledger = run.ledger(&[100 * MIB]);
    ledger.book(0, Outside::Context, interval(5, 10, 20)).unwrap();
    ledger.book(0, Outside::Libraries, interval(1, 2, 3)).unwrap();
    assert_eq!(ledger.free(0), Ok((77 * MIB, 100 * MIB)));
    assert_eq!(ledger.allocate(0, 77 * MIB + 1), Err(Refused::Full { asked: 77 * MIB + 1, free: 77 * MIB }));
    ledger.allocate(0, 77 * MIB).unwrap();
    assert_eq!(ledger.free(0), Ok((0, 100 * MIB)));
    assert_eq!(ledger.allocate(0, 1), Err(Refused::Full { asked: 1, free: 0 }));
    assert!(
        ledger.book(0, Outside::Communication, interval(0, 0, 1)).is_err(),
        "nor is there room for more outside"
    );
    ledger.release(0, 77 * MIB);
    ledger.allocate(0, MIB).unwrap();

    let card = ledger.view().cards[0];
    assert_eq!((card.peak, card.used), (77 * MIB, MIB));
    assert_eq!((card.peak_device, card.peak_device_upper), (89 * MIB, 100 * MIB));
    assert_eq!((card.outside_at_peak.context, card.outside_at_peak.libraries), (10 * MIB, 2 * MIB));
    assert_eq!((card.outside.context, card.outside_high), (10 * MIB, 23 * MIB));
}

#[test]
fn there_is_no_card_beyond_the_last() {
    let run = Run::new();
    let ledger = run.ledger(&[MIB, 2 * MIB]);
    assert_eq!(ledger.allocate(2, 1), Err(Refused::NoCard { card: 2 }));
    assert_eq!(ledger.free(7), Err(Refused::NoCard { card: 7 }));
    ledger.release(9, 1);
    assert_eq!(ledger.free(1), Ok((2 * MIB, 2 * MIB)));
}

#[test]
fn enormous_requests_are_refused_and_not_wrapped_around() {
    let run = Run::new();
    let ledger = run.ledger(&[100 * MIB]);
    ledger.allocate(0, MIB).unwrap();
    for asked in [u64::MAX, u64::MAX - MIB + 1, 1 << 63] {
        assert!(matches!(ledger.allocate(0, asked), Err(Refused::Full { .. })), "{asked}");
    }
    assert_eq!(ledger.view().cards[0].used, MIB);
}

#[test]
fn a_view_from_outside_says_the_same() {
    let run = Run::new();
    assert_eq!(LedgerView::read(&run.dir()).unwrap(), None, "before there is a ledger");
    let ledger = run.ledger(&[64 * MIB]);
    assert!(LedgerView::read(&run.dir()).unwrap().unwrap().processes.is_empty(), "nothing is booked yet");
    ledger.allocate(0, 3 * MIB).unwrap();
    ledger.pin(2 * MIB).unwrap();
    ledger.unpin(MIB);
    ledger.count(TallyKind::Unmodelled, "cudaNothing");
    let view = LedgerView::read(&run.dir()).unwrap().unwrap();
    assert_eq!(view, ledger.view());
    let process = &view.processes[0];
    assert_eq!((process.pid, process.alive), (std::process::id(), true));
    assert_eq!((process.pinned, process.peak_pinned), (MIB, 2 * MIB));
    assert_eq!(process.shares[0].used, 3 * MIB);
}

#[test]
fn a_dead_process_gives_everything_back_and_its_peaks_stay() {
    let run = Run::new();
    let dead = run.ledger(&[64 * MIB]);
    dead.book(0, Outside::Context, interval(1, 2, 4)).unwrap();
    dead.allocate(0, 60 * MIB).unwrap();
    let slot = *dead.slot.get().unwrap();
    dead.map.get().processes[slot].start.fetch_add(1, Relaxed);
    let living = run.ledger(&[64 * MIB]);
    living.allocate(0, 64 * MIB).unwrap();
    let view = living.view();
    assert_eq!((view.cards[0].used, view.cards[0].outside_high), (64 * MIB, 0));
    assert!(!view.processes[slot].alive);
    assert_eq!(view.processes[slot].shares[0].peak, 60 * MIB);
    assert_eq!(view.processes[slot].shares[0].peak_device, 62 * MIB);
}

/// A slot with this test's own process id but another start time: the kernel has reused the id.
#[test]
fn a_reused_process_id_does_not_keep_the_dead_alive() {
    let run = Run::new();
    let dead = run.ledger(&[10 * MIB]);
    dead.allocate(0, 9 * MIB).unwrap();
    let slot = *dead.slot.get().unwrap();
    dead.map.get().processes[slot].start.fetch_add(1, Relaxed);

    let living = run.ledger(&[10 * MIB]);
    living.allocate(0, 10 * MIB).unwrap();
    let view = living.view();
    assert_eq!(view.cards[0].used, 10 * MIB);
    assert_eq!(view.cards[0].peak, 10 * MIB, "the dead one's bytes are not in the peak");
}

#[test]
fn slots_of_the_dead_are_used_again_when_all_are_taken() {
    let run = Run::new();
    let ledger = run.ledger(&[10 * MIB]);
    for process in &ledger.map.get().processes {
        process.state.store(SlotState::Live as u32, Relaxed);
        process.pid.store(u32::MAX - 1, Relaxed);
    }
    ledger.allocate(0, MIB).unwrap();
    assert_eq!(ledger.view().cards[0].used, MIB);
}

#[test]
fn a_slot_is_taken_from_a_helper_before_a_rank() {
    let run = Run::new();
    let ledger = run.ledger(&[10 * MIB]);
    let slots = &ledger.map.get().processes;
    for (number, process) in slots.iter().enumerate() {
        process.state.store(SlotState::Gone as u32, Relaxed);
        process.rank.store(if number == 5 || number == 9 { u32::MAX } else { 0 }, Relaxed);
        process.shares[0].peak_device_upper.store(MIB, Relaxed);
    }
    slots[5].shares[0].peak_device_upper.store(2 * MIB, Relaxed);
    ledger.allocate(0, MIB).unwrap();
    assert_eq!(ledger.slot.get(), Some(&9), "a helper's, and of these the one with the lower peak");
}

#[test]
fn a_ledger_of_another_version_or_size_is_refused() {
    let run = Run::new();
    let ledger = run.ledger(&[MIB]);
    ledger.map.get().protocol.store(PROTOCOL + 1, Relaxed);
    assert!(matches!(LedgerView::read(&run.dir()), Err(ChannelError::Invalid { .. })));
    fs::write(run.dir().ledger(), b"short").unwrap();
    assert!(LedgerView::read(&run.dir()).is_err());
    assert!(Ledger::open(&run.dir(), &setup(&[MIB]), None).is_err());
}

#[test]
fn names_are_counted_apart_by_kind_and_cut_where_they_are_too_long() {
    let run = Run::new();
    let ledger = run.ledger(&[MIB]);
    let long = "é".repeat(NAME_BYTES);
    for _ in 0..3 {
        ledger.count(TallyKind::Unmodelled, "a");
        ledger.count(TallyKind::Note, &long);
    }
    ledger.count(TallyKind::ValuePolicy, "a");
    let tally: Vec<_> =
        ledger.view().tally.into_iter().map(|entry| (entry.kind, entry.name, entry.count)).collect();
    assert_eq!(
        tally,
        [
            (TallyKind::Unmodelled, "a".to_owned(), 3),
            (TallyKind::ValuePolicy, "a".to_owned(), 1),
            (TallyKind::Note, "é".repeat(NAME_BYTES / 2), 3),
        ]
    );
}

#[test]
fn a_full_tally_loses_new_names_and_goes_on_counting_old_ones() {
    let run = Run::new();
    let ledger = run.ledger(&[MIB]);
    for name in 0..MAX_TALLY + 10 {
        ledger.count(TallyKind::Note, &name.to_string());
    }
    ledger.count(TallyKind::Note, "0");
    let tally = ledger.view().tally;
    assert_eq!(tally.len(), MAX_TALLY);
    assert_eq!(tally.iter().find(|entry| entry.name == "0").unwrap().count, 2);
}

#[test]
fn threads_count_every_time() {
    let run = Run::new();
    let ledger = run.ledger(&[MIB]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..1000 {
                    ledger.count(TallyKind::Note, &(round % 40).to_string());
                }
            });
        }
    });
    let tally = ledger.view().tally;
    assert_eq!((tally.len(), tally.iter().map(|entry| entry.count).sum::<u64>()), (40, 4000));
}

#[test]
fn threads_together_never_pass_the_capacity() {
    const CAPACITY: u64 = 64;
    let run = Run::new();
    let ledger = run.ledger(&[CAPACITY]);
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            let ledger = &ledger;
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..400u64 {
                    let bytes = (round * 7 + thread * 13) % 30;
                    if ledger.allocate(0, bytes).is_ok() {
                        held.push(bytes);
                    } else if let Some(bytes) = held.pop() {
                        ledger.release(0, bytes);
                    }
                    assert!(ledger.view().cards[0].used <= CAPACITY);
                }
                for bytes in held {
                    ledger.release(0, bytes);
                }
            });
        }
    });
    let card = ledger.view().cards[0];
    assert_eq!(card.used, 0);
    assert!(card.peak <= CAPACITY && card.peak > CAPACITY / 2, "{}", card.peak);
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize, u64),
    Release(usize),
    Book(usize, u64, u64),
    Unbook(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..2usize, 0..600u64).prop_map(|(card, bytes)| Step::Allocate(card, bytes)),
        2 => (0..2usize).prop_map(Step::Release),
        1 => (0..2usize, 0..50u64, 0..50u64).prop_map(|(card, typical, more)| Step::Book(card, typical, more)),
        1 => (0..2usize).prop_map(Step::Unbook),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Compares the ledger with a simple model: refusals, held memory, and every peak.
    #[test]
    fn the_books_balance(steps in proptest::collection::vec(step(), 1..80)) {
        const CAPACITIES: [u64; 2] = [1000, 1500];
        let run = Run::new();
        let ledger = run.ledger(&CAPACITIES);
        let mut held: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
        let mut outside: [Vec<Interval>; 2] = [Vec::new(), Vec::new()];
        let mut peaks = [(0, 0, 0); 2];
        for step in steps {
            let (Step::Allocate(card, _) | Step::Release(card) | Step::Book(card, ..) | Step::Unbook(card)) = step;
            let high: u64 = outside[card].iter().map(|size| size.high.get()).sum();
            let free = CAPACITIES[card] - held[card].iter().sum::<u64>() - high;
            match step {
                Step::Allocate(_, bytes) => {
                    let answer = ledger.allocate(card, bytes);
                    prop_assert_eq!(answer.is_ok(), bytes <= free);
                    if answer.is_ok() {
                        held[card].push(bytes);
                    }
                }
                Step::Release(_) => {
                    if let Some(bytes) = held[card].pop() {
                        ledger.release(card, bytes);
                    }
                }
                Step::Book(_, typical, more) => {
                    let size = Interval {
                        low: Bytes::ZERO,
                        typical: Bytes::new(typical),
                        high: Bytes::new(typical + more),
                    };
                    let answer = ledger.book(card, Outside::Communication, size);
                    prop_assert_eq!(answer.is_ok(), size.high.get() <= free);
                    if answer.is_ok() {
                        outside[card].push(size);
                    }
                }
                Step::Unbook(_) => {
                    if let Some(size) = outside[card].pop() {
                        ledger.unbook(card, Outside::Communication, size);
                    }
                }
            }
            let used: u64 = held[card].iter().sum();
            let typical: u64 = outside[card].iter().map(|size| size.typical.get()).sum();
            let high: u64 = outside[card].iter().map(|size| size.high.get()).sum();
            let peak = &mut peaks[card];
            *peak = (peak.0.max(used), peak.1.max(used + typical), peak.2.max(used + high));
            prop_assert!(used + high <= CAPACITIES[card]);
            prop_assert_eq!(ledger.free(card), Ok((CAPACITIES[card] - used - high, CAPACITIES[card])));
            let view = ledger.view().cards[card];
            prop_assert_eq!((view.used, view.outside.communication, view.outside_high), (used, typical, high));
            prop_assert_eq!((view.peak, view.peak_device, view.peak_device_upper), *peak);
        }
    }
}
