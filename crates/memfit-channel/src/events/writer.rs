//! The writing end of an event log.

#![allow(unsafe_code, reason = "memory and locks are shared with other processes")]

use std::{
    fs::{File, OpenOptions},
    io,
    path::Path,
    ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use memmap2::{MmapOptions, MmapRaw};

use super::codec::{Raw, encode, stack_head, text_head};
use super::{Event, HEADER_BYTES, MAGIC, RECORD_BYTES, header};
use crate::{ChannelError, PROTOCOL};

/// Records in a mapped chunk. A chunk is whole pages (3 MiB), so no record spans two.
const CHUNK_RECORDS: u64 = 65_536;
const CHUNK_BYTES: usize = CHUNK_RECORDS as usize * RECORD_BYTES;

/// Default maximum size of a log in bytes: some 20 million events.
pub const DEFAULT_CAP: u64 = 1 << 30;

/// Maps a part of a file for reading and writing.
fn map(file: &File, offset: usize, length: usize) -> io::Result<MmapRaw> {
    MmapOptions::new().offset(offset as u64).len(length).map_raw(file)
}

/// Writes to a mapping that no other thread of this process writes to meanwhile.
fn write(map: &mut MmapRaw, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= map.len(), "a write must stay in its mapping");
    // SAFETY: in bounds by the check above, and `&mut` excludes other writers of this process.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(offset), bytes.len()) };
}

/// State behind the lock: the chunk that is being filled.
struct Tail {
    file: File,
    records: u64,
    chunk: Option<MmapRaw>,
    ended: bool,
}

/// A process's event log. All methods may be called from any thread.
pub struct Writer {
    header: MmapRaw,
    limit: u64,
    tail: Mutex<Tail>,
}

impl Writer {
    /// Creates the log of process `pid` at `path`, replacing an existing one; it may grow to `cap` bytes.
    pub fn create(path: &Path, pid: u32, cap: u64) -> Result<Self, ChannelError> {
        Self::open(path, pid, cap).map_err(|source| ChannelError::Io { path: path.to_owned(), source })
    }

    fn open(path: &Path, pid: u32, cap: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        extend(&file, 0, HEADER_BYTES)?;
        let mut header = map(&file, 0, HEADER_BYTES)?;
        write(&mut header, header::PROTOCOL, &PROTOCOL.to_le_bytes());
        write(&mut header, header::PID, &pid.to_le_bytes());
        write(&mut header, header::RECORD, &(RECORD_BYTES as u32).to_le_bytes());
        // The magic is written last: a reader that is too early sees no log instead of half of one.
        write(&mut header, 0, &MAGIC);
        let tail = Tail { file, records: 0, chunk: None, ended: false };
        Ok(Self { header, limit: cap / RECORD_BYTES as u64, tail: Mutex::new(tail) })
    }

    /// Appends an event. Once the log is at its limit or cannot be extended, events are dropped and the log
    /// says so.
    #[inline]
    pub fn push(&self, event: &Event) {
        match event {
            Event::Text { id, text } => self.push_text(*id, text.as_bytes()),
            Event::Stack { id, frames } => self.push_stack(*id, frames),
            event => self.append([encode(event)]),
        }
    }

    /// Appends events that belong together, none of them a text or a stack, so that no other thread's event
    /// comes between them.
    pub fn push_all(&self, events: impl IntoIterator<Item = Event>) {
        self.append(events.into_iter().map(|event| encode(&event)));
    }

    /// Assigns the number `id` to a text.
    pub fn push_text(&self, id: u32, text: &[u8]) {
        self.append(std::iter::once(text_head(id, text.len())).chain(raw_records(text)));
    }

