//! Device limits (`cudaDeviceSetLimit`, `cuCtxSetLimit`): values that are stored and returned.
//!
//! On a real device, the context's size depends slightly on the stack and heap limits; that is within its
//! interval.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::status::{Outcome, Status};

/// Stack, printf buffer, heap, nesting depth, pending launches, L2 fetch granularity, persisting L2, with the
/// driver's defaults.
static LIMITS: [AtomicU64; 7] = [
    AtomicU64::new(1024),
    AtomicU64::new(8 << 20),
    AtomicU64::new(8 << 20),
    AtomicU64::new(2),
    AtomicU64::new(2048),
    AtomicU64::new(64),
    AtomicU64::new(0),
];

fn find(limit: i32) -> Outcome<&'static AtomicU64> {
    usize::try_from(limit).ok().and_then(|limit| LIMITS.get(limit)).ok_or(Status::UNSUPPORTED_LIMIT)
}

/// A limit's value.
pub(crate) fn get(limit: i32) -> Outcome<u64> {
    find(limit).map(|limit| limit.load(Relaxed))
}

/// Sets a limit.
pub(crate) fn set(limit: i32, value: u64) -> Outcome {
    find(limit)?.store(value, Relaxed);
    Ok(())
}
