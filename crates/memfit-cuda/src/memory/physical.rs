//! The driver's virtual memory management: separate address ranges and physical memory, as PyTorch's
//! expandable segments use them.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    os::fd::{AsRawFd, FromRawFd, IntoRawFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::GRANULARITY;
use crate::{
    machine::{self, Card},
    space::{self, Kind, addresses, pages},
    status::{Outcome, Status},
    values,
};

/// Physical memory created by `cuMemCreate`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Physical {
    /// Ordinal of its device.
    pub(crate) card: u32,
    /// Size.
    pub(crate) size: u64,
    /// Handle types that it can be exported as.
    pub(crate) shareable: u32,
    /// References: the handle itself, explicit retains, and each mapping.
    references: u32,
    /// Imported from another process, which accounts for it.
    imported: bool,
}

#[derive(Debug)]
struct Mapping {
    size: u64,
    handle: u64,
    accessible: bool,
}

#[derive(Debug, Default)]
struct All {
    physical: BTreeMap<u64, Physical>,
    /// Reserved address ranges, by start.
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
    made: u64,
}

static ALL: Mutex<All> = Mutex::new(All {
    physical: BTreeMap::new(),
    reserved: BTreeMap::new(),
    mapped: BTreeMap::new(),
    made: 0,
});

fn lock() -> MutexGuard<'static, All> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl All {
    fn add(&mut self, physical: Physical) -> u64 {
        self.made += 1;
        let handle = 0x7e05_0000_0000_0000 | self.made << 4;
        self.physical.insert(handle, physical);
        handle
    }

    fn release(&mut self, handle: u64) -> Outcome {
        let physical = self.physical.get_mut(&handle).ok_or(Status::INVALID_VALUE)?;
        physical.references -= 1;
        if physical.references == 0 {
            let gone = *physical;
            self.physical.remove(&handle);
            if !gone.imported {
                machine::card(gone.card as i32)?.release(gone.size);
            }
        }
        Ok(())
    }
}

/// Creates physical memory (`cuMemCreate`).
pub(crate) fn create(card: &Card, size: u64, shareable: u32) -> Outcome<u64> {
    if size == 0 || !size.is_multiple_of(GRANULARITY) {
        return Err(Status::INVALID_VALUE);
    }
    card.need_context()?;
    card.allocate(size)?;
    Ok(lock().add(Physical { card: card.ordinal, size, shareable, references: 1, imported: false }))
}

/// Releases a handle (`cuMemRelease`). Mapped memory stays until it is unmapped.
pub(crate) fn release(handle: u64) -> Outcome {
    lock().release(handle)
}

/// Bytes that this process has created on a device.
pub(crate) fn made_on(card: u32) -> u64 {
    lock().physical.values().filter(|each| each.card == card && !each.imported).map(|each| each.size).sum()
}

/// Returns the physical memory behind a handle.
pub(crate) fn get(handle: u64) -> Outcome<Physical> {
    lock().physical.get(&handle).copied().ok_or(Status::INVALID_VALUE)
}

/// Retains the handle of the memory mapped at an address (`cuMemRetainAllocationHandle`).
pub(crate) fn retain_at(address: u64) -> Outcome<u64> {
    let mut all = lock();
    let (&start, mapping) = all.mapped.range(..=address).next_back().ok_or(Status::INVALID_VALUE)?;
    if address >= start + mapping.size {
        return Err(Status::INVALID_VALUE);
    }
    let handle = mapping.handle;
    all.physical.get_mut(&handle).ok_or(Status::INVALID_VALUE)?.references += 1;
    Ok(handle)
}

/// Reserves an address range (`cuMemAddressReserve`), at the wished address if it is free.
pub(crate) fn reserve(size: u64, alignment: u64, wish: u64) -> Outcome<u64> {
    if size == 0 || !size.is_multiple_of(GRANULARITY) || alignment != 0 && !alignment.is_power_of_two() {
        return Err(Status::INVALID_VALUE);
    }
    let wished = wish != 0 && wish.is_multiple_of(GRANULARITY) && addresses::take_at(wish, size);
    let start = if wished { wish } else { addresses::take(size, alignment.max(GRANULARITY))? };
    lock().reserved.insert(start, size);
    Ok(start)
}

/// Frees an address range (`cuMemAddressFree`): a whole reservation in which nothing is mapped.
pub(crate) fn unreserve(start: u64, size: u64) -> Outcome {
    let mut all = lock();
    if all.reserved.get(&start) != Some(&size) || all.mapped.range(start..start + size).next().is_some() {
        return Err(Status::INVALID_VALUE);
    }
    all.reserved.remove(&start);
    addresses::give_back(start, size);
    Ok(())
}

