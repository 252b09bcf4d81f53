//! Known contents of memory that several processes have open: whoever changes what is known of it tells the
//! others.
//!
//! Each shared block has a board. After every change of what is known within the block, the process that made
//! it leaves there what is known now; before every look, the others take over what is new. So they see what a
//! script wrote, whoever wrote it.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use memfit_channel::{Board, RunDir, board::LONGEST_NOTE};

/// A block that other processes have open.
struct Shared {
    start: u64,
    size: u64,
    board: Board,
}

static BLOCKS: Mutex<Vec<Shared>> = Mutex::new(Vec::new());
/// Whether there is any, so that all others need not look.
static ANY: AtomicBool = AtomicBool::new(false);

/// What a note says; the first word of its head. The others are the offset in the block, the length, and the
/// process.
mod note {
    /// Nothing is known of the range any more.
    pub(super) const UNKNOWN: u64 = 1;
    pub(super) const KNOWN: u64 = 2;
    /// Known because a rule answered, and not because the script said so.
    pub(super) const ANSWERED: u64 = 3;
}

/// A change of what is known, by another process.
pub(super) enum Change {
    /// Nothing is known of so many bytes at this address any more.
    Unknown(u64, u64),
    /// These bytes are at this address, and whether a rule answered for them.
    Known(u64, Vec<u8>, bool),
}

/// A stretch that is known: its address, its bytes, and whether a rule answered for them.
pub(super) type Stretch = (u64, Vec<u8>, bool);

fn blocks() -> MutexGuard<'static, Vec<Shared>> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A block is shared from here on, under a name that all its processes know. False if it was already, or
/// cannot be.
pub(super) fn add(name: u64, start: u64, size: u64) -> bool {
    let mut blocks = blocks();
    let board = RunDir::from_env().and_then(|run_dir| Board::open(&run_dir, name).ok());
    let (Some(board), true) = (board, blocks.iter().all(|block| block.start != start)) else { return false };
    blocks.push(Shared { start, size, board });
    ANY.store(true, Relaxed);
    true
}

/// The block that starts here is not shared any more.
pub(super) fn remove(start: u64) {
    if ANY.load(Relaxed) {
        blocks().retain(|block| block.start != start);
    }
}

/// Whether other processes may have to do with a range.
#[inline]
pub(super) fn any() -> bool {
    ANY.load(Relaxed)
}

/// Takes over what others have changed in a range.
#[cold]
pub(super) fn refresh(address: u64, length: u64, mut apply: impl FnMut(Change)) {
    let me = u64::from(std::process::id());
    for block in blocks().iter_mut().filter(|block| block.overlap(address, length).is_some()) {
        for note in block.board.news().unwrap_or_default() {
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

/// Tells the others what is known of a range now.
#[cold]
pub(super) fn changed(address: u64, length: u64, known: impl Fn(u64, u64) -> Vec<Stretch>) {
    let me = u64::from(std::process::id());
    for block in blocks().iter_mut() {
        let Some((from, length)) = block.overlap(address, length) else { continue };
        let _ = block.board.post([note::UNKNOWN, from - block.start, length, me], &[]);
        for (at, bytes, answered) in known(from, length) {
            let kind = if answered { note::ANSWERED } else { note::KNOWN };
            if bytes.len() <= LONGEST_NOTE {
                let _ = block.board.post([kind, at - block.start, bytes.len() as u64, me], &bytes);
            }
        }
    }
}

impl Shared {
    /// The part of a range that lies in the block, if any does: its start and its length.
    fn overlap(&self, address: u64, length: u64) -> Option<(u64, u64)> {
        let from = address.max(self.start);
        let to = address.saturating_add(length).min(self.start + self.size);
        (from < to).then(|| (from, to - from))
    }
}
