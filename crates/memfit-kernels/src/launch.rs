//! One launch of a kernel: its grid, its arguments, and the memory that they lead to.

#![allow(unsafe_code, reason = "the arguments of a launch are addresses that a C caller hands in")]

mod operands;

use memfit_abi::{In, Ptr};

use crate::{binary::Param, memory::Memory};

pub(crate) use operands::Operands;

/// The arguments of a launch: the address of each, and how far each reaches.
///
/// What is read lies within the argument, by the sizes that the kernel's machine code states: another
/// library's kernel of the same name, or another release's, is not read past its end.
#[derive(Clone, Copy)]
pub struct Arguments<'a> {
    addresses: In<Ptr>,
    params: &'a dyn Parameters,
    /// Whether reads are held to the sizes of the parameters.
    checked: bool,
}

/// What knows a kernel's parameters. It is asked only where they are needed, because the machine code of a
/// whole module is read for it.
pub trait Parameters {
    /// The kernel's parameters; `None` where nothing tells them.
    fn parameters(&self) -> Option<&[Param]>;
}

impl Parameters for Vec<Param> {
    fn parameters(&self) -> Option<&[Param]> {
        Some(self)
    }
}

impl<'a> Arguments<'a> {
    /// The arguments that a launch was handed.
    ///
    /// # Safety
    /// `addresses` is null, or it has the address of each argument of the kernel whose parameters `params`
    /// knows.
    pub unsafe fn new(addresses: In<Ptr>, params: &'a dyn Parameters) -> Self {
        Self { addresses, params, checked: true }
    }

    /// The same arguments, read as the kernel's family lays them out.
    ///
    /// # Safety
    /// The kernel has the parameters that whoever reads takes it to have.
    pub(crate) unsafe fn unchecked(self) -> Self {
        Self { checked: false, ..self }
    }

    /// The same arguments of a kernel whose parameters are told by another source.
    ///
    /// # Safety
    /// The kernel has these parameters.
    pub(crate) unsafe fn with_params(self, params: &dyn Parameters) -> Arguments<'_> {
        Arguments { addresses: self.addresses, params, checked: true }
    }

    /// The kernel's parameters; `None` where nothing tells them.
    pub fn params(self) -> Option<&'a [Param]> {
        self.params.parameters()
    }

    /// The argument at `index`, which the kernel's own signature says is a `T`.
    #[inline]
    pub fn get<T: Copy>(self, index: usize) -> Option<T> {
        self.get_at(index, 0)
    }

    /// A field of the argument at `index`.
    #[inline]
    pub fn get_at<T: Copy>(self, index: usize, offset: usize) -> Option<T> {
        let address = self.address(index, offset, size_of::<T>())?;
        // SAFETY: the argument reaches as far as that, or the caller of `unchecked` vouches for it.
        unsafe { In::<T>::from_address(address) }.get()
    }

    /// The first `length` bytes of the argument at `index`.
    pub fn bytes(self, index: usize, length: usize) -> Option<Vec<u8>> {
        let address = self.address(index, 0, length)?;
        // SAFETY: as above.
        Some(unsafe { In::<u8>::from_address(address) }.list(length))
    }

    /// The aligned words of an argument: structures hold addresses too.
    pub(crate) fn words(self, index: usize) -> impl Iterator<Item = u64> {
        let params = self.params().unwrap_or_default();
        let size = params.get(index).map_or(0, |param| param.size as usize);
        (0..size / 8).map_while(move |word| self.get_at(index, 8 * word))
    }

    /// Where `length` bytes of an argument are, if it has as many.
    #[inline]
    fn address(self, index: usize, offset: usize, length: usize) -> Option<u64> {
        if self.checked {
            let param = self.params()?.get(index)?;
            (offset.checked_add(length)? <= param.size as usize).then_some(())?;
        }
        let address = self.addresses.at(index)? as u64;
        (address != 0).then_some(address + offset as u64)
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
    pub arguments: Arguments<'a>,
    /// The memory that they lead to.
    pub memory: &'a dyn Memory,
}
