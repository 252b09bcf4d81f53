//! The moment when memory ran out.

use memfit_recording::{MomentKind, Track};

/// A request that could not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The moment, as an index in the track.
    pub moment: u32,
    /// The device.
    pub device: u8,
    /// What was asked for.
    pub requested: u64,
    /// Bytes in blocks then.
    pub allocated: u64,
    /// Bytes in segments then.
    pub reserved: u64,
}

/// The requests of a track that could not be served, in order.
pub fn out_of_memory(track: &Track) -> Vec<OutOfMemory> {
    (0..)
        .zip(track.moments())
        .filter_map(|(moment, what)| match what.kind {
            MomentKind::Oom(requested) => Some(OutOfMemory {
                moment,
                device: what.device,
                requested,
                allocated: what.allocated,
                reserved: what.reserved,
            }),
            _ => None,
        })
        .collect()
}
