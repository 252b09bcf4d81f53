//! The atomics shared between processes: the standard library's, or loom's in `make models`, which checks all
//! orders in which threads on a machine with weak memory ordering (ARM) may see each other's stores.

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
    thread::yield_now,
};

/// Waits a moment for another process.
pub(crate) fn pause() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
