//! The C interface for the probe (by ctypes) and for a virtual device (by dlsym).
//!
//! Each function does nothing in a process that belongs to no run. None of them can panic across the
//! boundary: what they reach neither indexes out of bounds nor unwraps.

#![allow(unsafe_code, reason = "functions of PyTorch's are interposed")]

use std::slice;

use crate::{
    labels,
    watch::{Report, Segment, Stats, Watch},
};

/// 1 in a process that is watched, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_active() -> i32 {
    i32::from(Watch::get().is_some())
}

/// The process enters a phase (a `memfit_vocabulary::Phase` code); the one before is returned.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_phase(phase: u8) -> u8 {
    Watch::get().map_or(0, |watch| watch.phase(phase))
}

/// So many optimizer steps are complete now.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_step(step: u32) {
    if let Some(watch) = Watch::get() {
        watch.step(step);
    }
}

/// A module's call begins on this thread; how many were open before it is returned.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_scope_enter(module: u32) -> u32 {
    Watch::get().map_or(0, |watch| watch.enter(module) as u32)
}

/// The innermost module call of this thread ends; how many are still open is returned.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_scope_exit() -> u32 {
    Watch::get().map_or(0, |watch| watch.exit() as u32)
}

/// A backward node of this module runs on this thread from now on, until the phase changes.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_module(module: u32) {
    if let Some(watch) = Watch::get() {
        watch.node(module);
    }
}

/// The innermost module that this thread works for; 0 for none.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_current_module() -> u32 {
    Watch::get().map_or(0, Watch::module)
}

/// How many module calls are open on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_depth() -> u32 {
    Watch::get().map_or(0, |_| labels::depth() as u32)
}

/// The phase that the process is in.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_current_phase() -> u8 {
    Watch::get().map_or(0, Watch::current_phase)
}

/// A device's own allocator, which PyTorch uses in place of its caching one (`backend:cudaMallocAsync`),
/// handed out a block, or took one back where `bytes` is negative. Where PyTorch's own allocator has
/// reported, it knows better.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_block(device: u32, address: u64, bytes: i64, allocated: u64, reserved: u64) {
    if let (Some(watch), Ok(device)) = (Watch::get(), u8::try_from(device)) {
        watch.report_of_device(&Report { device, address, bytes, allocated, reserved });
    }
}

/// The block that holds `address` belongs to a category (a `memfit_vocabulary::Category` code).
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_note(address: u64, category: u8) {
    if let Some(watch) = Watch::get() {
        watch.note(&[address], category, &[]);
    }
}

/// The blocks that hold these addresses belong to a category; `owners` has each one's name as a text number,
/// or is null.
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
    // SAFETY: by the caller's promise.
    let (addresses, owners) = unsafe { (values(addresses, count), values(owners, count)) };
    watch.note(addresses, category, owners);
}

/// What was asked for, for blocks that were handed out on a device: by its allocations from number `first` on
/// (counted from 1, as [`Stats::allocs`] does), or, where `first` is 0, for the blocks that are live at these
/// addresses.
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
    // SAFETY: by the caller's promise.
    let (addresses, bytes) = unsafe { (values(addresses, count), values(bytes, count)) };
    watch.requested(device, first, addresses, bytes);
}

/// Gives a text its number.
///
/// # Safety
/// `text` must point to `length` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfit_watch_text(id: u32, text: *const u8, length: usize) {
    if let Some(watch) = Watch::get() {
        // SAFETY: by the caller's promise.
        watch.text(id, unsafe { values(text, length) });
    }
}

/// Gives a frame of stacks its number; its function and file are numbers of texts.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_watch_frame(id: u32, name: u32, file: u32, line: u32) {
    if let Some(watch) = Watch::get() {
        watch.frame(id, name, file, line);
    }
}

/// Gives a stack its number, by the numbers of its frames, the innermost first.
///
/// # Safety
/// `frames` must point to `count` readable values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfit_watch_stack(id: u32, frames: *const u32, count: usize) {
    if let Some(watch) = Watch::get() {
        // SAFETY: by the caller's promise.
        watch.stack(id, unsafe { values(frames, count) });
    }
}

/// From where in the program, on which streams and when blocks were asked for that a device handed out, by
/// its allocations from number `first` on.
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
    // SAFETY: by the caller's promise.
    let (stacks, streams, times) =
        unsafe { (values(stacks, count), values(streams, count), values(times, count)) };
    watch.traced(device, first, stacks, streams, times);
}

/// What became of a segment of a device, after its allocation with this number.
///
/// # Safety
/// `segment` must be null, or point to a readable value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfit_watch_segment(device: u8, number: u64, segment: *const Segment) {
    let Some(watch) = Watch::get() else { return };
    // SAFETY: by the caller's promise.
    if let [segment] = unsafe { values(segment, 1) } {
        watch.segment(device, number, segment);
    }
}

/// Writes a device's counters to `out`; 0 on success, -1 where there are none.
///
/// # Safety
/// `out` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfit_watch_stats(device: u32, out: *mut Stats) -> i32 {
    let Some(stats) = Watch::get().and_then(|watch| watch.stats(device as usize)) else { return -1 };
    if out.is_null() {
        return -1;
    }
    // SAFETY: not null, and writable by the caller's promise.
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

/// The values at `start`; none where it is null.
///
/// # Safety
/// `start` must be null, or point to `count` readable values that outlive the result.
unsafe fn values<'a, T>(start: *const T, count: usize) -> &'a [T] {
    if start.is_null() || !start.is_aligned() {
        return &[];
    }
    // SAFETY: not null, aligned, and readable by the caller's promise.
    unsafe { slice::from_raw_parts(start, count) }
}
