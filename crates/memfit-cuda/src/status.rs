//! Error codes that the device itself returns.

/// An error of the runtime or of the driver, which number them alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) i32);

/// Result of a modelled call.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

impl Status {
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    /// Also returned in a child forked after its parent used CUDA.
    pub(crate) const INITIALIZATION: Self = Self(3);
    pub(crate) const INVALID_MEMCPY_DIRECTION: Self = Self(21);
    pub(crate) const NO_DEVICE: Self = Self(100);
    pub(crate) const INVALID_DEVICE: Self = Self(101);
    pub(crate) const INVALID_IMAGE: Self = Self(200);
    /// The runtime's `cudaErrorDeviceUninitialized`, the driver's `CUDA_ERROR_INVALID_CONTEXT`.
    pub(crate) const INVALID_CONTEXT: Self = Self(201);
    pub(crate) const UNSUPPORTED_LIMIT: Self = Self(215);
    pub(crate) const FILE_NOT_FOUND: Self = Self(301);
    pub(crate) const OPERATING_SYSTEM: Self = Self(304);
    pub(crate) const INVALID_HANDLE: Self = Self(400);
    pub(crate) const ILLEGAL_STATE: Self = Self(401);
    pub(crate) const NOT_FOUND: Self = Self(500);
    pub(crate) const NOT_READY: Self = Self(600);
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    pub(crate) const PEER_ACCESS_NOT_ENABLED: Self = Self(705);
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Self = Self(712);
    pub(crate) const HOST_MEMORY_NOT_REGISTERED: Self = Self(713);
    pub(crate) const NOT_SUPPORTED: Self = Self(801);
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: Self = Self(900);
    pub(crate) const STREAM_CAPTURE_INVALIDATED: Self = Self(901);
    pub(crate) const STREAM_CAPTURE_UNMATCHED: Self = Self(903);
    pub(crate) const UNKNOWN: Self = Self(999);
}
