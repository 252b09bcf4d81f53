//! Structures that PyTorch passes to its kernels by value: where in the arguments of a launch the addresses,
//! extents and strides of tensors stand.
//!
//! Each layout is stated here once, for those who follow contents ([`crate::values`]) and for those who
//! estimate durations ([`crate::cost`]).

pub(crate) mod lists;
pub(crate) mod strides;
pub(crate) mod tensor_info;

use std::ops::RangeInclusive;

pub(crate) use lists::Lists;
pub(crate) use strides::Strides;
pub(crate) use tensor_info::{TensorInfo, Width};

/// The sizes that a layout gives the parameters of a kernel, as far as they are read.
pub(crate) type Sizes = Vec<RangeInclusive<usize>>;

/// A parameter that is not read.
pub(crate) const ANY: RangeInclusive<usize> = 0..=usize::MAX;

/// The size of a lambda that captures fields of so many bytes: the compiler keeps a pointer with them.
pub(crate) const fn capturing(fields: usize) -> usize {
    fields.next_multiple_of(8) + 8
}
