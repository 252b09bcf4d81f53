//! All that the libraries ask of the device they run on, and all that they tell it.

use std::ffi::CString;

use memfit_channel::TallyKind;
use memfit_devices::Device;
use memfit_devices::Interval;
use memfit_vocabulary::Category;
use memfit_vocabulary::Remark;

use memfit_abi::Ptr;
use memfit_kernels::cost::{Speeds, Work};

use crate::clock::Effort;
use crate::graphs::{self, Act};
use crate::memory::device;
use crate::space::Kind;
use crate::{beside, copies, machine, streams, thread, values, versions, watch};

/// The ordinal of the calling thread's current card.
pub fn current() -> usize {
    thread::device() as usize
}

/// The calling thread's current card, as the catalogue describes it; `None` where this process may use none.
pub fn device() -> Option<&'static Device> {
    machine::current().ok().map(|card| &card.device)
}

/// The memory that the calling thread's current card has in this run.
pub fn capacity() -> Option<u64> {
    machine::current().ok().map(|card| card.device.memory.get())
}

/// The driver's version as it tells libraries, such as 13020.
pub fn driver_version() -> u32 {
    versions::driver().unsigned_abs()
}

/// A library is to be used on the calling thread's current card: what it takes outside the allocator is
/// booked, once for all libraries. False where there is no card, or no room on it.
pub fn use_libraries() -> bool {
    machine::current().and_then(machine::Card::need_libraries).is_ok()
}

/// What a communicator on a card takes once it has reduced to all; `None` where there is no such card.
pub fn communicator(card: usize) -> Option<Interval> {
    machine::card(card as i32).ok().map(|card| card.overhead.per_communicator)
}

/// Whether a card has a direct link to the others of its machine.
pub fn has_peer_link(card: usize) -> bool {
    machine::card(card as i32).is_ok_and(|card| card.device.peer_link.is_some())
}

/// Books buffers of a communicator on a card. False where there is no such card, or no room on it.
pub fn book_communication(card: usize, size: Interval) -> bool {
    machine::card(card as i32).and_then(|card| card.book_communication(size)).is_ok()
}

/// Gives buffers of a communicator back.
pub fn unbook_communication(card: usize, size: Interval) {
    if let Ok(card) = machine::card(card as i32) {
        card.unbook_communication(size);
    }
}

/// What device memory holds, if all of it is known, or some of it where that is enough; and whether a rule
/// answered for it.
pub fn known(address: Ptr, size: usize, all: bool) -> Option<(Vec<u8>, bool)> {
    values::known(address as u64, size as u64, all)
}

/// Device memory now holds what came from another rank, where a rule may have answered for it.
pub fn put(address: Ptr, bytes: &[u8], answered: bool) {
    values::received(address as u64, bytes, answered);
}

/// A library wrote its result there, nobody knows how much of it: what was known there is known no more.
pub fn overwritten(address: Ptr) {
    let address = address as u64;
    now_and_in_graphs(move || values::overwritten(address));
}

/// A library wrote a result of so many bytes there.
pub fn computed(address: Ptr, size: u64) {
    let address = address as u64;
    now_and_in_graphs(move || values::computed(address, size));
}

/// What becomes of memory by a call of a library: now, and whenever a graph is launched into which it may be
/// captured.
fn now_and_in_graphs(act: impl Fn() + Clone + Send + Sync + 'static) {
    for capture in graphs::under_way() {
        graphs::add_act(capture, Act::new(act.clone()));
    }
    act();
}

/// A library was handed this memory as its workspace.
pub fn workspace(address: Ptr) {
    if !address.is_null() {
        watch::note(address as u64, Category::Workspace);
    }
}

/// Adds a remark to the report.
pub fn remark(remark: Remark) {
    machine::count(TallyKind::Note, remark.id());
}

/// Adds a remark on something that `bytes` were booked for.
pub fn remark_on_bytes(remark: Remark, bytes: u64) {
    self::remark(remark);
    machine::at_stake(remark.id(), bytes);
}

/// Device memory as the runtime gives it; `None` where the card has no room.
pub fn allocate(size: usize) -> Option<Ptr> {
    let card = machine::current_context().ok()?;
    device::allocate(card, size as u64, Kind::Device).ok().map(|address| address as Ptr)
}

/// Gives device memory back; false where it was not allocated.
pub fn free(address: Ptr) -> bool {
    device::free(address as u64, |kind| kind == Kind::Device).is_ok()
}

/// Work of a library's on a stream of the current card, as long as its speeds make it. What is queued on no
/// stream is nobody's.
pub fn launch(stream: usize, work: impl Fn(&Speeds) -> Work) {
    if let Ok(card) = machine::current() {
        let own = work(&card.speeds);
        beside::measure(&work);
        let _ = streams::queue(stream as u64, own, Effort::Operator);
    }
}

/// Copies what is known of memory, as a part of work that takes its time as a whole; false if the runtime
/// would not.
pub fn move_on_device(to: Ptr, from: Ptr, size: usize) -> bool {
    /// `cudaMemcpyDeviceToDevice`.
    const WITHIN: i32 = 3;
    let direction = copies::Direction::new(WITHIN);
    direction.and_then(|way| copies::copy(to as u64, from as u64, size as u64, way)).is_ok()
}

/// Copies runs of bytes between the host and the device as the runtime does; false if it would not.
pub fn copy_2d(to: (Ptr, usize), from: (Ptr, usize), width: usize, height: usize, way: i32) -> bool {
    let copy = || {
        let (to, from) = ((to.0 as u64, to.1 as u64), (from.0 as u64, from.1 as u64));
        copies::rectangle(to, from, width as u64, height as u64, copies::Direction::new(way)?)
    };
    copies::at_once(copy).is_ok()
}

/// What memory at an address holds is known no more, from this call on: what is captured does not count.
pub fn overwritten_now(address: u64) {
    values::overwritten(address);
}

/// The same for each address of a list on the device.
pub fn overwritten_each_now(list: u64) {
    values::overwritten_each(list);
}

/// Counts something that a modelled call does not model, by name.
pub fn refused(name: &str) {
    machine::refused(name);
}

/// The path of a loaded library whose file name begins with these bytes.
pub fn path_of(prefix: &'static [u8]) -> Option<CString> {
    versions::path_of(prefix)
}

/// The loaded CUDA runtime's version, as `cudaRuntimeGetVersion` counts: 12080 for 12.8.
pub fn runtime_version() -> i32 {
    versions::runtime()
}
