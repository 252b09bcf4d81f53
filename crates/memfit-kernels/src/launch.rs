//! One launch of a kernel: its grid, its arguments, and the memory that they lead to.

mod operands;

use memfit_abi::{In, Ptr};

use crate::memory::Memory;

pub(crate) use operands::Operands;

/// The arguments of a launch: the address of each.
#[derive(Clone, Copy)]
pub struct Arguments(In<Ptr>);

impl Arguments {
    /// The arguments that a launch was handed.
    pub fn new(addresses: In<Ptr>) -> Self {
        Self(addresses)
    }

    /// The argument at `index`, which the kernel's own signature says is a `T`.
    #[inline]
    pub fn get<T: Copy>(self, index: usize) -> Option<T> {
        self.get_at(index, 0)
    }

    /// A field of the argument at `index`.
    #[inline]
    pub fn get_at<T: Copy>(self, index: usize, offset: usize) -> Option<T> {
        let address = self.0.at(index)? as u64;
        if address == 0 { None } else { In::<T>::from_address(address + offset as u64).get() }
    }

    /// The first `length` bytes of the argument at `index`, which has as many by the kernel's own signature.
    pub fn bytes(self, index: usize, length: usize) -> Option<Vec<u8>> {
        let address = self.0.at(index)?;
        (!address.is_null()).then(|| In::<u8>::from_address(address as u64).list(length))
    }
}

/// The extents of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks along each axis.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
}

/// A launch.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// Its extents.
    pub grid: Grid,
    /// Its arguments.
    pub arguments: Arguments,
    /// The memory that they lead to.
    pub memory: &'a dyn Memory,
}
