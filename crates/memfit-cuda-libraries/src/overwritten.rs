//! Operands that generated entry points may write: their contents become unknown.

use memfit_cuda::card;

pub(crate) use crate::cusparse::{forget_dense_matrix, forget_dense_vector};

/// Forgets the contents at a device address.
pub(crate) fn address(address: u64) {
    card::forget_contents_now(address);
}

/// Forgets the contents at each address of a list in device memory.
pub(crate) fn list(list: u64) {
    card::forget_each_now(list);
}
