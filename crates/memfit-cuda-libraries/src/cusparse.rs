//! cuSPARSE: descriptors are the real library's, which keeps them on the host; buffers are sized by formulas.
//!
//! How many entries a product of sparse matrices has is data; its size is estimated, never known
//! ([`product`]).

mod dense;
mod descriptors;
mod handle;
mod product;
mod sizes;

pub(crate) use dense::{dense_matrix, dense_vector};

/// `cusparseStatus_t`, as far as it is said here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const NOT_INITIALIZED: i32 = 1;
    pub(super) const INVALID_VALUE: i32 = 3;
    pub(super) const INTERNAL_ERROR: i32 = 7;
}
