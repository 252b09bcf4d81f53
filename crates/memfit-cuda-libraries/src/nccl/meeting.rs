//! Exchange between the ranks of a communicator: each rank posts its contribution, if it is known, to a
//! shared board.
//!
//! Device memory has no bytes behind it, but small contents are known: lengths, flags, pickled objects,
//! counts of tokens. Those are exchanged, so that ranks with different values keep them. A rank waits for the
//! others only if it can use their contributions, and never for one that has ended or does not answer within
//! [`PEER_TIMEOUT`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memfit_channel::{Board, ProcessId, RunDir, env::LONE_RANK};
use memfit_vocabulary::Remark;

use super::communicator::RankPosition;
use memfit_cuda::card;

/// Maximum bytes to exchange; the same on all ranks, so that they agree on what is exchanged.
pub(super) const MAX_EXCHANGED_BYTES: usize = memfit_channel::board::MAX_NOTE_BYTES;
/// Maximum wait for a rank that is alive.
const PEER_TIMEOUT: Duration = Duration::from_mins(2);
/// Interval between checks that a rank is alive.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(200);

/// A sequence of contributions: one lane for the operations of all ranks together, one for each pair.
pub(super) type Lane = u64;

/// Lane of operations of all ranks together.
pub(super) const EVERYONE: Lane = 0;

/// Lane of data sent from one rank to another.
pub(super) fn lane(from: i32, to: i32) -> Lane {
    1 << 63 | u64::from(from.unsigned_abs()) << 31 | u64::from(to.unsigned_abs())
}

/// Kinds of notes: the first word of a note's head. The others are the rank, and the lane and the sequence
/// number, or the process.
mod note {
    pub(super) const HELLO: u64 = 1;
    /// The contribution is unknown.
    pub(super) const UNKNOWN: u64 = 2;
    pub(super) const KNOWN: u64 = 3;
    /// Known because a rule answered, not because the script wrote it.
    pub(super) const ANSWERED: u64 = 4;
}

/// A rank's contribution, and whether a rule answered for it.
pub(super) type Part = (Vec<u8>, bool);

/// One rank's view of the exchange.
pub(super) struct Meeting {
    board: Board,
    position: RankPosition,
    /// Sequence number of the latest operation begun, by lane.
    begun: BTreeMap<Lane, u64>,
    /// Sequence number of the latest operation completed, by lane.
    done: BTreeMap<Lane, u64>,
    /// Contributions read but not used yet, by lane, number and rank.
    read: BTreeMap<(Lane, u64, i32), Option<Part>>,
    peers: BTreeMap<i32, ProcessId>,
    /// Ranks that did not answer; they are not waited for again.
    absent: BTreeSet<i32>,
}

impl Meeting {
    /// Joins the exchange of this name; `None` if this process simulates one rank of many alone, or is in no
    /// run.
    pub(super) fn open(name: u64, position: RankPosition) -> Option<Self> {
        if std::env::var_os(LONE_RANK).is_some_and(|value| !value.is_empty()) {
            return None;
        }
        let mut board = Board::open(&RunDir::from_env()?, name).ok()?;
        let me = ProcessId::current().ok()?;
        let head = [note::HELLO, rank_word(position.rank), u64::from(me.pid), me.start];
        board.post(head, &[]).ok().filter(|posted| *posted)?;
        Some(Self {
            board,
            position,
            begun: BTreeMap::new(),
            done: BTreeMap::new(),
            read: BTreeMap::new(),
            peers: BTreeMap::new(),
            absent: BTreeSet::new(),
        })
    }

    /// Returns the sequence number of the operation that now begins in a lane.
    pub(super) fn next(&mut self, lane: Lane) -> u64 {
        let begun = self.begun.entry(lane).or_default();
        *begun += 1;
        *begun
    }

    /// Marks an operation as complete and drops contributions to it that were not used.
    pub(super) fn complete(&mut self, lane: Lane, number: u64) {
        self.done.insert(lane, number);
        let over: Vec<_> =
            self.read.range((lane, 0, i32::MIN)..=(lane, number, i32::MAX)).map(|(key, _)| *key).collect();
        for key in over {
            self.read.remove(&key);
        }
    }

    /// Posts a contribution.
    pub(super) fn post(&mut self, lane: Lane, number: u64, part: Option<(&[u8], bool)>) {
        let (kind, bytes) = match part {
            None => (note::UNKNOWN, [].as_slice()),
            Some((bytes, false)) => (note::KNOWN, bytes),
            Some((bytes, true)) => (note::ANSWERED, bytes),
        };
        let rank = rank_word(self.position.rank);
        if !matches!(self.board.post([kind, rank, lane, number], bytes), Ok(true)) {
            card::remark(Remark::RanksFull);
        }
    }

    /// Waits for a rank's contribution; `None` if it is unknown or does not arrive.
    pub(super) fn wait(&mut self, lane: Lane, number: u64, rank: i32) -> Option<Part> {
        let begun = Instant::now();
        let (mut pause, mut checked) = (Duration::from_micros(20), begun);
        loop {
            self.read_board();
            if let Some(part) = self.read.remove(&(lane, number, rank)) {
                return part;
            }
            if self.absent.contains(&rank) {
                return None;
            }
            if checked.elapsed() > LIVENESS_INTERVAL {
                checked = Instant::now();
                if begun.elapsed() > PEER_TIMEOUT || self.is_gone(rank) {
                    self.absent.insert(rank);
                    card::remark(Remark::RankSilent);
                    // Its last post may have arrived in the meantime.
                    self.read_board();
                    return self.read.remove(&(lane, number, rank)).flatten();
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }

    /// Returns `true` if a rank that introduced itself has ended, or is about to be ended.
    fn is_gone(&self, rank: i32) -> bool {
        let finished = |pid| RunDir::from_env().is_some_and(|run| run.finished(pid).exists());
        self.peers.get(&rank).is_some_and(|peer| !peer.is_alive() || finished(peer.pid))
    }

    /// Reads new posts on the board. Those that are not for this rank, or come too late for it, are dropped.
    fn read_board(&mut self) {
        for note in self.board.read_new().unwrap_or_default() {
            let [kind, rank, third, fourth] = note.head;
            let rank = rank as i32;
            if kind == note::HELLO {
                self.peers.insert(rank, ProcessId { pid: third as u32, start: fourth });
                continue;
            }
            let (lane, number) = (third, fourth);
            let mine = lane == EVERYONE || lane == self::lane(rank, self.position.rank);
            if !mine || rank == self.position.rank || number <= self.done.get(&lane).copied().unwrap_or(0) {
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
