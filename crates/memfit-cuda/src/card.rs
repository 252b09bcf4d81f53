//! The interface between the device and the libraries above it: everything that they query and report.

use std::ffi::CString;

use memfit_channel::TallyKind;
use memfit_devices::Device;
use memfit_devices::Interval;
use memfit_vocabulary::Category;
use memfit_vocabulary::Remark;

use memfit_abi::Ptr;
use memfit_kernels::cost::{Speeds, Work};

use crate::clock::Effort;
use crate::graphs::{self, Effect};
use crate::memory::device;
use crate::space::Kind;
use crate::{beside, copies, machine, streams, thread, values, versions, watch};

/// Ordinal of the calling thread's current device.
pub fn current_ordinal() -> usize {
    thread::device() as usize
}

/// Catalogue entry of the calling thread's current device; `None` if this process may use no device.
pub fn device() -> Option<&'static Device> {
    machine::current().ok().map(|card| &card.device)
}

/// Memory in bytes that the calling thread's current device has in this run.
pub fn capacity() -> Option<u64> {
    machine::current().ok().map(|card| card.device.memory.get())
}

/// Driver version as libraries query it, such as 13020.
pub fn driver_version() -> u32 {
    versions::driver().unsigned_abs()
}

/// Reserves the memory that libraries take outside the allocator on the calling thread's current device, once
/// for all libraries. Returns `false` if there is no device or not enough memory on it.
pub fn use_libraries() -> bool {
    machine::current().and_then(machine::Card::need_libraries).is_ok()
}

/// Memory that a communicator takes on a device after its first all-reduce; `None` if there is no such
/// device.
pub fn communicator_overhead(card: usize) -> Option<Interval> {
    machine::card(card as i32).ok().map(|card| card.overhead.per_communicator)
}

/// Returns `true` if a device has a direct link (NVLink) to the other devices of its machine.
pub fn has_peer_link(card: usize) -> bool {
    machine::card(card as i32).is_ok_and(|card| card.device.peer_link.is_some())
}

/// Reserves communicator buffers on a device. Returns `false` if there is no such device or not enough memory
/// on it.
pub fn book_communication(card: usize, size: Interval) -> bool {
    machine::card(card as i32).and_then(|card| card.book_communication(size)).is_ok()
}

/// Releases communicator buffers.
pub fn unbook_communication(card: usize, size: Interval) {
    if let Ok(card) = machine::card(card as i32) {
        card.unbook_communication(size);
    }
}

/// Returns the known contents of device memory, and whether a rule supplied any of them. With `all`, returns
/// `None` unless every byte is known; without, some known bytes are enough.
pub fn known_contents(address: Ptr, size: usize, all: bool) -> Option<(Vec<u8>, bool)> {
    values::known_contents(address as u64, size as u64, all)
}

/// Stores bytes received from another rank in device memory. `answered` says that a rule supplied some of
/// them.
pub fn store_received(address: Ptr, bytes: &[u8], answered: bool) {
    values::record_received(address as u64, bytes, answered);
}

/// Forgets the contents known at an address after a library wrote a result of unknown size there.
pub fn forget_contents(address: Ptr) {
    let address = address as u64;
    apply_now_and_in_graphs(move || values::forget_block(address));
}

/// Forgets the contents of `size` bytes after a library wrote a result there.
pub fn record_result(address: Ptr, size: u64) {
    let address = address as u64;
    apply_now_and_in_graphs(move || values::record_computed(address, size));
}

/// Applies a library call's effect on memory now, and at each launch of every graph that is being captured.
fn apply_now_and_in_graphs(act: impl Fn() + Clone + Send + Sync + 'static) {
    for capture in graphs::active_captures() {
        graphs::add_effect(capture, Effect::new(act.clone()));
    }
    act();
}

/// Labels memory as the workspace that a library was given.
pub fn label_workspace(address: Ptr) {
    if !address.is_null() {
        watch::label_block(address as u64, Category::Workspace);
    }
}

/// Adds a remark to the report.
pub fn remark(remark: Remark) {
    machine::count(TallyKind::Note, remark.id());
}

/// Adds a remark that concerns `bytes` of reserved memory.
pub fn remark_on_bytes(remark: Remark, bytes: u64) {
    self::remark(remark);
    machine::add_remark_bytes(remark.id(), bytes);
}

/// Allocates device memory as `cudaMalloc` does; `None` if the device is out of memory.
pub fn allocate(size: usize) -> Option<Ptr> {
    let card = machine::current_context().ok()?;
    device::allocate(card, size as u64, Kind::Device).ok().map(|address| address as Ptr)
}

/// Frees device memory; `false` if it was not allocated.
pub fn free(address: Ptr) -> bool {
    device::free(address as u64, |kind| kind == Kind::Device).is_ok()
}

/// Queues a library's work on a stream of the current device; the device's speeds decide its duration. Does
/// nothing if there is no such stream.
pub fn queue_work(stream: usize, work: impl Fn(&Speeds) -> Work) {
    if let Ok(card) = machine::current() {
        let own = work(&card.speeds);
        beside::measure(&work);
        let _ = streams::queue(stream as u64, own, Effort::Operator);
    }
}

/// Copies known contents within the device, as part of work whose duration is counted as a whole. Returns
/// `false` if the runtime would refuse the copy.
pub fn move_on_device(to: Ptr, from: Ptr, size: usize) -> bool {
    /// `cudaMemcpyDeviceToDevice`.
    const WITHIN: i32 = 3;
    let direction = copies::Direction::new(WITHIN);
    direction.and_then(|way| copies::copy(to as u64, from as u64, size as u64, way)).is_ok()
}

/// Copies rows of bytes between host and device as `cudaMemcpy2D` does. Returns `false` if it would fail.
pub fn copy_2d(to: (Ptr, usize), from: (Ptr, usize), width: usize, height: usize, way: i32) -> bool {
    let copy = || {
        let (to, from) = ((to.0 as u64, to.1 as u64), (from.0 as u64, from.1 as u64));
        copies::copy_rows(to, from, width as u64, height as u64, copies::Direction::new(way)?)
    };
    copies::run_and_wait(copy).is_ok()
}

/// Forgets the contents at an address immediately, without adding that to graphs that are being captured.
pub fn forget_contents_now(address: u64) {
    values::forget_block(address);
}

/// Does the same for each address in a list in device memory.
pub fn forget_each_now(list: u64) {
    values::forget_each(list);
}

/// Counts, by name, a feature that a modelled call does not model.
pub fn count_unmodelled(name: &str) {
    machine::count_unmodelled(name);
}

/// Path of the loaded library whose file name begins with `prefix`.
pub fn library_path(prefix: &'static [u8]) -> Option<CString> {
    versions::library_path(prefix)
}

/// Version of the loaded CUDA runtime, in the encoding of `cudaRuntimeGetVersion`: 12080 for 12.8.
pub fn runtime_version() -> i32 {
    versions::runtime()
}
