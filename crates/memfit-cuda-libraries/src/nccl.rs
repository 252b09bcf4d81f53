//! NCCL: communicators that know their size and rank, and what their operations leave in memory.
//!
//! [`communicator`] is a rank's place among the others, [`buffers`] what it takes of the card, [`collective`]
//! what an operation does, [`meeting`] how small known contents travel between processes, [`arithmetic`] what
//! is computed of them.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

mod arithmetic;
mod buffers;
mod collective;
mod communicator;
mod meeting;

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::Relaxed;

use self::collective::{Operation, Shape, end_group, run, start_group};
use self::communicator::{Communicator, Place, UniqueId, destroy, make, make_all};
use super::entry::{Fails, Handle, In, Out, Ptr, entry_points, guarded};
use super::real::real;
use memfit_cuda::card;

/// `ncclResult_t`, as far as it is said here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const UNHANDLED_CUDA_ERROR: i32 = 1;
    pub(super) const INTERNAL_ERROR: i32 = 3;
    pub(super) const INVALID_ARGUMENT: i32 = 4;
}

/// Does something with a communicator.
fn with(communicator: Handle<Communicator>, body: impl FnOnce(&Communicator) -> i32) -> i32 {
    communicator.get().map_or(status::INVALID_ARGUMENT, |known| body(&known))
}

/// Writes an answer.
fn answer<T>(target: Out<T>, value: T) -> i32 {
    if target.write(value) { status::SUCCESS } else { status::INVALID_ARGUMENT }
}