    /// Assigns the number `id` to a stack, given by the numbers of its frames, innermost first.
    pub fn push_stack(&self, id: u32, frames: &[u32]) {
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.to_le_bytes()).collect();
        self.append(std::iter::once(stack_head(id, frames.len())).chain(raw_records(&bytes)));
    }

    /// Commits all of these records or none.
    fn append(&self, records: impl IntoIterator<Item = Raw>) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.ended {
            return;
        }
        let mut count = tail.records;
        for record in records {
            if tail.write_record(count, &record, self.limit).is_err() {
                tail.ended = true;
                self.flags().fetch_or(header::TRUNCATED.to_le(), Ordering::Release);
                return;
            }
            count += 1;
        }
        tail.records = count;
        self.counter().store(count.to_le(), Ordering::Release);
    }

    fn counter(&self) -> &AtomicU64 {
        // SAFETY: within the header's mapping, aligned to 8 (the mapping is page-aligned), and only accessed
        // atomically once the writer exists.
        unsafe { AtomicU64::from_ptr(self.header.as_mut_ptr().add(header::COMMITTED).cast()) }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as in `counter`, aligned to 4.
        unsafe { AtomicU32::from_ptr(self.header.as_mut_ptr().add(header::FLAGS).cast()) }
    }
}

impl Tail {
    /// Writes the record with this index, mapping the next chunk if one begins.
    fn write_record(&mut self, index: u64, record: &Raw, limit: u64) -> io::Result<()> {
        if index >= limit {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let within = index % CHUNK_RECORDS;
        if within == 0 || self.chunk.is_none() {
            let offset = HEADER_BYTES + (index / CHUNK_RECORDS) as usize * CHUNK_BYTES;
            extend(&self.file, offset, CHUNK_BYTES)?;
            self.chunk = Some(map(&self.file, offset, CHUNK_BYTES)?);
        }
        if let Some(chunk) = &mut self.chunk {
            write(chunk, within as usize * RECORD_BYTES, record);
        }
        Ok(())
    }
}

/// Splits bytes into records, the last one padded with zeros.
fn raw_records(bytes: &[u8]) -> impl Iterator<Item = Raw> {
    bytes.chunks(RECORD_BYTES).map(|part| {
        let mut raw = [0; RECORD_BYTES];
        raw[..part.len()].copy_from_slice(part);
        raw
    })
}

/// Extends the file to `length` bytes from `offset`. Blocks are allocated if the file system can: a write to
/// a hole that the disk has no room for would end the process with SIGBUS.
fn extend(file: &File, offset: usize, length: usize) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    let claim = || {
        use std::os::fd::AsRawFd as _;
        // SAFETY: plain system call on an open file.
        unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as libc::off_t, length as libc::off_t) }
    };
    // No process of a run is on another system: runs are in a container there.
    #[cfg(not(target_os = "linux"))]
    let claim = || -1;
    claim_room(
        claim,
        || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        || file.set_len((offset + length) as u64),
    )
}

/// Repeats `claim` while a signal interrupts it, and falls back to `promise` if the file system cannot
/// allocate. An interrupted call does not mean that the disk is full, so it must not end the log.
fn claim_room(
    claim: impl Fn() -> libc::c_int,
    errno: impl Fn() -> libc::c_int,
    promise: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    loop {
        if claim() == 0 {
            return Ok(());
        }
        match errno() {
            libc::EINTR => {}
            libc::EOPNOTSUPP | libc::ENOSYS => return promise(),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Runs a claim that gets these errors in sequence, with 0 for success.
    fn claimed(answers: &[libc::c_int]) -> (io::Result<()>, bool) {
        let (asked, promised) = (Cell::new(0), Cell::new(false));
        let claim = || {
            asked.set(asked.get() + 1);
            if answers[asked.get() - 1] == 0 { 0 } else { -1 }
        };
        let promise = || {
            promised.set(true);
            Ok(())
        };
        (claim_room(claim, || answers[asked.get() - 1], promise), promised.get())
    }

    #[test]
    fn a_signal_is_no_full_disk() {
        let (result, promised) = claimed(&[libc::EINTR, libc::EINTR, 0]);
        assert!(result.is_ok() && !promised);
        let (result, promised) = claimed(&[libc::EINTR, libc::EOPNOTSUPP]);
        assert!(result.is_ok() && promised);
        let (result, promised) = claimed(&[libc::EINTR, libc::ENOSPC]);
        assert_eq!((result.unwrap_err().raw_os_error(), promised), (Some(libc::ENOSPC), false));
    }
}
