//! cuSOLVER, dense: handles, parameters, and how much workspace each decomposition asks for.
//!
//! Parameters are the real library's own. Its size queries want a device, so sizes come from [`sizes`]. A
//! decomposition takes its time ([`work`]), does nothing, and leaves `devInfo` as it is: zero, which means
//! success.

mod handle;
mod sizes;
mod work;

/// `cusolverStatus_t`, as far as it is said here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const NOT_INITIALIZED: i32 = 1;
    pub(super) const INVALID_VALUE: i32 = 3;
    pub(super) const INTERNAL_ERROR: i32 = 7;
    pub(super) const NOT_SUPPORTED: i32 = 9;
}
