//! NCCL: communicators that know their size and rank. No byte travels between processes.
//!
//! What a rank would receive is modelled by what it sends itself: for ranks that do alike, which is what the memory of a
//! training step rests on, shapes and lengths that are exchanged stay true. Reductions leave their input's values.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::process;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use super::card;
use super::entry::{Handle, In, Kind, Out, Ptr, entry_points, guarded};
use super::real::real;

/// `ncclResult_t`, as far as it is said here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const UNHANDLED_CUDA_ERROR: i32 = 1;
    pub(super) const INTERNAL_ERROR: i32 = 3;
    pub(super) const INVALID_ARGUMENT: i32 = 4;
}

/// The color of a rank that takes no part in a split.
const NO_COLOR: i32 = -1;
/// The first number of an operation that is made by a program.
const FIRST_MADE_OPERATION: i32 = 5;
/// More ranks than this do not get a copy each.
const MOST_COPIES: i32 = 64;

/// What lies behind a communicator.
struct Communicator {
    size: i32,
    rank: i32,
    card: usize,
    operations: AtomicI32,
    registrations: AtomicUsize,
}

impl Kind for Communicator {
    const COOKIE: u64 = u64::from_le_bytes(*b"mf-nccl\0");
}

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId([u64; 16]);

/// An id that no other process and no other call has been given.
fn unique_id() -> UniqueId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos() as u64);
    let mut words = [0; 16];
    words[..4].copy_from_slice(&[
        u64::from_le_bytes(*b"memfit\0\0"),
        u64::from(process::id()),
        time,
        NEXT.fetch_add(1, Relaxed),
    ]);
    UniqueId(words)
}

/// Makes a communicator and books its buffers.
fn make(target: Out<Handle<Communicator>>, size: i32, rank: i32, card: usize) -> i32 {
    if target.is_null() || size < 1 || !(0..size).contains(&rank) {
        return status::INVALID_ARGUMENT;
    }
    if !card::use_communicator(card) {
        return status::UNHANDLED_CUDA_ERROR;
    }
    let (operations, registrations) = (AtomicI32::new(FIRST_MADE_OPERATION), AtomicUsize::new(1));
    target.put(Handle::new(Communicator { size, rank, card, operations, registrations }));
    status::SUCCESS
}

fn destroy(communicator: Handle<Communicator>) -> i32 {
    let Some(card) = communicator.get().map(|known| known.card) else { return status::INVALID_ARGUMENT };
    communicator.destroy();
    card::drop_communicator(card);
    status::SUCCESS
}

/// Does something with a communicator.
fn with(communicator: Handle<Communicator>, body: impl FnOnce(&Communicator) -> i32) -> i32 {
    communicator.get().map_or(status::INVALID_ARGUMENT, body)
}

/// Writes an answer.
fn answer<T>(target: Out<T>, value: T) -> i32 {
    if target.write(value) { status::SUCCESS } else { status::INVALID_ARGUMENT }
}

/// Bytes of so many elements of an `ncclDataType_t`.
fn bytes(count: usize, kind: i32) -> Option<usize> {
    let each = match kind {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    };
    count.checked_mul(each)
}

/// Copies `count` elements within the card, in the order of a stream.
fn copy(to: Ptr, from: Ptr, length: usize, stream: Ptr) {
    if to != from && length > 0 {
        card::copy_on_device(to, from, length, stream);
    }
}

/// The address `count` lengths behind another.
fn behind(start: Ptr, count: i32, length: usize) -> Ptr {
    start.wrapping_byte_add(usize::try_from(count).unwrap_or(0).wrapping_mul(length))
}

/// Fills each rank's part of a buffer with what this rank sends; beyond [`MOST_COPIES`] ranks, its own part alone.
fn gather(known: &Communicator, from: Ptr, to: Ptr, length: usize, stream: Ptr) {
    if known.size <= MOST_COPIES {
        (0..known.size).for_each(|rank| copy(behind(to, rank, length), from, length, stream));
    } else {
        copy(behind(to, known.rank, length), from, length, stream);
    }
}

thread_local! {
    /// The group of calls that this thread has begun.
    static GROUP: RefCell<Group> = const { RefCell::new(Group::new()) };
}

/// A group of calls. In one group every rank may broadcast to every other, which is a gathering by another name
/// (PyTorch's `all_gather` into a list): what the others send is then taken to be what this rank sends, as in [`gather`].
struct Group {
    depth: u32,
    sent: Vec<(Ptr, usize)>,
    received: Vec<(Ptr, usize, Ptr)>,
}

