//! cuSPARSE: descriptors belong to the real library, which keeps them on the host; buffer sizes come from
//! formulas.
//!
//! The number of entries in a product of sparse matrices depends on the data, so its size is only estimated
//! ([`product`]).

mod dense;
mod descriptors;
mod handle;
mod product;
mod sizes;

pub(crate) use dense::{forget_dense_matrix, forget_dense_vector};

/// The part of `cusparseStatus_t` that is returned here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const NOT_INITIALIZED: i32 = 1;
    pub(super) const INVALID_VALUE: i32 = 3;
    pub(super) const INTERNAL_ERROR: i32 = 7;
}
