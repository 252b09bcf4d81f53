//! Operands that generated entry points may write: nothing is known of them any more.

use memfit_cuda::card;

pub(crate) use crate::cusparse::{dense_matrix, dense_vector};

/// Memory at an address of the device.
pub(crate) fn address(address: u64) {
    card::forget_contents_now(address);
}

/// Memory at each address of a list on the device.
pub(crate) fn list(list: u64) {
    card::forget_each_now(list);
}
