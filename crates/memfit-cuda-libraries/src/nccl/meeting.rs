//! Where the ranks of a communicator meet: what each of them hands in, as far as it is known, is left on a
//! board for the others.
//!
//! Device memory has no bytes behind it, but small contents are known: lengths, flags, pickled objects,
//! counts of tokens. Those do travel from rank to rank, so that ranks which differ stay different. A rank
//! waits for the others only where it can use what they hand in, and never for one that is gone, or that does
//! not come within [`PATIENCE`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memfit_channel::{Board, ProcessId, RunDir, env::LONE_RANK};
use memfit_vocabulary::Remark;

use super::communicator::Place;
use memfit_cuda::card;

/// More bytes than this do not travel; the same on all ranks, so that they agree on what does.
pub(super) const MOST: usize = memfit_channel::board::LONGEST_NOTE;
/// How long a rank that lives is waited for.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often it is asked whether it still lives.
const CHECK: Duration = Duration::from_millis(200);

/// The order of what is handed in: one lane for what all ranks do together, one for each pair.
pub(super) type Lane = u64;

/// The lane of what all ranks do together.
pub(super) const EVERYONE: Lane = 0;

/// The lane of what one rank sends to another.
pub(super) fn lane(from: i32, to: i32) -> Lane {
    1 << 63 | u64::from(from.unsigned_abs()) << 31 | u64::from(to.unsigned_abs())
}

/// What a note is; the first word of its head. The others are the rank, and the lane and the number, or the
/// process.
mod note {
    pub(super) const HELLO: u64 = 1;
    /// Nothing is known of what is handed in.
    pub(super) const UNKNOWN: u64 = 2;
    pub(super) const KNOWN: u64 = 3;
    /// Known because a rule answered, and not because the script said so.
    pub(super) const ANSWERED: u64 = 4;
}

/// What a rank handed in, and whether a rule answered for it.
pub(super) type Part = (Vec<u8>, bool);

/// One rank's view of the meeting.
pub(super) struct Meeting {
    board: Board,
    place: Place,
    /// The number of the operation that began last, by lane.
    begun: BTreeMap<Lane, u64>,
    /// The number of the operation that was done last, by lane.
    done: BTreeMap<Lane, u64>,
    /// What was read and not asked for yet, by lane, number and rank.
    read: BTreeMap<(Lane, u64, i32), Option<Part>>,
    peers: BTreeMap<i32, ProcessId>,
    /// Ranks that did not come: nobody waits for them twice.
    absent: BTreeSet<i32>,
}

impl Meeting {
    /// Joins the meeting of this name; nothing where this process stands alone for a rank of many, or has no
    /// run.
    pub(super) fn open(name: u64, place: Place) -> Option<Self> {
        if std::env::var_os(LONE_RANK).is_some_and(|value| !value.is_empty()) {
            return None;
        }
        let mut board = Board::open(&RunDir::from_env()?, name).ok()?;
        let me = ProcessId::current().ok()?;
        let head = [note::HELLO, rank_word(place.rank), u64::from(me.pid), me.start];
        board.post(head, &[]).ok().filter(|posted| *posted)?;
        Some(Self {
            board,
            place,
            begun: BTreeMap::new(),
            done: BTreeMap::new(),
            read: BTreeMap::new(),
            peers: BTreeMap::new(),
            absent: BTreeSet::new(),
        })
    }

    /// The number of the operation that begins now in a lane.
    pub(super) fn next(&mut self, lane: Lane) -> u64 {
        let begun = self.begun.entry(lane).or_default();
        *begun += 1;
        *begun
    }

    /// An operation is done: what was not asked for until now never will be.
    pub(super) fn done(&mut self, lane: Lane, number: u64) {
        self.done.insert(lane, number);
        let over: Vec<_> =
            self.read.range((lane, 0, i32::MIN)..=(lane, number, i32::MAX)).map(|(key, _)| *key).collect();
        for key in over {
            self.read.remove(&key);
        }
    }

    /// Hands something in, for the others to use.
    pub(super) fn post(&mut self, lane: Lane, number: u64, part: Option<(&[u8], bool)>) {
        let (kind, bytes) = match part {
            None => (note::UNKNOWN, [].as_slice()),
            Some((bytes, false)) => (note::KNOWN, bytes),
            Some((bytes, true)) => (note::ANSWERED, bytes),
        };
        let rank = rank_word(self.place.rank);
        if !matches!(self.board.post([kind, rank, lane, number], bytes), Ok(true)) {
            card::remark(Remark::RanksFull);
        }
    }

    /// What a rank handed in; nothing if that is not known, or if it does not come.
    pub(super) fn wait(&mut self, lane: Lane, number: u64, rank: i32) -> Option<Part> {
        let begun = Instant::now();
        let (mut pause, mut checked) = (Duration::from_micros(20), begun);
        loop {
            self.look();
            if let Some(part) = self.read.remove(&(lane, number, rank)) {
                return part;
            }
            if self.absent.contains(&rank) {
                return None;
            }
            if checked.elapsed() > CHECK {
                checked = Instant::now();
                if begun.elapsed() > PATIENCE || self.is_gone(rank) {
                    self.absent.insert(rank);
                    card::remark(Remark::RankSilent);
                    // Its last words may have come in the meantime.
                    self.look();
                    return self.read.remove(&(lane, number, rank)).flatten();
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }

    /// Whether a rank that said hello has ended, or waits to be ended.
    fn is_gone(&self, rank: i32) -> bool {
        let finished = |pid| RunDir::from_env().is_some_and(|run| run.finished(pid).exists());
        self.peers.get(&rank).is_some_and(|peer| !peer.is_alive() || finished(peer.pid))
    }

    /// Reads what is new on the board. What is not for this rank, or comes too late for it, is not kept.
    fn look(&mut self) {
        for note in self.board.news().unwrap_or_default() {
            let [kind, rank, third, fourth] = note.head;
            let rank = rank as i32;
            if kind == note::HELLO {
                self.peers.insert(rank, ProcessId { pid: third as u32, start: fourth });
                continue;
            }
            let (lane, number) = (third, fourth);
            let mine = lane == EVERYONE || lane == self::lane(rank, self.place.rank);
            if !mine || rank == self.place.rank || number <= self.done.get(&lane).copied().unwrap_or(0) {
                continue;
            }
            let part = (kind != note::UNKNOWN).then_some((note.text, kind == note::ANSWERED));
            self.read.insert((lane, number, rank), part);
        }
    }
}

fn rank_word(rank: i32) -> u64 {
    u64::from(rank.unsigned_abs())
}
