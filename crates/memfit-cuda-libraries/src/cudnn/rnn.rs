//! Recurrent networks and dropout: the few calls that the real library cannot be left alone with.

use super::status;
use crate::entry::{Fails, Out, Ptr, entry_points};
use crate::real::real;
use memfit_cuda::card;

/// What stands in an out-parameter until the library writes it.
const UNWRITTEN: usize = usize::MAX;

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Workspace and reserve space of a recurrent network. The library works both out of the descriptors and
    /// the properties in the handle, writes them, and only then turns to the CUDA runtime that is linked into
    /// it, which finds no card. So sizes that were written count, whatever it says afterwards.
    fn cudnnGetRNNTempSpaceSizes(
        handle: Ptr, network: Ptr, mode: i32, input: Ptr, workspace: Out<usize>, reserve: Out<usize>,
    ) {
        let (mut work, mut kept) = (UNWRITTEN, UNWRITTEN);
        let result = real!(CUDNN, cudnnGetRNNTempSpaceSizes(
            handle => Ptr, network => Ptr, mode => i32, input => Ptr,
            &raw mut work => *mut usize, &raw mut kept => *mut usize
        ) -> i32).unwrap_or(status::NOT_INITIALIZED);
        let failed_late = (5000..6000).contains(&result) && work != UNWRITTEN;
        if result != status::SUCCESS && !failed_late {
            return result;
        }
        workspace.put(if work == UNWRITTEN { 0 } else { work });
        reserve.put(if kept == UNWRITTEN { 0 } else { kept });
        status::SUCCESS
    }

    /// Sets a dropout's parameters. The real call would also fill the states on the device; restoring them
    /// does all but that. Where there are no states, it only remembers, and may do so itself.
    fn cudnnSetDropoutDescriptor(
        dropout: Ptr, handle: Ptr, probability: f32, states: Ptr, size: usize, seed: u64,
    ) {
        let result = if states.is_null() {
            real!(CUDNN, cudnnSetDropoutDescriptor(
                dropout => Ptr, handle => Ptr, probability => f32, states => Ptr, size => usize, seed => u64
            ) -> i32)
        } else {
            card::label_workspace(states);
            real!(CUDNN, cudnnRestoreDropoutDescriptor(
                dropout => Ptr, handle => Ptr, probability => f32, states => Ptr, size => usize, seed => u64
            ) -> i32)
        };
        result.unwrap_or(status::NOT_INITIALIZED)
    }
}
