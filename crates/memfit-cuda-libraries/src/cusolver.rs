//! Dense cuSOLVER: handles, parameters, and the workspace of each decomposition.
//!
//! Parameters belong to the real library. Its size queries need a device, so sizes come from [`sizes`]. A
//! decomposition takes time ([`work`]), computes nothing, and leaves `devInfo` unchanged: zero, which means
//! success.

mod handle;
mod sizes;
mod work;

/// The part of `cusolverStatus_t` that is returned here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const NOT_INITIALIZED: i32 = 1;
    pub(super) const INVALID_VALUE: i32 = 3;
    pub(super) const INTERNAL_ERROR: i32 = 7;
    pub(super) const NOT_SUPPORTED: i32 = 9;
}
