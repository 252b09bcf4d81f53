//! Device memory shared between processes: `cudaIpcGetMemHandle` and `cudaIpcOpenMemHandle`.
//!
//! The exporting process reserves the memory; an opened handle is address space only. Known contents are
//! shared by both sides.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use super::GRANULARITY;
use crate::{
    machine,
    space::{self, Kind, addresses, find},
    status::{Outcome, Status},
    values,
};

/// `cudaIpcMemHandle_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Handle {
    magic: [u8; 8],
    pid: u64,
    card: u64,
    start: u64,
    size: u64,
    id: u64,
    rest: [u64; 2],
}

const MAGIC: &[u8; 8] = b"memfitIP";

/// Open handles, by exporting process and block: the local address and the reference count.
type Opened = BTreeMap<(u64, u64), (u64, u32)>;

static OPENED: Mutex<Opened> = Mutex::new(Opened::new());

/// Name of a shared block, the same in both processes.
fn name(pid: u64, block: u64) -> u64 {
    pid << 40 ^ block
}

/// Exports the allocation that contains an address.
pub(crate) fn export(address: u64) -> Outcome<Handle> {
    let block = find(address).filter(|block| block.kind == Kind::Device).ok_or(Status::INVALID_VALUE)?;
    let card = machine::card(block.card as i32)?.index as u64;
    let pid = u64::from(std::process::id());
    values::share(name(pid, block.id), block.start, block.size, true);
    Ok(Handle { magic: *MAGIC, pid, card, start: block.start, size: block.size, id: block.id, rest: [0; 2] })
}

/// Opens another process's allocation, or adds a reference if it is open.
pub(crate) fn open(handle: Handle) -> Outcome<u64> {
    if &handle.magic != MAGIC {
        return Err(Status::INVALID_VALUE);
    }
    if handle.pid == u64::from(std::process::id()) {
        return Err(Status::INVALID_CONTEXT);
    }
    let machine = machine::get()?;
    let card =
        machine.cards.iter().find(|card| card.index as u64 == handle.card).ok_or(Status::INVALID_DEVICE)?;
    card.need_context()?;
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((start, count)) = opened.get_mut(&(handle.pid, handle.id)) {
        *count += 1;
        return Ok(*start);
    }
    let length = handle.size.checked_next_multiple_of(GRANULARITY).ok_or(Status::INVALID_VALUE)?;
    let start = addresses::take(length, GRANULARITY)?;
    space::write().insert(start, handle.size, Kind::Imported, card.ordinal);
    opened.insert((handle.pid, handle.id), (start, 1));
    values::share(name(handle.pid, handle.id), start, handle.size, false);
    Ok(start)
}

/// Drops a reference to an opened allocation; the last one closes it.
pub(crate) fn close(start: u64) -> Outcome {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let (key, count) = opened
        .iter_mut()
        .find_map(|(key, (at, count))| (*at == start).then_some((*key, count)))
        .ok_or(Status::INVALID_VALUE)?;
    *count -= 1;
    if *count == 0 {
        opened.remove(&key);
        let block = space::write().remove(start, |block| block.kind == Kind::Imported)?;
        values::unshare(start);
        values::record_freed(start, block.size);
        addresses::give_back(start, block.size.next_multiple_of(GRANULARITY));
    }
    Ok(())
}
