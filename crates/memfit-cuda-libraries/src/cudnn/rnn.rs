//! Recurrent networks and dropout: the few calls that the real library cannot handle alone.

use super::status;
use crate::entry::{Fails, Out, Ptr, entry_points};
use crate::real::real;
use memfit_cuda::card;

/// Value of an out-parameter that the library has not written.
const UNWRITTEN: usize = usize::MAX;

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Returns the workspace and reserve space of a recurrent network. The library computes both from the
    /// descriptors and the properties in the handle, writes them, and only then calls the CUDA runtime that
    /// is linked into it, which finds no device. So sizes that were written count, whatever status follows.
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
        workspace.set(if work == UNWRITTEN { 0 } else { work });
        reserve.set(if kept == UNWRITTEN { 0 } else { kept });
        status::SUCCESS
    }

    /// Sets a dropout's parameters. The real call would also fill the states on the device; restoring them
    /// does everything else. Without states, the real library only stores the parameters, so it is called.
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
