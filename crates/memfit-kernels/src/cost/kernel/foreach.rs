//! Kernels over lists of tensors: foreach operations and fused optimizers.

use crate::{
    launch::{Arguments, Grid},
    layout::Lists,
    name::{Signature, type_parts},
    values::Type,
};

/// The cost of a kernel over lists of tensors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Foreach {
    lists: Lists,
    /// Bytes that are read and written for each element.
    bytes: f64,
}

impl Foreach {
    /// What these kernels achieve of what long copies do.
    pub(super) const SHARE: f64 = 0.90;

    /// From a kernel's signature; `None` if its lists are not known.
    pub(crate) fn of(signature: &Signature) -> Option<Self> {
        let lists = Lists::of(signature)?;
        let functor = signature.template(1)?;
        let bytes = touched(functor, lists.depth()) * Type::mentioned(functor) as f64;
        Some(Self { lists, bytes })
    }

    /// Bytes that a launch moves.
    pub(super) fn bytes(&self, grid: Grid, arguments: Arguments) -> f64 {
        self.lists.elements(grid, arguments) as f64 * self.bytes
    }
}

/// How many elements are read or written for one element of a tensor.
fn touched(functor: &str, depth: usize) -> f64 {
    let (name, arguments) = type_parts(functor);
    // `<type, depth, lists that are read, the list that is written>`
    let numbers: Vec<usize> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let (all, read) = match numbers.as_slice() {
        [_, read, _] => (depth, *read),
        _ => (depth, depth),
    };
    let written = match name {
        // Adam and SGD write all but the gradient.
        _ if name.starts_with("Fused") => all.saturating_sub(1),
        "LpNormFunctor" | "LpMaxFunctor" => 0,
        _ => 1,
    };
    (read.min(all) + written) as f64
}