/// Maps physical memory (`cuMemMap`).
pub(crate) fn map(start: u64, size: u64, offset: u64, handle: u64) -> Outcome {
    let mut all = lock();
    let (&reserved, &length) = all.reserved.range(..=start).next_back().ok_or(Status::INVALID_VALUE)?;
    let end = start.checked_add(size).ok_or(Status::INVALID_VALUE)?;
    let overlaps =
        all.mapped.range(..end).next_back().is_some_and(|(&at, mapping)| at + mapping.size > start);
    let physical = all.physical.get_mut(&handle).ok_or(Status::INVALID_VALUE)?;
    let aligned = [start, size, offset].iter().all(|value| value.is_multiple_of(GRANULARITY));
    if !aligned || size == 0 || end > reserved + length || overlaps || offset + size > physical.size {
        return Err(Status::INVALID_VALUE);
    }
    physical.references += 1;
    let card = physical.card;
    all.mapped.insert(start, Mapping { size, handle, accessible: false });
    drop(all);
    space::write().insert(start, size, Kind::Mapped(handle), card);
    Ok(())
}

/// Unmaps one mapping or several adjacent ones, each whole (`cuMemUnmap`).
pub(crate) fn unmap(start: u64, size: u64) -> Outcome {
    let mut all = lock();
    let starts: Vec<(u64, u64)> = all
        .mapped
        .range(start..start.saturating_add(size))
        .map(|(&at, mapping)| (at, mapping.size))
        .collect();
    let whole = starts.iter().try_fold(start, |at, &(next, size)| (next == at).then_some(at + size));
    if starts.is_empty() || whole != Some(start + size) {
        return Err(Status::INVALID_VALUE);
    }
    for (at, size) in starts {
        let _ = space::write().remove(at, |block| matches!(block.kind, Kind::Mapped(_)));
        values::record_freed(at, size);
        if let Some(mapping) = all.mapped.remove(&at) {
            all.release(mapping.handle)?;
        }
    }
    Ok(())
}

/// Sets the access to a fully mapped range (`cuMemSetAccess`).
pub(crate) fn set_access(start: u64, size: u64, accessible: bool) -> Outcome {
    let mut all = lock();
    let mut at = start;
    while at < start.saturating_add(size) {
        let (&from, mapping) = all.mapped.range_mut(..=at).next_back().ok_or(Status::INVALID_VALUE)?;
        if at >= from + mapping.size {
            return Err(Status::INVALID_VALUE);
        }
        mapping.accessible = accessible;
        at = from + mapping.size;
    }
    Ok(())
}

/// Returns `true` if the mapping at an address is accessible (`cuMemGetAccess`).
pub(crate) fn is_accessible(address: u64) -> Outcome<bool> {
    let all = lock();
    let (&from, mapping) = all.mapped.range(..=address).next_back().ok_or(Status::INVALID_VALUE)?;
    if address >= from + mapping.size { Err(Status::INVALID_VALUE) } else { Ok(mapping.accessible) }
}

const MAGIC: &[u8; 8] = b"memfitPM";

/// Exports a handle as a file descriptor (`cuMemExportToShareableHandle`). The file describes the memory.
pub(crate) fn export(handle: u64) -> Outcome<i32> {
    let physical = get(handle)?;
    if physical.shareable & 1 == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let index = machine::card(physical.card as i32)?.index as u64;
    let mut file = pages::file(c"memfit")?;
    let mut text = MAGIC.to_vec();
    text.extend_from_slice(&physical.size.to_ne_bytes());
    text.extend_from_slice(&index.to_ne_bytes());
    file.write_all(&text).map_err(|_| Status::OPERATING_SYSTEM)?;
    Ok(file.into_raw_fd())
}

/// Imports memory from a file descriptor, which stays the caller's (`cuMemImportFromShareableHandle`).
pub(crate) fn import(descriptor: i32) -> Outcome<u64> {
    // SAFETY: the caller lends an open descriptor; the file owns its copy.
    let mut file = unsafe {
        let copy = libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0);
        if copy < 0 {
            return Err(Status::INVALID_VALUE);
        }
        File::from_raw_fd(copy)
    };
    debug_assert!(file.as_raw_fd() >= 0);
    let mut text = [0; 24];
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.read_exact(&mut text))
        .map_err(|_| Status::INVALID_VALUE)?;
    let word = |at: usize| u64::from_ne_bytes(text[at..at + 8].try_into().unwrap_or_default());
    if &text[..8] != MAGIC {
        return Err(Status::INVALID_VALUE);
    }
    let (size, index) = (word(8), word(16) as usize);
    let card = machine::get()?.cards.iter().find(|card| card.index == index).ok_or(Status::INVALID_DEVICE)?;
    card.need_context()?;
    Ok(lock().add(Physical { card: card.ordinal, size, shareable: 1, references: 1, imported: true }))
}
