//! cuRAND's host interface: the version. Calls on generators are harmless, so the prototype list covers them.

use super::entry::Ptr;
use super::real::forward;

/// `CURAND_STATUS_NOT_INITIALIZED`.
const NOT_INITIALIZED: i32 = 101;
/// `CURAND_STATUS_INTERNAL_ERROR`.
const INTERNAL_ERROR: i32 = 999;

forward! {
    CURAND, missing NOT_INITIALIZED, fail INTERNAL_ERROR;

    fn curandGetVersion(version: Ptr);
    fn curandGetProperty(kind: i32, value: Ptr);
}
