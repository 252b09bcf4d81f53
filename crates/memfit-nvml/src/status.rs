//! NVML's status codes that the library returns.

/// A status other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) i32);

/// Result of a call.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

impl Status {
    /// `nvmlInit` was not called, or `nvmlShutdown` was.
    pub(crate) const UNINITIALIZED: Self = Self(1);
    /// An argument is null, or denotes no device.
    pub(crate) const INVALID_ARGUMENT: Self = Self(2);
    /// The device lacks the feature.
    pub(crate) const NOT_SUPPORTED: Self = Self(3);
    /// There is no such device.
    pub(crate) const NOT_FOUND: Self = Self(6);
    /// The output buffer is too small.
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(7);
    /// There is no run, and so no device.
    pub(crate) const DRIVER_NOT_LOADED: Self = Self(9);
    /// The structure's `version` is not supported.
    pub(crate) const VERSION_MISMATCH: Self = Self(25);
    /// An internal error of this library.
    pub(crate) const UNKNOWN: Self = Self(999);
}

/// Every code with its text in `nvmlErrorString`.
const TEXTS: &[(i32, &std::ffi::CStr)] = &[
    (0, c"Success"),
    (1, c"Uninitialized"),
    (2, c"Invalid Argument"),
    (3, c"Not Supported"),
    (4, c"Insufficient Permissions"),
    (5, c"Already Initialized"),
    (6, c"Not Found"),
    (7, c"Insufficient Size"),
    (8, c"Insufficient External Power"),
    (9, c"Driver Not Loaded"),
    (10, c"Timeout"),
    (11, c"Interrupt Request Issue"),
    (12, c"NVML Shared Library Not Found"),
    (13, c"Function Not Found"),
    (14, c"Corrupted infoROM"),
    (15, c"GPU is lost"),
    (16, c"GPU requires reset"),
    (17, c"GPU access blocked by the operating system"),
    (18, c"Driver/library version mismatch"),
    (19, c"In use by another client"),
    (20, c"Insufficient Memory"),
    (21, c"No data"),
    (22, c"VGPU ECC not supported"),
    (23, c"Insufficient resources"),
    (24, c"Frequency not supported"),
    (25, c"Argument version mismatch"),
    (26, c"Functionality deprecated"),
    (27, c"System not ready"),
    (28, c"GPU not found"),
    (29, c"Invalid state"),
    (30, c"Reset type not supported"),
];

/// Text of a code in `nvmlErrorString`.
pub(crate) fn text(code: i32) -> &'static std::ffi::CStr {
    TEXTS.iter().find(|(each, _)| *each == code).map_or(c"Unknown Error", |(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_returned_status_has_its_own_text() {
        let answered = [
            Status::UNINITIALIZED,
            Status::INVALID_ARGUMENT,
            Status::NOT_SUPPORTED,
            Status::NOT_FOUND,
            Status::INSUFFICIENT_SIZE,
            Status::DRIVER_NOT_LOADED,
            Status::VERSION_MISMATCH,
        ];
        for status in answered {
            assert_ne!(text(status.0), c"Unknown Error", "{status:?}");
        }
        assert_eq!(text(Status::UNKNOWN.0), c"Unknown Error");
        let mut codes: Vec<i32> = TEXTS.iter().map(|(code, _)| *code).collect();
        codes.dedup();
        assert_eq!(codes, (0..=30).collect::<Vec<_>>());
    }
}
