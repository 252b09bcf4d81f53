//! The C interface for the probe (through ctypes) and for a virtual device (through dlsym).
//!
//! Each function does nothing in a process that does not belong to a run. None of them can panic across the
//! boundary: the code that they call neither indexes out of bounds nor unwraps.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::slice;

use crate::{
    labels,
    watch::{Report, Segment, Stats, Watch},
};

/// Returns 1 in a process that is watched, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_active() -> i32 {
    i32::from(Watch::get().is_some())
}

/// Enters a phase (a `memfit_vocabulary::Phase` code); returns the previous one.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_phase(phase: u8) -> u8 {
    Watch::get().map_or(0, |watch| watch.phase(phase))
}

/// Records that `step` optimizer steps are complete.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_step(step: u32) {
    if let Some(watch) = Watch::get() {
        watch.step(step);
    }
}

/// Begins a module's call on this thread; returns the number of calls that were open before it.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_scope_enter(module: u32) -> u32 {
    Watch::get().map_or(0, |watch| watch.enter(module) as u32)
}

/// Ends the innermost module call of this thread; returns the number of calls that are still open.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_scope_exit() -> u32 {
    Watch::get().map_or(0, |watch| watch.exit() as u32)
}

/// Sets the module of the backward node that runs on this thread, until the phase changes.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_module(module: u32) {
    if let Some(watch) = Watch::get() {
        watch.node(module);
    }
}

/// Returns the innermost module whose call or backward node runs on this thread; 0 for none.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_current_module() -> u32 {
    Watch::get().map_or(0, Watch::module)
}

/// Returns the number of module calls that are open on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_depth() -> u32 {
    Watch::get().map_or(0, |_| labels::depth() as u32)
}

/// Returns the phase of the process.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_current_phase() -> u8 {
    Watch::get().map_or(0, Watch::current_phase)
}

/// Reports a block that the device's own allocator handed out, or took back if `bytes` is negative. PyTorch
/// uses that allocator instead of its caching one with `backend:cudaMallocAsync`. Ignored once PyTorch's own
/// allocator has reported, since its reports are more precise.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_block(device: u32, address: u64, bytes: i64, allocated: u64, reserved: u64) {
    if let (Some(watch), Ok(device)) = (Watch::get(), u8::try_from(device)) {
        watch.report_of_device(&Report { device, address, bytes, allocated, reserved });
    }
}

/// Assigns a category (a `memfit_vocabulary::Category` code) to the block that contains `address`.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_note(address: u64, category: u8) {
    if let Some(watch) = Watch::get() {
        watch.note(&[address], category, &[]);
    }
}

/// Assigns a category to the blocks that contain these addresses; `owners` has each one's name as a text
/// number, or is null.
///
/// # Safety
/// `addresses`, and `owners` unless it is null, must point to `count` readable values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfit_watch_note_many(
    addresses: *const u64,
    count: usize,
    category: u8,
    owners: *const u32,
) {
    let Some(watch) = Watch::get() else { return };
    // SAFETY: guaranteed by the caller.
    let (addresses, owners) = unsafe { (values(addresses, count), values(owners, count)) };
    watch.note(addresses, category, owners);
}

/// Records the requested sizes of blocks on a device: for its allocations from number `first` on (counted
/// from 1, as in [`Stats::allocs`]), or, if `first` is 0, for the blocks that are live at these addresses.
///
/// # Safety
/// `addresses` and `bytes` must point to `count` readable values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfit_watch_requested(
    device: u8,
    first: u64,
    addresses: *const u64,
    bytes: *const i64,
    count: usize,
) {
    let Some(watch) = Watch::get() else { return };
    // SAFETY: guaranteed by the caller.
    let (addresses, bytes) = unsafe { (values(addresses, count), values(bytes, count)) };
    watch.requested(device, first, addresses, bytes);
}

/// Assigns a number to a text.
///
/// # Safety
/// `text` must point to `length` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfit_watch_text(id: u32, text: *const u8, length: usize) {
    if let Some(watch) = Watch::get() {
        // SAFETY: guaranteed by the caller.
        watch.text(id, unsafe { values(text, length) });
    }
}

/// Assigns a number to a stack frame; its function and file are text numbers.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_frame(id: u32, name: u32, file: u32, line: u32) {
    if let Some(watch) = Watch::get() {
        watch.frame(id, name, file, line);
    }
}

/// Assigns a number to a stack, given by the numbers of its frames, innermost first.
///
/// # Safety
/// `frames` must point to `count` readable values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfit_watch_stack(id: u32, frames: *const u32, count: usize) {
    if let Some(watch) = Watch::get() {
        // SAFETY: guaranteed by the caller.
        watch.stack(id, unsafe { values(frames, count) });
    }
}

/// Records the stacks, streams and times of a device's allocations from number `first` on.
///
/// # Safety
/// `stacks`, `streams` and `times` must point to `count` readable values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfit_watch_traced(
    device: u8,
    first: u64,
    stacks: *const u32,
    streams: *const u64,
    times: *const u64,
    count: usize,
) {
    let Some(watch) = Watch::get() else { return };
    // SAFETY: guaranteed by the caller.
    let (stacks, streams, times) =
        unsafe { (values(stacks, count), values(streams, count), values(times, count)) };
    watch.traced(device, first, stacks, streams, times);
}

/// Records a change of a device's segment, after its allocation with this number.
///
/// # Safety
/// `segment` must be null, or point to a readable value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfit_watch_segment(device: u8, number: u64, segment: *const Segment) {
    let Some(watch) = Watch::get() else { return };
    // SAFETY: guaranteed by the caller.
    if let [segment] = unsafe { values(segment, 1) } {
        watch.segment(device, number, segment);
    }
}

/// Writes a device's counters to `out`; returns 0 on success, -1 if there are none.
///
/// # Safety
/// `out` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfit_watch_stats(device: u32, out: *mut Stats) -> i32 {
    let Some(stats) = Watch::get().and_then(|watch| watch.stats(device as usize)) else { return -1 };
    if out.is_null() {
        return -1;
    }
    // SAFETY: not null, and writable as guaranteed by the caller.
    unsafe { out.write(stats) };
    0
}

/// Begins a new window for a device's peaks.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_reset_window(device: u32) {
    if let Some(watch) = Watch::get() {
        watch.reset_window(device as usize);
    }
}

/// Returns the values at `start`; empty if it is null.
///
/// # Safety
/// `start` must be null, or point to `count` readable values that outlive the result.
unsafe fn values<'a, T>(start: *const T, count: usize) -> &'a [T] {
    if start.is_null() || !start.is_aligned() {
        return &[];
    }
    // SAFETY: not null, aligned, and readable as guaranteed by the caller.
    unsafe { slice::from_raw_parts(start, count) }
}
