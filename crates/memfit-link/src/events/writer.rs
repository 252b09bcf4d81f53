//! The writing end of an event log.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
    path::Path,
    ptr::{self, NonNull},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use super::{HEADER_BYTES, Kind, MAGIC, RECORD_BYTES, Record, header};
use crate::{LinkError, PROTOCOL};

/// Records in one mapped chunk. A chunk is whole pages (3 MiB), so no record lies across two.
const CHUNK_RECORDS: u64 = 65_536;
const CHUNK_BYTES: usize = CHUNK_RECORDS as usize * RECORD_BYTES;

/// How many bytes a log may grow to unless told otherwise: some 20 million events.
pub const DEFAULT_CAP: u64 = 1 << 30;

/// A part of a file in shared memory, unmapped when dropped.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to whoever holds the value; access goes through `Writer`'s lock or through atomics.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: &File, offset: usize, length: usize) -> io::Result<Self> {
        // SAFETY: a new shared mapping of a file that we hold open; no existing memory is touched.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).map(|start| Self { start, length }).ok_or_else(io::Error::last_os_error)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length, "a write must stay in its mapping");
        // SAFETY: in bounds by the check above, and `&mut self` excludes other writers of this process.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing borrowed from it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// What the lock guards: the chunk that is being filled.
struct Tail {
    file: File,
    records: u64,
    chunk: Option<Mapping>,
    full: bool,
}

/// A process's event log. All methods may be called from any thread.
pub struct Writer {
    header: Mapping,
    limit: u64,
    tail: Mutex<Tail>,
}

// SAFETY: `header` is only written through atomics once the writer exists; the rest is behind the lock.
unsafe impl Sync for Writer {}

impl Writer {
    /// Starts the log of process `pid` at `path`, replacing what is there; it may grow to `cap` bytes.
    pub fn create(path: &Path, pid: u32, cap: u64) -> Result<Self, LinkError> {
        Self::open(path, pid, cap).map_err(|source| LinkError::Io { path: path.to_owned(), source })
    }

    fn open(path: &Path, pid: u32, cap: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        extend(&file, 0, HEADER_BYTES)?;
        let mut header = Mapping::new(&file, 0, HEADER_BYTES)?;
        header.write(header::PROTOCOL, &PROTOCOL.to_le_bytes());
        header.write(header::PID, &pid.to_le_bytes());
        header.write(header::RECORD, &(RECORD_BYTES as u32).to_le_bytes());
        // The magic comes last: a reader that is too early sees no log, rather than half of one.
        header.write(0, &MAGIC);
        let tail = Tail { file, records: 0, chunk: None, full: false };
        Ok(Self { header, limit: cap / RECORD_BYTES as u64, tail: Mutex::new(tail) })
    }

    /// Appends one record. Once the log is full, records are dropped and the log says so.
    pub fn push(&self, record: &Record) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        self.append(&mut tail, &[record.encode()]);
    }

    /// Appends records that belong together: no other thread's record comes between them.
    pub fn push_all(&self, records: &[[u8; RECORD_BYTES]]) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        self.append(&mut tail, records);
    }

    /// Gives the number `id` to a text.
    pub fn push_text(&self, id: u32, text: &[u8]) {
        self.push_raw(Kind::Text, id, text);
    }

    /// Gives the number `id` to a stack, by the numbers of its frames, the innermost first.
    pub fn push_stack(&self, id: u32, frames: &[u32]) {
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.to_le_bytes()).collect();
        self.push_raw(Kind::Stack, id, &bytes);
    }

    fn push_raw(&self, kind: Kind, id: u32, bytes: &[u8]) {
        let first = Record { kind: kind as u8, module: id, bytes: bytes.len() as i64, ..Record::default() };
        let mut records = vec![first.encode()];
        records.extend(bytes.chunks(RECORD_BYTES).map(|part| {
            let mut raw = [0; RECORD_BYTES];
            raw[..part.len()].copy_from_slice(part);
            raw
        }));
        self.push_all(&records);
    }

    /// How many records are committed.
    pub fn committed(&self) -> u64 {
        self.counter().load(Ordering::Acquire)
    }

    fn append(&self, tail: &mut Tail, records: &[[u8; RECORD_BYTES]]) {
        if tail.full {
            return;
        }
        for (record, index) in records.iter().zip(tail.records..) {
            if let Err(_full) = tail.place(index, record, self.limit) {
                tail.full = true;
                self.flags().fetch_or(header::TRUNCATED.to_le(), Ordering::Release);
                return;
            }
        }
        tail.records += records.len() as u64;
        self.counter().store(tail.records.to_le(), Ordering::Release);
    }

    fn counter(&self) -> &AtomicU64 {
        // SAFETY: within the header's mapping, aligned to 8 (the mapping is page-aligned), and only ever
        // accessed atomically once the writer exists.
        unsafe { AtomicU64::from_ptr(self.header.start.as_ptr().add(header::COMMITTED).cast()) }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as in `counter`, aligned to 4.
        unsafe { AtomicU32::from_ptr(self.header.start.as_ptr().add(header::FLAGS).cast()) }
    }
}

impl Tail {
    /// Writes the record with this index, mapping the next chunk where one begins.
    fn place(&mut self, index: u64, record: &[u8; RECORD_BYTES], limit: u64) -> io::Result<()> {
        if index >= limit {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let within = index % CHUNK_RECORDS;
        if within == 0 || self.chunk.is_none() {
            let offset = HEADER_BYTES + (index / CHUNK_RECORDS) as usize * CHUNK_BYTES;
            extend(&self.file, offset, CHUNK_BYTES)?;
            self.chunk = Some(Mapping::new(&self.file, offset, CHUNK_BYTES)?);
        }
        if let Some(chunk) = &mut self.chunk {
            chunk.write(within as usize * RECORD_BYTES, record);
        }
        Ok(())
    }
}

/// Makes room for `length` bytes at `offset`. Room is claimed, not merely promised, where the file system can:
/// a write into a promise that it cannot keep would end the process with SIGBUS.
fn extend(file: &File, offset: usize, length: usize) -> io::Result<()> {
    // SAFETY: plain system call on a file that we hold open.
    let status =
        unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as libc::off_t, length as libc::off_t) };
    if status == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => file.set_len((offset + length) as u64),
        _ => Err(error),
    }
}
