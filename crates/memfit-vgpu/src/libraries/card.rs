//! All that the libraries ask of the device they run on, and all that they tell it.

use memfit_devices::Device;
use memfit_levers::Category;
use memfit_link::{Confession, SizedInterval, TallyKind};

use super::entry::Ptr;
use crate::clock::Effort;
use crate::cost::{Speeds, Work};
use crate::graphs::{self, Act};
use crate::memory::{Kind, device};
use crate::{copies, machine, streams, thread, values, versions, watch};

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

/// What a communicator on a card takes once it has reduced to all; `None` where there is no such card.
pub(super) fn communicator(card: usize) -> Option<SizedInterval> {
    machine::card(card as i32).ok().map(|card| card.setup.communicator)
}

/// Whether a card has a direct link to the others of its machine.
pub(super) fn has_peer_link(card: usize) -> bool {
    machine::card(card as i32).is_ok_and(|card| card.device.peer_link.is_some())
}

/// Books buffers of a communicator on a card. False where there is no such card, or no room on it.
pub(super) fn book_communication(card: usize, size: SizedInterval) -> bool {
    machine::card(card as i32).and_then(|card| card.book_communication(size)).is_ok()
}

/// Gives buffers of a communicator back.
pub(super) fn unbook_communication(card: usize, size: SizedInterval) {
    if let Ok(card) = machine::card(card as i32) {
        card.unbook_communication(size);
    }
}

/// What device memory holds, if all of it is known, or some of it where that is enough; and whether a rule answered for it.
pub(super) fn known(address: Ptr, size: usize, all: bool) -> Option<(Vec<u8>, bool)> {
    values::known(address as u64, size as u64, all)
}

/// Device memory now holds what came from another rank, where a rule may have answered for it.
pub(super) fn put(address: Ptr, bytes: &[u8], answered: bool) {
    values::received(address as u64, bytes, answered);
}

/// A library wrote its result there, nobody knows how much of it: what was known there is known no more.
pub(super) fn overwritten(address: Ptr) {
    let address = address as u64;
    now_and_in_graphs(move || values::overwritten(address));
}

/// A library wrote a result of so many bytes there.
pub(super) fn computed(address: Ptr, size: u64) {
    let address = address as u64;
    now_and_in_graphs(move || values::computed(address, size));
}

/// What becomes of memory by a call of a library: now, and whenever a graph is launched into which it may be captured.
fn now_and_in_graphs(act: impl Fn() + Clone + Send + Sync + 'static) {
    for capture in graphs::under_way() {
        graphs::add_act(capture, Act::new(act.clone()));
    }
    act();
}

/// A library was handed this memory as its workspace.
pub(super) fn workspace(address: Ptr) {
    if !address.is_null() {
        watch::note(address as u64, Category::Workspace);
    }
}

/// Something that a report must say wherever it happened.
pub(super) fn confess(confession: Confession) {
    machine::count(TallyKind::Note, confession.words);
}

/// The same of something that so many bytes were booked for.
pub(super) fn confess_bytes(confession: Confession, bytes: u64) {
    confess(confession);
    machine::at_stake(confession.words, bytes);
}

/// Device memory as the runtime gives it; `None` where the card has no room.
pub(super) fn allocate(size: usize) -> Option<Ptr> {
    let card = machine::current_context().ok()?;
    device::allocate(card, size as u64, Kind::Device).ok().map(|address| address as Ptr)
}

/// Gives device memory back; false where it was not allocated.
pub(super) fn free(address: Ptr) -> bool {
    device::free(address as u64, |kind| kind == Kind::Device).is_ok()
}

/// Work of a library's on a stream of the current card, as long as its speeds make it. What is queued on no stream is nobody's.
pub(super) fn launch(stream: usize, work: impl FnOnce(&Speeds) -> Work) {
    if let Ok(card) = machine::current() {
        let _ = streams::queue(stream as u64, work(&card.speeds), Effort::Operator);
    }
}

/// Copies what is known of memory, as a part of work that takes its time as a whole; false if the runtime would not.
pub(super) fn move_on_device(to: Ptr, from: Ptr, size: usize) -> bool {
    /// `cudaMemcpyDeviceToDevice`.
    const WITHIN: i32 = 3;
    let direction = copies::Direction::new(WITHIN);
    direction.and_then(|way| copies::copy(to as u64, from as u64, size as u64, way)).is_ok()
}

/// Copies runs of bytes between the host and the device as the runtime does; false if it would not.
pub(super) fn copy_2d(to: (Ptr, usize), from: (Ptr, usize), width: usize, height: usize, way: i32) -> bool {
    let copy = || {
        let (to, from) = ((to.0 as u64, to.1 as u64), (from.0 as u64, from.1 as u64));
        copies::rectangle(to, from, width as u64, height as u64, copies::Direction::new(way)?)
    };
    copies::at_once(copy).is_ok()
}
