//! A kernel launch: its grid, its arguments, and the memory that they lead to.

#![allow(unsafe_code, reason = "the arguments of a launch are addresses from a C caller")]

mod operands;

use memfit_abi::{In, Ptr};

use crate::{binary::Param, memory::Memory};

pub(crate) use operands::Operands;

/// Arguments of a launch: the address and the size of each.
///
/// Reads are bounded by the parameter sizes in the kernel's machine code. A kernel of the same name from
/// another library or release may have shorter parameters.
#[derive(Clone, Copy)]
pub struct Arguments<'a> {
    addresses: In<Ptr>,
    params: &'a dyn Parameters,
    /// `true` if reads are bounded by the sizes of the parameters.
    checked: bool,
}

/// A source of a kernel's parameters. It is queried only if they are needed, because that reads the machine
/// code of a whole module.
pub trait Parameters {
    /// Parameters of the kernel; `None` if they are unknown.
    fn parameters(&self) -> Option<&[Param]>;
}

impl Parameters for Vec<Param> {
    fn parameters(&self) -> Option<&[Param]> {
        Some(self)
    }
}

impl<'a> Arguments<'a> {
    /// Wraps the arguments passed to a launch.
    ///
    /// # Safety
    /// `addresses` must be null, or hold the address of each argument of the kernel that `params` describes.
    pub unsafe fn new(addresses: In<Ptr>, params: &'a dyn Parameters) -> Self {
        Self { addresses, params, checked: true }
    }

    /// Returns the same arguments without bounds checks, for kernels whose parameter layout is known.
    ///
    /// # Safety
    /// The kernel must have the parameters that the reads assume.
    pub(crate) unsafe fn unchecked(self) -> Self {
        Self { checked: false, ..self }
    }

    /// Returns the same arguments with parameters from another source.
    ///
    /// # Safety
    /// The kernel must have these parameters.
    pub(crate) unsafe fn with_params(self, params: &dyn Parameters) -> Arguments<'_> {
        Arguments { addresses: self.addresses, params, checked: true }
    }

    /// Parameters of the kernel; `None` if they are unknown.
    pub fn params(self) -> Option<&'a [Param]> {
        self.params.parameters()
    }

    /// Reads the argument at `index`, which has type `T` in the kernel's own signature.
    #[inline]
    pub fn get<T: Copy>(self, index: usize) -> Option<T> {
        self.get_at(index, 0)
    }

    /// Reads a field of the argument at `index`.
    #[inline]
    pub fn get_at<T: Copy>(self, index: usize, offset: usize) -> Option<T> {
        let address = self.address(index, offset, size_of::<T>())?;
        // SAFETY: the argument extends that far, or the caller of `unchecked` guarantees it.
        unsafe { In::<T>::from_address(address) }.get()
    }

    /// Reads the first `length` bytes of the argument at `index`.
    pub fn bytes(self, index: usize, length: usize) -> Option<Vec<u8>> {
        let address = self.address(index, 0, length)?;
        // SAFETY: as above.
        Some(unsafe { In::<u8>::from_address(address) }.list(length))
    }

    /// Reads an argument as 8-byte words. Any of them may be an address, since an argument can be a
    /// structure.
    pub(crate) fn words(self, index: usize) -> impl Iterator<Item = u64> {
        let params = self.params().unwrap_or_default();
        let size = params.get(index).map_or(0, |param| param.size as usize);
        (0..size / 8).map_while(move |word| self.get_at(index, 8 * word))
    }

    /// Address of `length` bytes of an argument; `None` if it is shorter.
    #[inline]
    fn address(self, index: usize, offset: usize, length: usize) -> Option<u64> {
        if self.checked {
            let param = self.params()?.get(index)?;
            (offset.checked_add(length)? <= param.size as usize).then_some(())?;
        }
        let address = self.addresses.get_at(index)? as u64;
        (address != 0).then_some(address + offset as u64)
    }
}

/// Extents of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks along each axis.
    pub blocks: [u32; 3],
    /// Threads per block.
    pub threads: u32,
}

/// A launch.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// Grid and block extents.
    pub grid: Grid,
    /// Arguments.
    pub arguments: Arguments<'a>,
    /// Memory that the arguments lead to.
    pub memory: &'a dyn Memory,
}
