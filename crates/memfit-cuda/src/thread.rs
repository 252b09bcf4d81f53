//! What CUDA keeps for each thread: its last error, its current device, its stack of contexts, its capture
//! mode.

use std::cell::{Cell, RefCell};

use memfit_kernels::cost::Prepared;

thread_local! {
    static LAST_ERROR: Cell<i32> = const { Cell::new(0) };
    static DEVICE: Cell<u32> = const { Cell::new(0) };
    static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
    static PREPARED: Prepared = const { Prepared::new() };
    static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Remembers an error for `cudaGetLastError`.
pub(crate) fn set_last_error(status: i32) {
    LAST_ERROR.set(status);
}

/// `cudaPeekAtLastError`.
pub(crate) fn last_error() -> i32 {
    LAST_ERROR.get()
}

/// `cudaGetLastError`: none of the errors that the virtual device gives stays, so reading clears it.
pub(crate) fn take_last_error() -> i32 {
    LAST_ERROR.replace(0)
}

/// The ordinal of the current device. A thread starts on device 0, and has no context until it needs one.
#[inline]
pub(crate) fn device() -> u32 {
    DEVICE.get()
}

/// Sets the current device.
pub(crate) fn set_device(ordinal: u32) {
    DEVICE.set(ordinal);
}

/// `cudaThreadExchangeStreamCaptureMode`.
pub(crate) fn exchange_capture_mode(mode: i32) -> i32 {
    CAPTURE_MODE.replace(mode)
}

/// The driver's stack of current contexts, by handle; the last is current.
pub(crate) fn with_contexts<T>(use_stack: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    CONTEXTS.with_borrow_mut(use_stack)
}

/// What launches of this thread prepare for each other.
#[inline]
pub(crate) fn with_prepared<T>(use_prepared: impl FnOnce(&Prepared) -> T) -> T {
    PREPARED.with(use_prepared)
}
