//! Typed ids: addresses, streams, pools.

use std::fmt;

/// Address on the device. Zero is not an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// Result of an allocation of zero bytes.
    pub const NULL: Self = Self(0);

    /// Address `bytes` higher.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// Distance from `lower` to this address.
    pub const fn above(self, lower: Self) -> u64 {
        self.0 - lower.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}

/// Handle of a stream. Free blocks are ordered by its value, as in PyTorch; zero is the default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u64);

/// Id of a pool: (0, 0) is the default pool, all others are private.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// Pool of all requests that no capture and no `MemPool` redirects.
    pub const DEFAULT: Self = Self(0, 0);
}

impl fmt::Display for PoolId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "({}, {})", self.0, self.1)
    }
}
