//! What launches mean for the contents of memory, as far as they are known.

mod arrange;
mod effect;
mod elementwise;
mod functor;
mod histogram;
pub mod number;
mod random;
mod reduction;
mod scatter;
mod signature;
mod sizes;
mod strides;
mod tensor_info;
mod topk;
mod triton;
mod writes;

pub use effect::Effect;
pub(crate) use elementwise::Elementwise;
pub use number::Type;
pub(crate) use signature::{Signature, type_parts};
pub(crate) use triton::triton_function;

#[cfg(test)]
mod tests;
