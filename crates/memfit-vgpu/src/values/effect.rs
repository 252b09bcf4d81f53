//! What a launch means for the contents of memory.

use crate::{
    abi::{In, Ptr},
    kernels::Function,
};

/// The arguments of a launch: the address of each.
#[derive(Clone, Copy)]
pub(crate) struct Arguments(In<Ptr>);

impl Arguments {
    /// The arguments that a launch was handed.
    pub(crate) fn new(addresses: In<Ptr>) -> Self {
        Self(addresses)
    }

    /// The argument at `index`, which the kernel's own signature says is a `T`.
    pub(crate) fn get<T: Copy>(self, index: usize) -> Option<T> {
        In::<T>::from_address(self.0.at(index)? as u64).get()
    }

    /// The first `length` bytes of the argument at `index`, which has as many by the kernel's own layout.
    pub(crate) fn bytes(self, index: usize, length: usize) -> Option<Vec<u8>> {
        let address = self.0.at(index)?;
        (!address.is_null()).then(|| In::<u8>::from_address(address as u64).list(length))
    }
}

/// What is known of a kernel's effect, decided once from its name.
pub(crate) enum Effect {
    /// Nothing follows that is worth knowing.
    None,
}

impl Effect {
    /// The effect of the kernel with this mangled name.
    pub(crate) fn of(_mangled: &str) -> Self {
        Self::None
    }

    /// Applies it to a launch with these arguments.
    #[inline]
    pub(crate) fn apply(&self, _arguments: Arguments, _layout: impl FnOnce() -> Option<Function>) {
        match self {
            Self::None => {}
        }
    }
}
