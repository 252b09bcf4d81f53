//! Per-thread state of CUDA: last error, current device, stack of contexts, capture mode.

use std::cell::{Cell, RefCell};

use memfit_kernels::cost::Prepared;

thread_local! {
    static LAST_ERROR: Cell<i32> = const { Cell::new(0) };
    static DEVICE: Cell<u32> = const { Cell::new(0) };
    static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
    static PREPARED: Prepared = const { Prepared::new() };
    static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Stores an error for `cudaGetLastError`.
pub(crate) fn set_last_error(status: i32) {
    LAST_ERROR.set(status);
}

/// Returns the last error (`cudaPeekAtLastError`).
pub(crate) fn last_error() -> i32 {
    LAST_ERROR.get()
}

/// Returns and clears the last error (`cudaGetLastError`): none of the virtual device's errors is sticky.
pub(crate) fn take_last_error() -> i32 {
    LAST_ERROR.replace(0)
}

/// Ordinal of the current device. A thread starts on device 0, and has no context until it needs one.
#[inline]
pub(crate) fn device() -> u32 {
    DEVICE.get()
}

/// Sets the current device.
pub(crate) fn set_device(ordinal: u32) {
    DEVICE.set(ordinal);
}

/// Replaces the capture mode (`cudaThreadExchangeStreamCaptureMode`).
pub(crate) fn exchange_capture_mode(mode: i32) -> i32 {
    CAPTURE_MODE.replace(mode)
}

/// Gives access to the driver's stack of current contexts, by handle; the last one is current.
pub(crate) fn with_contexts<T>(use_stack: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    CONTEXTS.with_borrow_mut(use_stack)
}

/// Gives access to this thread's cache of prepared launches.
#[inline]
pub(crate) fn with_prepared<T>(use_prepared: impl FnOnce(&Prepared) -> T) -> T {
    PREPARED.with(use_prepared)
}
