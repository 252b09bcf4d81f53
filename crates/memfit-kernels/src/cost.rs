//! Durations of work on the device: a roofline model over the device's rates and bandwidths, and the shares
//! of them that kernels reach.
//!
//! Everything here is arithmetic on sizes: matrix products ([`gemm`]), kernels by their names and arguments
//! ([`kernel`]), and collectives ([`collective`]). The rates that a device reaches come from its entry in the
//! catalogue ([`speeds`]), or from a calibration.
//!
//! This module does not know streams, clocks or calls: code that queues work calls it for the duration.

pub mod collective;
pub mod gemm;
pub mod kernel;
#[cfg(test)]
mod measured;
mod prepared;
pub mod shares;
pub mod speeds;

use memfit_channel::WorkKind;
pub use prepared::Prepared;
pub use speeds::Speeds;

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Nanoseconds from start to end if nothing else runs.
    pub length: u64,
    /// Kind of work.
    pub kind: WorkKind,
}

impl Work {
    /// Creates work of a duration, clamped to a sane range.
    pub fn new(kind: WorkKind, nanoseconds: f64) -> Self {
        /// Longest duration.
        /// Definition: far beyond any run.
        const MAX_NANOSECONDS: f64 = 1e15;
        Self { length: nanoseconds.clamp(0.0, MAX_NANOSECONDS) as u64, kind }
    }

    /// Nanoseconds for which it occupies the multiprocessors and memory: all but the launch latency. Copies
    /// to the host use their own engines, and collectives run on a few multiprocessors.
    #[inline]
    pub fn demand(self) -> u64 {
        /// Nanoseconds of a launch that do not use the device.
        /// Source: kernels of 64 KiB that are queued in a row take 2.4 µs each on an H200 and 2.6 on an A100
        /// (gpu-small-kernels of github.com/RRZE-HPC/gpu-benches); transfer takes next to nothing of it.
        const LAUNCH_NANOSECONDS: u64 = 2_000;
        match self.kind {
            WorkKind::Transfer | WorkKind::Communication => 0,
            _ => self.length.saturating_sub(LAUNCH_NANOSECONDS),
        }
    }

    /// No work.
    pub const fn none(kind: WorkKind) -> Self {
        Self { length: 0, kind }
    }
}
