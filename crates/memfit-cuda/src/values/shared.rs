//! Known contents of memory shared between processes: each process publishes its changes to the others.
//!
//! Each shared block has a board. After a change of the known contents of a block, the process that made it
//! posts them to the board; before a read, the others apply the new posts. So every process sees what a
//! script wrote, whichever process wrote it.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use memfit_channel::{Board, RunDir, board::MAX_NOTE_BYTES};

/// A block that other processes have open.
struct Shared {
    start: u64,
    size: u64,
    board: Board,
}

static BLOCKS: Mutex<Vec<Shared>> = Mutex::new(Vec::new());
/// `true` if any block is shared, so that other processes skip the lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// Kinds of notes: the first word of a note's head. The others are the offset in the block, the length, and
/// the process.
mod note {
    /// The contents of the range are no longer known.
    pub(super) const UNKNOWN: u64 = 1;
    pub(super) const KNOWN: u64 = 2;
    /// Known because a rule answered, not because the script wrote it.
    pub(super) const ANSWERED: u64 = 3;
}

/// A change of known contents by another process.
pub(super) enum Change {
    /// The contents are no longer known: address and number of bytes.
    Unknown(u64, u64),
    /// The contents are known: address, bytes, and whether a rule answered for them.
    Known(u64, Vec<u8>, bool),
}

/// A known stretch: its address, its bytes, and whether a rule answered for them.
pub(super) type Stretch = (u64, Vec<u8>, bool);

fn blocks() -> MutexGuard<'static, Vec<Shared>> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shares a block under a name that all its processes know. Returns `false` if it already was shared, or
/// cannot be.
pub(super) fn add(name: u64, start: u64, size: u64) -> bool {
    let mut blocks = blocks();
    let board = RunDir::from_env().and_then(|run_dir| Board::open(&run_dir, name).ok());
    let (Some(board), true) = (board, blocks.iter().all(|block| block.start != start)) else { return false };
    blocks.push(Shared { start, size, board });
    ANY.store(true, Relaxed);
    true
}

/// Ends the sharing of the block that starts here.
pub(super) fn remove(start: u64) {
    if ANY.load(Relaxed) {
        blocks().retain(|block| block.start != start);
    }
}

/// Returns `true` if any block is shared.
#[inline]
pub(super) fn is_any_shared() -> bool {
    ANY.load(Relaxed)
}

/// Applies other processes' changes to a range.
#[cold]
pub(super) fn refresh(address: u64, length: u64, mut apply: impl FnMut(Change)) {
    let me = u64::from(std::process::id());
    for block in blocks().iter_mut().filter(|block| block.overlap(address, length).is_some()) {
        for note in block.board.read_new().unwrap_or_default() {
            let [kind, offset, length, author] = note.head;
            if author == me || offset.checked_add(length).is_none_or(|end| end > block.size) {
                continue;
            }
            apply(match kind {
                note::UNKNOWN => Change::Unknown(block.start + offset, length),
                _ => Change::Known(block.start + offset, note.text, kind == note::ANSWERED),
            });
        }
    }
}

/// Publishes the known contents of a range.
#[cold]
pub(super) fn publish(address: u64, length: u64, known: impl Fn(u64, u64) -> Vec<Stretch>) {
    let me = u64::from(std::process::id());
    for block in blocks().iter_mut() {
        let Some((from, length)) = block.overlap(address, length) else { continue };
        let _ = block.board.post([note::UNKNOWN, from - block.start, length, me], &[]);
        for (at, bytes, answered) in known(from, length) {
            let kind = if answered { note::ANSWERED } else { note::KNOWN };
            if bytes.len() <= MAX_NOTE_BYTES {
                let _ = block.board.post([kind, at - block.start, bytes.len() as u64, me], &bytes);
            }
        }
    }
}

impl Shared {
    /// Part of a range that lies in the block: start and length; `None` if they do not overlap.
    fn overlap(&self, address: u64, length: u64) -> Option<(u64, u64)> {
        let from = address.max(self.start);
        let to = address.saturating_add(length).min(self.start + self.size);
        (from < to).then(|| (from, to - from))
    }
}
