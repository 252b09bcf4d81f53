//! Memory pools: `cudaMallocAsync` and related calls.
//!
//! A pool keeps freed memory up to its release threshold and serves requests from it. Work completes as soon
//! as it is queued, so a freed block can be reused at once.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::GRANULARITY;
use crate::{
    clock, failing,
    machine::{self, Card},
    space::{self, Kind, addresses},
    status::{Outcome, Status},
    streams, values, watch,
};

/// Granularity in which the driver takes memory for pools.
const PIECE_BYTES: u64 = 32 << 20;
const ALIGNMENT: u64 = 512;

/// Pool attributes, with the numbers of `cudaMemPoolAttr`.
pub(crate) mod attribute {
    pub(crate) const FIRST_REUSE: i32 = 1;
    pub(crate) const LAST_REUSE: i32 = 3;
    pub(crate) const RELEASE_THRESHOLD: i32 = 4;
    pub(crate) const RESERVED: i32 = 5;
    pub(crate) const RESERVED_HIGH: i32 = 6;
    pub(crate) const USED: i32 = 7;
    pub(crate) const USED_HIGH: i32 = 8;
}

#[derive(Debug)]
struct Pool {
    card: u32,
    threshold: u64,
    reuse: [i32; 3],
    pieces: Vec<Piece>,
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
    /// Maximum bytes that it may reserve; 0 for no limit.
    limit: u64,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    size: u64,
    free: crate::space::Arena,
    used: u64,
}

/// All pools, by handle; a device's default pool is created on first use.
static POOLS: Mutex<BTreeMap<u64, Pool>> = Mutex::new(BTreeMap::new());
static CURRENT: Mutex<BTreeMap<u32, u64>> = Mutex::new(BTreeMap::new());

const HANDLES: u64 = 0x7e01_0000_0000_0000;
const GRAPH_POOLS: u64 = HANDLES + (1 << 15);
const FIRST_CREATED: u64 = HANDLES + (1 << 16);

fn pools() -> MutexGuard<'static, BTreeMap<u64, Pool>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_pool(card: u32, limit: u64) -> Pool {
    Pool {
        card,
        threshold: 0,
        reuse: [1; 3],
        pieces: Vec::new(),
        reserved: 0,
        reserved_high: 0,
        used: 0,
        used_high: 0,
        limit,
    }
}

/// Default pool of a device.
pub(crate) fn default_pool(card: &Card) -> u64 {
    let handle = HANDLES + u64::from(card.ordinal) * 16;
    pools().entry(handle).or_insert_with(|| new_pool(card.ordinal, 0));
    handle
}

/// Pool that graphs of a device allocate from. Memory that a graph frees stays available to other graphs
/// only: each launch needs it again, so the device gets it back only on request ([`trim`]).
pub(crate) fn graph_pool(card: &Card) -> u64 {
    let handle = GRAPH_POOLS + u64::from(card.ordinal) * 16;
    pools().entry(handle).or_insert_with(|| Pool { threshold: u64::MAX, ..new_pool(card.ordinal, 0) });
    handle
}

/// Current pool of a device, which `cudaMallocAsync` allocates from.
pub(crate) fn current_pool(card: &Card) -> u64 {
    let chosen = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).get(&card.ordinal).copied();
    chosen.unwrap_or_else(|| default_pool(card))
}

/// Sets the current pool of a device (`cudaDeviceSetMemPool`).
pub(crate) fn set_current(card: &Card, pool: u64) -> Outcome {
    if pools().get(&pool).ok_or(Status::INVALID_VALUE)?.card != card.ordinal {
        return Err(Status::INVALID_VALUE);
    }
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner).insert(card.ordinal, pool);
    Ok(())
}

/// Creates a pool (`cudaMemPoolCreate`).
pub(crate) fn create(card: &Card, limit: u64) -> u64 {
    let mut pools = pools();
    let handle = pools.keys().next_back().map_or(FIRST_CREATED, |&last| (last + 16).max(FIRST_CREATED));
    pools.insert(handle, new_pool(card.ordinal, limit));
    handle
}

/// Destroys a pool (`cudaMemPoolDestroy`). Memory in use stays in use, as with CUDA.
pub(crate) fn destroy(handle: u64) -> Outcome {
    if handle < FIRST_CREATED {
        return Err(Status::INVALID_VALUE);
    }
    let mut pools = pools();
    let pool = pools.get_mut(&handle).ok_or(Status::INVALID_VALUE)?;
    pool.trim(0)?;
    if pool.pieces.is_empty() {
        pools.remove(&handle);
    }
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, &mut current| current != handle);
    Ok(())
}

/// Allocates from a pool (`cudaMallocFromPoolAsync`).
pub(crate) fn allocate(handle: u64, size: u64) -> Outcome<u64> {
    let mut pools = pools();
    let pool = pools.get_mut(&handle).ok_or(Status::INVALID_VALUE)?;
    let card = machine::card(pool.card as i32)?;
    card.need_context()?;
    failing::check()?;
    let bytes = size.checked_next_multiple_of(ALIGNMENT).ok_or(Status::OUT_OF_MEMORY)?;
    let start = if let Some(start) = pool.take(bytes) {
        start
    } else {
        pool.grow(card, bytes)?;
        pool.take(bytes).ok_or(Status::OUT_OF_MEMORY)?
    };
    space::write().insert(start, size, Kind::Pooled(handle), card.ordinal);
    let now = (pool.used, pool.reserved);
    drop(pools);
    watch::report_pool_block(card, start, bytes as i64, now);
    Ok(start)
}

