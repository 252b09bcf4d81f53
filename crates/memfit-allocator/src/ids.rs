//! The numbers that the allocator deals in, kept apart by type: addresses, streams, pools.

use std::fmt;

/// An address on the device. Zero is no address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// What an allocation of no bytes gets.
    pub const NULL: Self = Self(0);

    /// The address `bytes` further up.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// How far this address lies above `lower`.
    pub const fn above(self, lower: Self) -> u64 {
        self.0 - lower.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}

/// A stream's handle. Its value orders the free blocks, as in PyTorch; zero is the default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u64);

/// The identity of a pool: zero and zero is the default one, all others are private.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// The pool of everything that no capture and no `MemPool` claims.
    pub const DEFAULT: Self = Self(0, 0);
}

impl fmt::Display for PoolId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "({}, {})", self.0, self.1)
    }
}
