//! Structures that PyTorch passes to its kernels by value: offsets of the addresses, extents and strides of
//! tensors in the arguments of a launch.
//!
//! Each layout is stated here once, for the tracking of contents ([`crate::values`]) and for the estimates of
//! durations ([`crate::cost`]).

pub(crate) mod lists;
pub(crate) mod strides;
pub(crate) mod tensor_info;

use std::ops::RangeInclusive;

pub(crate) use lists::Lists;
pub(crate) use strides::Strides;
pub(crate) use tensor_info::{TensorInfo, Width};

/// Sizes of a kernel's parameters in a layout; only those that are read.
pub(crate) type Sizes = Vec<RangeInclusive<usize>>;

/// A parameter that is not read.
pub(crate) const ANY: RangeInclusive<usize> = 0..=usize::MAX;

/// Size of a lambda that captures `fields` bytes: the compiler adds a pointer.
pub(crate) const fn capturing(fields: usize) -> usize {
    fields.next_multiple_of(8) + 8
}