/// A rank on the calling thread's current card.
fn here(size: i32, rank: i32) -> Place {
    Place { size, rank, card: card::current_ordinal() }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// An id under which ranks meet.
    fn ncclGetUniqueId(id: Out<UniqueId>) { answer(id, UniqueId::new()) }

    /// An id under which new ranks join.
    fn ncclCommGetUniqueId(communicator: Handle<Communicator>, id: Out<UniqueId>) {
        with(communicator, |_| answer(id, UniqueId::new()))
    }

    /// The real library's version.
    fn ncclGetVersion(version: Out<i32>) {
        real!(NCCL, ncclGetVersion(version => Out<i32>) -> i32).unwrap_or(status::INTERNAL_ERROR)
    }

    /// Joins as one rank of many. Nobody is waited for.
    fn ncclCommInitRank(communicator: Out<Handle<Communicator>>, size: i32, id: UniqueId, rank: i32) {
        make(communicator, here(size, rank), id.name())
    }

    /// As above, with a configuration.
    fn ncclCommInitRankConfig(
        communicator: Out<Handle<Communicator>>, size: i32, id: UniqueId, rank: i32, _configuration: Ptr,
    ) {
        make(communicator, here(size, rank), id.name())
    }

    /// As above, with several ids.
    fn ncclCommInitRankScalable(
        communicator: Out<Handle<Communicator>>, size: i32, rank: i32, _ids: i32, ids: In<UniqueId>, _configuration: Ptr,
    ) {
        let Some(first) = ids.get() else { return status::INVALID_ARGUMENT };
        make(communicator, here(size, rank), first.name())
    }

    /// All ranks in one process, one card each.
    fn ncclCommInitAll(communicators: Ptr, count: i32, cards: In<i32>) {
        make_all(communicators, count, cards)
    }

    /// Splits a communicator by color.
    fn ncclCommSplit(
        communicator: Handle<Communicator>, color: i32, key: i32, made: Out<Handle<Communicator>>, _configuration: Ptr,
    ) {
        with(communicator, |known| known.split(color, key, made))
    }

    /// Leaves some ranks out.
    fn ncclCommShrink(
        communicator: Handle<Communicator>, excluded: In<i32>, count: i32, made: Out<Handle<Communicator>>,
        _configuration: Ptr, _flags: i32,
    ) {
        with(communicator, |known| {
            let excluded = excluded.list(usize::try_from(count).unwrap_or(0));
            let place = known.place;
            if excluded.contains(&place.rank) {
                return status::INVALID_ARGUMENT;
            }
            let before = excluded.iter().filter(|rank| **rank < place.rank).count() as i32;
            let (size, rank) = (place.size - excluded.len() as i32, place.rank - before);
            make(made, Place { size, rank, ..place }, known.next_name(size as u64))
        })
    }

    /// Takes more ranks in. A rank that joins has no communicator yet, and says which it is.
    fn ncclCommGrow(
        communicator: Handle<Communicator>, size: i32, id: In<UniqueId>, rank: i32, made: Out<Handle<Communicator>>,
        _configuration: Ptr,
    ) {
        let name = id.get().unwrap_or_else(UniqueId::new).name();
        match communicator.get() {
            Some(known) => make(made, Place { size, ..known.place }, name),
            None => make(made, here(size, rank), name),
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
        with(communicator, |known| answer(count, known.place.size))
    }

    /// Which rank this is.
    fn ncclCommUserRank(communicator: Handle<Communicator>, rank: Out<i32>) {
        with(communicator, |known| answer(rank, known.place.rank))
    }

    /// Which card it is on.
    fn ncclCommCuDevice(communicator: Handle<Communicator>, card: Out<i32>) {
        with(communicator, |known| answer(card, known.place.card as i32))
    }

    /// What the communicator's buffers take: what is booked for it, none of it suspended.
    fn ncclCommMemStats(communicator: Handle<Communicator>, which: i32, value: Out<u64>) {
        with(communicator, |known| match which {
            0 | 1 => answer(value, 0),
            2 | 3 => answer(value, known.buffers.size()),
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
        start_group();
        status::SUCCESS
    }

    /// Ends a group of calls.
    fn ncclGroupEnd() {
        end_group();
        status::SUCCESS
    }

    /// Reduces to all ranks.
    fn ncclAllReduce(
        from: Ptr, to: Ptr, count: usize, kind: i32, operation: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, shape: Shape::AllReduce(operation), from, to, count, kind, stream })
    }

    /// Reduces to one rank.
    fn ncclReduce(
        from: Ptr, to: Ptr, count: usize, kind: i32, operation: i32, root: i32, communicator: Handle<Communicator>,
        stream: Ptr,
    ) {
        run(Operation { communicator, shape: Shape::Reduce(operation, root), from, to, count, kind, stream })
    }

    /// Sends one rank's data to all.
    fn ncclBroadcast(
        from: Ptr, to: Ptr, count: usize, kind: i32, root: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, shape: Shape::Broadcast(root), from, to, count, kind, stream })
    }

    /// Sends one rank's data to all, in place.
    fn ncclBcast(data: Ptr, count: usize, kind: i32, root: i32, communicator: Handle<Communicator>, stream: Ptr) {
        run(Operation { communicator, shape: Shape::Broadcast(root), from: data, to: data, count, kind, stream })
    }

    /// Collects all ranks' data on all.
    fn ncclAllGather(
        from: Ptr, to: Ptr, count: usize, kind: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, shape: Shape::AllGather, from, to, count, kind, stream })
    }

    /// Collects all ranks' data on one.
    fn ncclGather(
        from: Ptr, to: Ptr, count: usize, kind: i32, root: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, shape: Shape::Gather(root), from, to, count, kind, stream })
    }

    /// Reduces, and leaves each rank its part.
    fn ncclReduceScatter(
        from: Ptr, to: Ptr, count: usize, kind: i32, operation: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, shape: Shape::ReduceScatter(operation), from, to, count, kind, stream })
    }

    /// Sends each rank its part of one rank's data.
    fn ncclScatter(
        from: Ptr, to: Ptr, count: usize, kind: i32, root: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, shape: Shape::Scatter(root), from, to, count, kind, stream })
    }

    /// Sends each rank its part of every rank's data.
    fn ncclAlltoAll(
        from: Ptr, to: Ptr, count: usize, kind: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, shape: Shape::AllToAll, from, to, count, kind, stream })
    }

    /// Sends to one rank.
    fn ncclSend(from: Ptr, count: usize, kind: i32, peer: i32, communicator: Handle<Communicator>, stream: Ptr) {
        let to = std::ptr::null_mut();
        run(Operation { communicator, shape: Shape::Send(peer), from, to, count, kind, stream })
    }

    /// Receives from one rank.
    fn ncclRecv(to: Ptr, count: usize, kind: i32, peer: i32, communicator: Handle<Communicator>, stream: Ptr) {
        let from = std::ptr::null_mut();
        run(Operation { communicator, shape: Shape::Receive(peer), from, to, count, kind, stream })
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
