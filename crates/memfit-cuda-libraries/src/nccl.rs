//! NCCL: communicators that know their size and rank, and the effects of their operations on memory.
//!
//! [`communicator`] is a rank's position among the others, [`buffers`] its memory on the device,
//! [`collective`] the effect of an operation, [`meeting`] the exchange of small known contents between
//! processes, [`arithmetic`] the reductions computed on them.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

mod arithmetic;
mod buffers;
mod collective;
mod communicator;
mod meeting;

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::Relaxed;

use self::collective::{Operation, Pattern, end_group, run, start_group};
use self::communicator::{Communicator, RankPosition, UniqueId, destroy, make, make_all};
use super::entry::{Fails, Handle, In, Out, Ptr, entry_points, guarded};
use super::real::real;
use memfit_cuda::card;

/// The part of `ncclResult_t` that is returned here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const UNHANDLED_CUDA_ERROR: i32 = 1;
    pub(super) const INTERNAL_ERROR: i32 = 3;
    pub(super) const INVALID_ARGUMENT: i32 = 4;
}

/// Calls `body` with a communicator.
fn with_communicator(communicator: Handle<Communicator>, body: impl FnOnce(&Communicator) -> i32) -> i32 {
    communicator.get().map_or(status::INVALID_ARGUMENT, |known| body(&known))
}

/// Writes a result.
fn write_result<T>(target: Out<T>, value: T) -> i32 {
    if target.write(value) { status::SUCCESS } else { status::INVALID_ARGUMENT }
}

