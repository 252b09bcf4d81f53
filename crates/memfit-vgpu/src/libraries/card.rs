//! All that the libraries ask of the device they run on, and all that they tell it.

use memfit_devices::Device;
use memfit_levers::Category;
use memfit_link::{TallyKind, ledger::NAME_BYTES};

use super::entry::Ptr;
use crate::{machine, thread, versions, watch};

/// The ordinal of the calling thread's current card.
pub(super) fn current() -> usize {
    thread::device() as usize
}

/// The calling thread's current card, as the catalogue describes it; `None` where this process may use none.
pub(super) fn device() -> Option<&'static Device> {
    machine::current().ok().map(|card| &card.device)
}

/// The memory that the calling thread's current card has in this run.
pub(super) fn capacity() -> Option<u64> {
    machine::current().ok().map(|card| card.setup.capacity)
}

/// The driver's version as it tells libraries, such as 13020.
pub(super) fn driver_version() -> u32 {
    versions::driver().unsigned_abs()
}

/// A library is to be used on the calling thread's current card: what it takes outside the allocator is booked, once for all
/// libraries. False where there is no card, or no room on it.
pub(super) fn use_libraries() -> bool {
    machine::current().and_then(machine::Card::need_libraries).is_ok()
}

/// A communicator is to be made on a card: its buffers are booked. False where there is no such card, or no room on it.
pub(super) fn use_communicator(card: usize) -> bool {
    machine::card(card as i32).and_then(machine::Card::add_communicator).is_ok()
}

/// A communicator is gone, and its buffers with it.
pub(super) fn drop_communicator(card: usize) {
    if let Ok(card) = machine::card(card as i32) {
        card.remove_communicator();
    }
}

/// What is booked for a communicator, by the best single guess.
pub(super) fn communicator_size(card: usize) -> u64 {
    machine::card(card as i32).map_or(0, |card| card.setup.communicator.typical)
}

/// A library was handed this memory as its workspace.
pub(super) fn workspace(address: Ptr) {
    if !address.is_null() {
        watch::note(address as u64, Category::Workspace);
    }
}

/// Something that a report must say wherever it happened.
pub(super) fn note(text: &'static str) {
    debug_assert!(text.len() <= NAME_BYTES, "the ledger would cut off: {text}");
    machine::count(TallyKind::Note, text);
}

unsafe extern "C" {
    // The runtime's own calls, exported from this library.
    fn cudaMalloc(address: *mut Ptr, size: usize) -> i32;
    fn cudaFree(address: Ptr) -> i32;
    fn cudaMemcpyAsync(to: Ptr, from: Ptr, size: usize, way: i32, stream: Ptr) -> i32;
    fn cudaMemcpy2D(
        to: Ptr, to_pitch: usize, from: Ptr, from_pitch: usize, width: usize, height: usize, way: i32,
    ) -> i32;
}

/// Device memory as the runtime gives it; `None` where the card has no room.
pub(super) fn allocate(size: usize) -> Option<Ptr> {
    let mut address = std::ptr::null_mut();
    // SAFETY: `address` may be written.
    (unsafe { cudaMalloc(&raw mut address, size) } == 0).then_some(address)
}

/// Gives device memory back; false where the runtime does not know it.
pub(super) fn free(address: Ptr) -> bool {
    // SAFETY: the runtime checks the address.
    unsafe { cudaFree(address) == 0 }
}

/// Copies within the device, in the order of a stream; false if the runtime would not.
pub(super) fn copy_on_device(to: Ptr, from: Ptr, size: usize, stream: Ptr) -> bool {
    /// `cudaMemcpyDeviceToDevice`.
    const WITHIN: i32 = 3;
    // SAFETY: the runtime checks the addresses, and follows none of the device's.
    unsafe { cudaMemcpyAsync(to, from, size, WITHIN, stream) == 0 }
}

/// Copies runs of bytes between the host and the device as the runtime does; false if it would not.
pub(super) fn copy_2d(
    to: Ptr, to_pitch: usize, from: Ptr, from_pitch: usize, width: usize, height: usize, way: i32,
) -> bool {
    // SAFETY: the runtime checks what it can, and the caller of the library vouches for the rest.
    unsafe { cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, way) == 0 }
}