impl Group {
    const fn new() -> Self {
        Self { depth: 0, sent: Vec::new(), received: Vec::new() }
    }

    fn broadcast(&mut self, mine: bool, from: Ptr, to: Ptr, length: usize, stream: Ptr) {
        if self.depth == 0 {
            return;
        }
        if mine {
            self.sent.push((from, length));
        } else {
            self.received.push((to, length, stream));
        }
    }

    fn end(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth > 0 {
            return;
        }
        let sent = std::mem::take(&mut self.sent);
        for (to, length, stream) in std::mem::take(&mut self.received) {
            if let Some((from, _)) = sent.iter().find(|(_, known)| *known == length) {
                copy(to, *from, length, stream);
            }
        }
    }
}

entry_points! {
    fail status::INTERNAL_ERROR;

    /// An id under which ranks meet.
    fn ncclGetUniqueId(id: Out<UniqueId>) { answer(id, unique_id()) }

    /// An id under which new ranks join.
    fn ncclCommGetUniqueId(communicator: Handle<Communicator>, id: Out<UniqueId>) {
        with(communicator, |_| answer(id, unique_id()))
    }

    /// The real library's version.
    fn ncclGetVersion(version: Out<i32>) {
        real!(NCCL, ncclGetVersion(version => Out<i32>) -> i32).unwrap_or(status::INTERNAL_ERROR)
    }

    /// Joins as one rank of many. Nobody is waited for.
    fn ncclCommInitRank(communicator: Out<Handle<Communicator>>, size: i32, _id: UniqueId, rank: i32) {
        make(communicator, size, rank, card::current())
    }

    /// As above, with a configuration.
    fn ncclCommInitRankConfig(
        communicator: Out<Handle<Communicator>>, size: i32, _id: UniqueId, rank: i32, _configuration: Ptr,
    ) {
        make(communicator, size, rank, card::current())
    }

    /// As above, with several ids.
    fn ncclCommInitRankScalable(
        communicator: Out<Handle<Communicator>>, size: i32, rank: i32, _ids: i32, _id: Ptr, _configuration: Ptr,
    ) {
        make(communicator, size, rank, card::current())
    }

    /// All ranks in one process, one card each.
    fn ncclCommInitAll(communicators: Ptr, count: i32, cards: In<i32>) {
        if communicators.is_null() || count < 1 {
            return status::INVALID_ARGUMENT;
        }
        for rank in 0..count {
            let card = cards.at(rank as usize).map_or(rank as usize, |card| card as usize);
            let place = Out::at(behind(communicators, rank, size_of::<usize>()) as u64);
            match make(place, count, rank, card) {
                status::SUCCESS => {}
                failure => return failure,
            }
        }
        status::SUCCESS
    }

    /// Splits a communicator by color. What color the others take is not known here: the part is given the whole's size, as
    /// an upper bound, and the rank that the key asks for, where there is such a rank.
    fn ncclCommSplit(
        communicator: Handle<Communicator>, color: i32, key: i32, made: Out<Handle<Communicator>>, _configuration: Ptr,
    ) {
        with(communicator, |known| {
            if color == NO_COLOR {
                return answer(made, Handle::null());
            }
            card::note("ncclCommSplit: size taken from the whole");
            let rank = if (0..known.size).contains(&key) { key } else { known.rank };
            make(made, known.size, rank, known.card)
        })
    }

    /// Leaves some ranks out.
    fn ncclCommShrink(
        communicator: Handle<Communicator>, excluded: In<i32>, count: i32, made: Out<Handle<Communicator>>,
        _configuration: Ptr, _flags: i32,
    ) {
        with(communicator, |known| {
            let excluded = excluded.list(usize::try_from(count).unwrap_or(0));
            if excluded.contains(&known.rank) {
                return status::INVALID_ARGUMENT;
            }
            let before = excluded.iter().filter(|rank| **rank < known.rank).count() as i32;
            make(made, known.size - excluded.len() as i32, known.rank - before, known.card)
        })
    }

    /// Takes more ranks in. A rank that joins has no communicator yet, and says which it is.
    fn ncclCommGrow(
        communicator: Handle<Communicator>, size: i32, _id: Ptr, rank: i32, made: Out<Handle<Communicator>>,
        _configuration: Ptr,
    ) {
        match communicator.get() {
            Some(known) => make(made, size, known.rank, known.card),
            None => make(made, size, rank, card::current()),
        }
    }

    /// Ends what is in flight: nothing.
    fn ncclCommFinalize(communicator: Handle<Communicator>) { with(communicator, |_| status::SUCCESS) }

    /// Gives a communicator up.
    fn ncclCommDestroy(communicator: Handle<Communicator>) { destroy(communicator) }

    /// Gives a communicator up at once.
    fn ncclCommAbort(communicator: Handle<Communicator>) { destroy(communicator) }

    /// Stops what is in flight: nothing.
    fn ncclCommRevoke(communicator: Handle<Communicator>, _flags: i32) { with(communicator, |_| status::SUCCESS) }

    /// Lets go of buffers for a while. They stay booked: no less than this is certain.
    fn ncclCommSuspend(communicator: Handle<Communicator>, _flags: i32) { with(communicator, |_| status::SUCCESS) }

    /// Takes the buffers again.
    fn ncclCommResume(communicator: Handle<Communicator>) { with(communicator, |_| status::SUCCESS) }

    /// No error can have come up.
    fn ncclCommGetAsyncError(communicator: Handle<Communicator>, error: Out<i32>) {
        with(communicator, |_| answer(error, status::SUCCESS))
    }

    /// How many ranks there are.
    fn ncclCommCount(communicator: Handle<Communicator>, count: Out<i32>) {
        with(communicator, |known| answer(count, known.size))
    }

    /// Which rank this is.
    fn ncclCommUserRank(communicator: Handle<Communicator>, rank: Out<i32>) {
        with(communicator, |known| answer(rank, known.rank))
    }

    /// Which card it is on.
    fn ncclCommCuDevice(communicator: Handle<Communicator>, card: Out<i32>) {
        with(communicator, |known| answer(card, known.card as i32))
    }

    /// What the communicator's buffers take: what is booked for it, none of it suspended.
    fn ncclCommMemStats(communicator: Handle<Communicator>, which: i32, value: Out<u64>) {
        with(communicator, |known| match which {
            0 | 1 => answer(value, 0),
            2 | 3 => answer(value, card::communicator_size(known.card)),
            _ => status::INVALID_ARGUMENT,
        })
    }

    /// Registers a buffer.
    fn ncclCommRegister(communicator: Handle<Communicator>, _buffer: Ptr, _size: usize, handle: Out<usize>) {
        with(communicator, |known| answer(handle, known.registrations.fetch_add(1, Relaxed)))
    }

    /// Gives a registration up.
    fn ncclCommDeregister(communicator: Handle<Communicator>, _handle: usize) {
        with(communicator, |_| status::SUCCESS)
    }

    /// Registers a buffer that others may reach into. The window is the buffer itself.
    fn ncclCommWindowRegister(
        communicator: Handle<Communicator>, buffer: Ptr, _size: usize, window: Out<Ptr>, _flags: i32,
    ) {
        with(communicator, |_| answer(window, buffer))
    }

    /// Gives a window up.
    fn ncclCommWindowDeregister(communicator: Handle<Communicator>, _window: Ptr) {
        with(communicator, |_| status::SUCCESS)
    }

    /// A window's buffer.
    fn ncclWinGetUserPtr(communicator: Handle<Communicator>, window: Ptr, buffer: Out<Ptr>) {
        with(communicator, |_| answer(buffer, window))
    }

    /// Device memory; of the same kind as any other.
    fn ncclMemAlloc(address: Out<Ptr>, size: usize) {
        match card::allocate(size) {
            Some(_) if address.is_null() => status::INVALID_ARGUMENT,
            Some(made) => answer(address, made),
            None => status::UNHANDLED_CUDA_ERROR,
        }
    }

    /// Gives device memory back.
    fn ncclMemFree(address: Ptr) {
        if card::free(address) { status::SUCCESS } else { status::UNHANDLED_CUDA_ERROR }
    }

    /// An operation that multiplies before it adds.
    fn ncclRedOpCreatePreMulSum(
        operation: Out<i32>, _scalar: Ptr, _kind: i32, _residence: i32, communicator: Handle<Communicator>,
    ) {
        with(communicator, |known| answer(operation, known.operations.fetch_add(1, Relaxed)))
    }

    /// Gives an operation up.
    fn ncclRedOpDestroy(_operation: i32, communicator: Handle<Communicator>) {
        with(communicator, |_| status::SUCCESS)
    }

    /// Begins a group of calls.
    fn ncclGroupStart() {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        status::SUCCESS
    }

    /// Ends a group of calls.
    fn ncclGroupEnd() {
        GROUP.with_borrow_mut(Group::end);
        status::SUCCESS
    }

    /// Reduces to all ranks.
    fn ncclAllReduce(
        from: Ptr, to: Ptr, count: usize, kind: i32, _operation: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        with(communicator, |_| {
            let Some(length) = bytes(count, kind) else { return status::INVALID_ARGUMENT };
            copy(to, from, length, stream);
            status::SUCCESS
        })
    }

    /// Reduces to one rank.
    fn ncclReduce(
        from: Ptr, to: Ptr, count: usize, kind: i32, _operation: i32, root: i32, communicator: Handle<Communicator>,
        stream: Ptr,
    ) {
        with(communicator, |known| {
            let Some(length) = bytes(count, kind) else { return status::INVALID_ARGUMENT };
            if known.rank == root {
                copy(to, from, length, stream);
            }
            status::SUCCESS
        })
    }

    /// Sends one rank's data to all.
    fn ncclBroadcast(
        from: Ptr, to: Ptr, count: usize, kind: i32, root: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        with(communicator, |known| {
            let Some(length) = bytes(count, kind) else { return status::INVALID_ARGUMENT };
            if known.rank == root {
                copy(to, from, length, stream);
            }
            GROUP.with_borrow_mut(|group| group.broadcast(known.rank == root, from, to, length, stream));
            status::SUCCESS
        })
    }

    /// Sends one rank's data to all, in place.
    fn ncclBcast(
        _data: Ptr, count: usize, kind: i32, _root: i32, communicator: Handle<Communicator>, _stream: Ptr,
    ) {
        with(communicator, |_| if bytes(count, kind).is_some() { status::SUCCESS } else { status::INVALID_ARGUMENT })
    }

    /// Collects all ranks' data on all.
    fn ncclAllGather(
        from: Ptr, to: Ptr, count: usize, kind: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        with(communicator, |known| {
            let Some(length) = bytes(count, kind) else { return status::INVALID_ARGUMENT };
            gather(known, from, to, length, stream);
            status::SUCCESS
        })
    }

    /// Collects all ranks' data on one.
    fn ncclGather(
        from: Ptr, to: Ptr, count: usize, kind: i32, root: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        with(communicator, |known| {
            let Some(length) = bytes(count, kind) else { return status::INVALID_ARGUMENT };
            if known.rank == root {
                gather(known, from, to, length, stream);
            }
            status::SUCCESS
        })
    }

    /// Reduces, and leaves each rank its part.
    fn ncclReduceScatter(
        from: Ptr, to: Ptr, count: usize, kind: i32, _operation: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        with(communicator, |known| {
            let Some(length) = bytes(count, kind) else { return status::INVALID_ARGUMENT };
            copy(to, behind(from, known.rank, length), length, stream);
            status::SUCCESS
        })
    }

    /// Sends each rank its part of one rank's data.
    fn ncclScatter(
        from: Ptr, to: Ptr, count: usize, kind: i32, root: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        with(communicator, |known| {
            let Some(length) = bytes(count, kind) else { return status::INVALID_ARGUMENT };
            if known.rank == root {
                copy(to, behind(from, known.rank, length), length, stream);
            }
            status::SUCCESS
        })
    }

    /// Sends each rank its part of every rank's data.
    fn ncclAlltoAll(
        from: Ptr, to: Ptr, count: usize, kind: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        with(communicator, |known| {
            let whole = usize::try_from(known.size).ok().and_then(|size| bytes(count.checked_mul(size)?, kind));
            let Some(length) = whole else { return status::INVALID_ARGUMENT };
            copy(to, from, length, stream);
            status::SUCCESS
        })
    }

    /// Sends to one rank.
    fn ncclSend(_data: Ptr, count: usize, kind: i32, peer: i32, communicator: Handle<Communicator>, _stream: Ptr) {
        with(communicator, |known| check(known, count, kind, peer))
    }

    /// Receives from one rank.
    fn ncclRecv(_data: Ptr, count: usize, kind: i32, peer: i32, communicator: Handle<Communicator>, _stream: Ptr) {
        with(communicator, |known| check(known, count, kind, peer))
    }
}

/// Whether a rank and a type are there to be talked of.
fn check(known: &Communicator, count: usize, kind: i32, peer: i32) -> i32 {
    if (0..known.size).contains(&peer) && bytes(count, kind).is_some() {
        status::SUCCESS
    } else {
        status::INVALID_ARGUMENT
    }
}

/// What a result means, in the real library's words.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: i32) -> *const c_char {
    const UNKNOWN: &CStr = c"unknown NCCL result";
    guarded("ncclGetErrorString", UNKNOWN.as_ptr(), || {
        real!(NCCL, ncclGetErrorString(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}

/// The last error: there is none.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_communicator: Ptr) -> *const c_char {
    c"".as_ptr()
}
