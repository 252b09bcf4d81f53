//! Failed requests of a track.

use memfit_recording::{MomentKind, Track};

/// Failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Moment, as an index in the track.
    pub moment: u32,
    /// Device index.
    pub device: u8,
    /// Requested bytes.
    pub requested: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Reserved bytes.
    pub reserved: u64,
}

/// Failed requests of a track, in order.
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
