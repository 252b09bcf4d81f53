//! Effects of kernel launches on known memory contents.

mod arrange;
mod effect;
mod elementwise;
mod functor;
mod histogram;
pub mod number;
mod random;
mod range;
mod reduction;
mod scatter;
mod sizes;
mod topk;
mod writes;

pub(crate) use arrange::Arrange;
pub(crate) use effect::Effect;
pub(crate) use elementwise::{Access, Elementwise};
pub(crate) use histogram::Histogram;
pub use number::Type;
pub(crate) use random::Random;
pub(crate) use reduction::Reduction;
pub(crate) use scatter::Scatter;
pub(crate) use sizes::Size;
pub(crate) use topk::TopK;
pub(crate) use writes::Writes;
