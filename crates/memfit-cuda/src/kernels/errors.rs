//! Errors that only kernel calls return.

use crate::status::Status;

impl Status {
    pub(crate) const INVALID_CONFIGURATION: Self = Self(9);
    pub(crate) const INVALID_SYMBOL: Self = Self(13);
    pub(crate) const MISSING_CONFIGURATION: Self = Self(52);
    pub(crate) const INVALID_DEVICE_FUNCTION: Self = Self(98);
    pub(crate) const NO_KERNEL_IMAGE_FOR_DEVICE: Self = Self(209);
    pub(crate) const LAUNCH_OUT_OF_RESOURCES: Self = Self(701);
    pub(crate) const COOPERATIVE_LAUNCH_TOO_LARGE: Self = Self(720);
}