/// A rank on the calling thread's current device.
fn current_position(size: i32, rank: i32) -> RankPosition {
    RankPosition { size, rank, card: card::current_ordinal() }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Creates an id under which ranks meet.
    fn ncclGetUniqueId(id: Out<UniqueId>) { write_result(id, UniqueId::new()) }

    /// Creates an id under which new ranks join.
    fn ncclCommGetUniqueId(communicator: Handle<Communicator>, id: Out<UniqueId>) {
        with_communicator(communicator, |_| write_result(id, UniqueId::new()))
    }

    /// Returns the real library's version.
    fn ncclGetVersion(version: Out<i32>) {
        real!(NCCL, ncclGetVersion(version => Out<i32>) -> i32).unwrap_or(status::INTERNAL_ERROR)
    }

    /// Joins as one rank of many, without waiting for the others.
    fn ncclCommInitRank(communicator: Out<Handle<Communicator>>, size: i32, id: UniqueId, rank: i32) {
        make(communicator, current_position(size, rank), id.name())
    }

    /// Does the same with a configuration.
    fn ncclCommInitRankConfig(
        communicator: Out<Handle<Communicator>>, size: i32, id: UniqueId, rank: i32, _configuration: Ptr,
    ) {
        make(communicator, current_position(size, rank), id.name())
    }

    /// Does the same with several ids.
    fn ncclCommInitRankScalable(
        communicator: Out<Handle<Communicator>>, size: i32, rank: i32, _ids: i32, ids: In<UniqueId>, _configuration: Ptr,
    ) {
        let Some(first) = ids.get() else { return status::INVALID_ARGUMENT };
        make(communicator, current_position(size, rank), first.name())
    }

    /// Creates the communicators of all ranks in one process, one device each.
    fn ncclCommInitAll(communicators: Ptr, count: i32, cards: In<i32>) {
        make_all(communicators, count, cards)
    }

    /// Splits a communicator by color.
    fn ncclCommSplit(
        communicator: Handle<Communicator>, color: i32, key: i32, made: Out<Handle<Communicator>>, _configuration: Ptr,
    ) {
        with_communicator(communicator, |known| known.split(color, key, made))
    }

    /// Creates a communicator without some of the ranks.
    fn ncclCommShrink(
        communicator: Handle<Communicator>, excluded: In<i32>, count: i32, made: Out<Handle<Communicator>>,
        _configuration: Ptr, _flags: i32,
    ) {
        with_communicator(communicator, |known| {
            let excluded = excluded.list(usize::try_from(count).unwrap_or(0));
            let position = known.position;
            if excluded.contains(&position.rank) {
                return status::INVALID_ARGUMENT;
            }
            let before = excluded.iter().filter(|rank| **rank < position.rank).count() as i32;
            let (size, rank) = (position.size - excluded.len() as i32, position.rank - before);
            make(made, RankPosition { size, rank, ..position }, known.next_name(size as u64))
        })
    }

    /// Creates a communicator with additional ranks. A joining rank has no communicator yet, and passes its
    /// number.
    fn ncclCommGrow(
        communicator: Handle<Communicator>, size: i32, id: In<UniqueId>, rank: i32, made: Out<Handle<Communicator>>,
        _configuration: Ptr,
    ) {
        let name = id.get().unwrap_or_else(UniqueId::new).name();
        match communicator.get() {
            Some(known) => make(made, RankPosition { size, ..known.position }, name),
            None => make(made, current_position(size, rank), name),
        }
    }

    /// Completes outstanding operations, of which there are none.
    fn ncclCommFinalize(communicator: Handle<Communicator>) { with_communicator(communicator, |_| status::SUCCESS) }

    /// Destroys a communicator.
    fn ncclCommDestroy(communicator: Handle<Communicator>) { destroy(communicator) }

    /// Destroys a communicator immediately.
    fn ncclCommAbort(communicator: Handle<Communicator>) { destroy(communicator) }

    /// Cancels outstanding operations, of which there are none.
    fn ncclCommRevoke(communicator: Handle<Communicator>, _flags: i32) { with_communicator(communicator, |_| status::SUCCESS) }

    /// Releases buffers for a while. They stay reserved, since no smaller amount is certain.
    fn ncclCommSuspend(communicator: Handle<Communicator>, _flags: i32) { with_communicator(communicator, |_| status::SUCCESS) }

    /// Restores the buffers.
    fn ncclCommResume(communicator: Handle<Communicator>) { with_communicator(communicator, |_| status::SUCCESS) }

    /// Reports that no error has occurred.
    fn ncclCommGetAsyncError(communicator: Handle<Communicator>, error: Out<i32>) {
        with_communicator(communicator, |_| write_result(error, status::SUCCESS))
    }

    /// Returns the number of ranks.
    fn ncclCommCount(communicator: Handle<Communicator>, count: Out<i32>) {
        with_communicator(communicator, |known| write_result(count, known.position.size))
    }

    /// Returns this rank.
    fn ncclCommUserRank(communicator: Handle<Communicator>, rank: Out<i32>) {
        with_communicator(communicator, |known| write_result(rank, known.position.rank))
    }

    /// Returns the rank's device.
    fn ncclCommCuDevice(communicator: Handle<Communicator>, card: Out<i32>) {
        with_communicator(communicator, |known| write_result(card, known.position.card as i32))
    }

    /// Returns the size of the communicator's buffers: its reserved bytes, none of them suspended.
    fn ncclCommMemStats(communicator: Handle<Communicator>, which: i32, value: Out<u64>) {
        with_communicator(communicator, |known| match which {
            0 | 1 => write_result(value, 0),
            2 | 3 => write_result(value, known.buffers.size()),
            _ => status::INVALID_ARGUMENT,
        })
    }

    /// Registers a buffer.
    fn ncclCommRegister(communicator: Handle<Communicator>, _buffer: Ptr, _size: usize, handle: Out<usize>) {
        with_communicator(communicator, |known| write_result(handle, known.registrations.fetch_add(1, Relaxed)))
    }

    /// Removes a registration.
    fn ncclCommDeregister(communicator: Handle<Communicator>, _handle: usize) {
        with_communicator(communicator, |_| status::SUCCESS)
    }

    /// Registers a buffer that other ranks may access. The window is the buffer itself.
    fn ncclCommWindowRegister(
        communicator: Handle<Communicator>, buffer: Ptr, _size: usize, window: Out<Ptr>, _flags: i32,
    ) {
        with_communicator(communicator, |_| write_result(window, buffer))
    }

    /// Removes a window.
    fn ncclCommWindowDeregister(communicator: Handle<Communicator>, _window: Ptr) {
        with_communicator(communicator, |_| status::SUCCESS)
    }

    /// Returns a window's buffer.
    fn ncclWinGetUserPtr(communicator: Handle<Communicator>, window: Ptr, buffer: Out<Ptr>) {
        with_communicator(communicator, |_| write_result(buffer, window))
    }

    /// Allocates device memory, the same kind as any other.
    fn ncclMemAlloc(address: Out<Ptr>, size: usize) {
        match card::allocate(size) {
            Some(_) if address.is_null() => status::INVALID_ARGUMENT,
            Some(made) => write_result(address, made),
            None => status::UNHANDLED_CUDA_ERROR,
        }
    }

    /// Frees device memory.
    fn ncclMemFree(address: Ptr) {
        if card::free(address) { status::SUCCESS } else { status::UNHANDLED_CUDA_ERROR }
    }

    /// Creates an operation that multiplies before it adds.
    fn ncclRedOpCreatePreMulSum(
        operation: Out<i32>, _scalar: Ptr, _kind: i32, _residence: i32, communicator: Handle<Communicator>,
    ) {
        with_communicator(communicator, |known| write_result(operation, known.operations.fetch_add(1, Relaxed)))
    }

    /// Destroys an operation.
    fn ncclRedOpDestroy(_operation: i32, communicator: Handle<Communicator>) {
        with_communicator(communicator, |_| status::SUCCESS)
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
        run(Operation { communicator, pattern: Pattern::AllReduce(operation), from, to, count, kind, stream })
    }

    /// Reduces to one rank.
    fn ncclReduce(
        from: Ptr, to: Ptr, count: usize, kind: i32, operation: i32, root: i32, communicator: Handle<Communicator>,
        stream: Ptr,
    ) {
        run(Operation { communicator, pattern: Pattern::Reduce(operation, root), from, to, count, kind, stream })
    }

    /// Sends one rank's data to all.
    fn ncclBroadcast(
        from: Ptr, to: Ptr, count: usize, kind: i32, root: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, pattern: Pattern::Broadcast(root), from, to, count, kind, stream })
    }

    /// Sends one rank's data to all, in place.
    fn ncclBcast(data: Ptr, count: usize, kind: i32, root: i32, communicator: Handle<Communicator>, stream: Ptr) {
        run(Operation { communicator, pattern: Pattern::Broadcast(root), from: data, to: data, count, kind, stream })
    }

    /// Collects all ranks' data on all.
    fn ncclAllGather(
        from: Ptr, to: Ptr, count: usize, kind: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, pattern: Pattern::AllGather, from, to, count, kind, stream })
    }

    /// Collects all ranks' data on one.
    fn ncclGather(
        from: Ptr, to: Ptr, count: usize, kind: i32, root: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, pattern: Pattern::Gather(root), from, to, count, kind, stream })
    }

    /// Reduces, and leaves each rank its part.
    fn ncclReduceScatter(
        from: Ptr, to: Ptr, count: usize, kind: i32, operation: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, pattern: Pattern::ReduceScatter(operation), from, to, count, kind, stream })
    }

    /// Sends each rank its part of one rank's data.
    fn ncclScatter(
        from: Ptr, to: Ptr, count: usize, kind: i32, root: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, pattern: Pattern::Scatter(root), from, to, count, kind, stream })
    }

    /// Sends each rank its part of every rank's data.
    fn ncclAlltoAll(
        from: Ptr, to: Ptr, count: usize, kind: i32, communicator: Handle<Communicator>, stream: Ptr,
    ) {
        run(Operation { communicator, pattern: Pattern::AllToAll, from, to, count, kind, stream })
    }

    /// Sends to one rank.
    fn ncclSend(from: Ptr, count: usize, kind: i32, peer: i32, communicator: Handle<Communicator>, stream: Ptr) {
        let to = std::ptr::null_mut();
        run(Operation { communicator, pattern: Pattern::Send(peer), from, to, count, kind, stream })
    }

    /// Receives from one rank.
    fn ncclRecv(to: Ptr, count: usize, kind: i32, peer: i32, communicator: Handle<Communicator>, stream: Ptr) {
        let from = std::ptr::null_mut();
        run(Operation { communicator, pattern: Pattern::Receive(peer), from, to, count, kind, stream })
    }
}

/// Returns the description of a result, from the real library.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: i32) -> *const c_char {
    const UNKNOWN: &CStr = c"unknown NCCL result";
    guarded("ncclGetErrorString", UNKNOWN.as_ptr(), || {
        real!(NCCL, ncclGetErrorString(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}

/// Returns the last error: there is none.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_communicator: Ptr) -> *const c_char {
    c"".as_ptr()
}