/// Frees memory to its pool (`cudaFreeAsync`).
pub(crate) fn free(start: u64) -> Outcome {
    let block = space::write().remove(start, |block| matches!(block.kind, Kind::Pooled(_)))?;
    values::record_freed(start, block.size);
    let Kind::Pooled(handle) = block.kind else { return Err(Status::INVALID_VALUE) };
    let mut pools = pools();
    let pool = pools.get_mut(&handle).ok_or(Status::INVALID_VALUE)?;
    let bytes = block.size.next_multiple_of(ALIGNMENT);
    pool.give_back(start, bytes);
    let now = (pool.used, pool.reserved);
    drop(pools);
    watch::report_pool_block(machine::card(block.card as i32)?, start, -(bytes as i64), now);
    Ok(())
}

/// Synchronises with a device. The driver then lets pools release what exceeds their thresholds.
pub(crate) fn synchronize(card: u32) {
    clock::wait_until(streams::card_end(card));
    for pool in pools().values_mut().filter(|pool| pool.card == card && pool.reserved > pool.threshold) {
        let _ = pool.trim(pool.threshold);
    }
}

/// Releases unused memory down to `keep` bytes (`cudaMemPoolTrimTo`).
pub(crate) fn trim(handle: u64, keep: u64) -> Outcome {
    pools().get_mut(&handle).ok_or(Status::INVALID_VALUE)?.trim(keep)
}

/// Bytes that a device's pools have reserved, and bytes of them in use.
pub(crate) fn card_totals(card: u32) -> (u64, u64) {
    let pools = pools();
    let mine = pools.values().filter(|pool| pool.card == card);
    mine.fold((0, 0), |(reserved, used), pool| (reserved + pool.reserved, used + pool.used))
}

/// Ordinal of a pool's device.
pub(crate) fn card_ordinal(handle: u64) -> Outcome<u32> {
    pools().get(&handle).map(|pool| pool.card).ok_or(Status::INVALID_VALUE)
}

/// Returns an attribute. The reuse flags are ints, the rest are 64 bits wide.
pub(crate) fn get(handle: u64, attribute: i32) -> Outcome<u64> {
    let pools = pools();
    let pool = pools.get(&handle).ok_or(Status::INVALID_VALUE)?;
    Ok(match attribute {
        attribute::FIRST_REUSE..=attribute::LAST_REUSE => pool.reuse[attribute as usize - 1] as u64,
        attribute::RELEASE_THRESHOLD => pool.threshold,
        attribute::RESERVED => pool.reserved,
        attribute::RESERVED_HIGH => pool.reserved_high,
        attribute::USED => pool.used,
        attribute::USED_HIGH => pool.used_high,
        _ => return Err(Status::INVALID_VALUE),
    })
}

/// Sets an attribute. The high-water marks can only be reset to zero.
pub(crate) fn set(handle: u64, attribute: i32, value: u64) -> Outcome {
    let mut pools = pools();
    let pool = pools.get_mut(&handle).ok_or(Status::INVALID_VALUE)?;
    match attribute {
        attribute::FIRST_REUSE..=attribute::LAST_REUSE => pool.reuse[attribute as usize - 1] = value as i32,
        attribute::RELEASE_THRESHOLD => pool.threshold = value,
        attribute::RESERVED_HIGH if value == 0 => pool.reserved_high = pool.reserved,
        attribute::USED_HIGH if value == 0 => pool.used_high = pool.used,
        _ => return Err(Status::INVALID_VALUE),
    }
    Ok(())
}

impl Pool {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let start = self.pieces.iter_mut().find_map(|piece| {
            let start = piece.free.take(bytes, ALIGNMENT)?;
            piece.used += bytes;
            Some(start)
        })?;
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
        Some(start)
    }

    /// Adds a piece with room for `bytes`: a large one if the device has the memory, else the smallest that
    /// suffices.
    fn grow(&mut self, card: &Card, bytes: u64) -> Outcome {
        let least = bytes.checked_next_multiple_of(GRANULARITY).ok_or(Status::OUT_OF_MEMORY)?;
        let wanted = bytes.checked_next_multiple_of(PIECE_BYTES).ok_or(Status::OUT_OF_MEMORY)?;
        let fits = |size| self.limit == 0 || self.reserved + size <= self.limit;
        let size = if fits(wanted) && card.allocate(wanted).is_ok() {
            wanted
        } else {
            let _ = self.trim(0);
            if self.limit != 0 && self.reserved + least > self.limit {
                return Err(Status::OUT_OF_MEMORY);
            }
            card.allocate(least)?;
            least
        };
        let start = addresses::take(size, GRANULARITY).inspect_err(|_| card.release(size))?;
        let mut free = crate::space::Arena::default();
        free.add(start, size);
        self.pieces.push(Piece { start, size, free, used: 0 });
        self.reserved += size;
        self.reserved_high = self.reserved_high.max(self.reserved);
        Ok(())
    }

    fn give_back(&mut self, start: u64, bytes: u64) {
        let holds = |piece: &&mut Piece| (piece.start..piece.start + piece.size).contains(&start);
        if let Some(piece) = self.pieces.iter_mut().find(holds) {
            piece.free.give_back(start, bytes);
            piece.used -= bytes;
            self.used -= bytes;
        }
    }

    /// Releases empty pieces to the device until at most `keep` bytes are reserved.
    fn trim(&mut self, keep: u64) -> Outcome {
        let card = machine::card(self.card as i32)?;
        let mut index = 0;
        while index < self.pieces.len() && self.reserved > keep {
            if self.pieces[index].used > 0 {
                index += 1;
                continue;
            }
            let piece = self.pieces.swap_remove(index);
            addresses::give_back(piece.start, piece.size);
            card.release(piece.size);
            self.reserved -= piece.size;
        }
        Ok(())
    }
}
