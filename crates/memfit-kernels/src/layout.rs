//! Structures that PyTorch passes to its kernels by value: where in the arguments of a launch the addresses,
//! extents and strides of tensors stand.
//!
//! Each layout is stated here once, for those who follow contents ([`crate::values`]) and for those who
//! estimate durations ([`crate::cost`]).

pub(crate) mod lists;
pub(crate) mod strides;
pub(crate) mod tensor_info;

pub(crate) use lists::Lists;
pub(crate) use strides::Strides;
pub(crate) use tensor_info::{TensorInfo, Width};
