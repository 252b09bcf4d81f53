//! How long work takes on the card: a roofline over the card's rates and bandwidths, and over what work
//! achieves of them.
//!
//! Everything here is arithmetic on sizes: products of matrices ([`gemm`]), convolutions as such products
//! ([`convolution`]), kernels by what their names and arguments tell ([`kernel`]), transforms and solvers
//! ([`library`]), collectives ([`collective`]), copies ([`transfer`]). What a card achieves comes from its
//! entry in the catalogue ([`speeds`]), or from a calibration.
//!
//! Must not know streams, clocks or calls: whoever queues work asks here how long it is.

pub mod gemm;
pub mod kernel;
mod prepared;
pub mod speeds;

use memfit_channel::WorkKind;
pub use prepared::Prepared;
pub use speeds::Speeds;

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Nanoseconds from its start to its end, if nothing else runs.
    pub length: u64,
    /// What it is.
    pub kind: WorkKind,
}

impl Work {
    /// Work of a kind that takes so many nanoseconds; lengths that make no sense are cut.
    pub fn new(kind: WorkKind, nanoseconds: f64) -> Self {
        const LONGEST: f64 = 1e15;
        Self { length: nanoseconds.clamp(0.0, LONGEST) as u64, kind }
    }

    /// How much of its time it has the card's multiprocessors and memory to itself: all but the launch.
    /// Copies to the host have engines of their own, and collectives run on a few multiprocessors.
    #[inline]
    pub fn demand(self) -> u64 {
        /// What a launch takes without using the card.
        const LATENCY: u64 = 2_000;
        match self.kind {
            WorkKind::Transfer | WorkKind::Communication => 0,
            _ => self.length.saturating_sub(LATENCY),
        }
    }

    /// No work.
    pub const fn none(kind: WorkKind) -> Self {
        Self { length: 0, kind }
    }
}
