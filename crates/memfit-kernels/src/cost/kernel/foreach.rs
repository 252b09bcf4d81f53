//! Kernels over lists of tensors: foreach operations and fused optimizers.

use crate::{
    launch::{Arguments, Grid},
    layout::Lists,
    name::{Signature, type_parts},
    values::Type,
};

/// Cost model of a kernel over lists of tensors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Foreach {
    lists: Lists,
    /// Bytes read and written per element.
    bytes: f64,
}

impl Foreach {
    /// Reads a kernel's signature; `None` if its lists are unknown.
    pub(crate) fn from_signature(signature: &Signature) -> Option<Self> {
        let lists = Lists::from_signature(signature)?;
        let functor = signature.template(1)?;
        let bytes = elements_touched(functor, lists.depth()) * Type::mentioned(functor) as f64;
        Some(Self { lists, bytes })
    }

    /// Bytes that a launch moves.
    pub(super) fn bytes(&self, grid: Grid, arguments: Arguments) -> f64 {
        self.lists.elements(grid, arguments) as f64 * self.bytes
    }
}

/// Number of elements read or written for each element of a tensor.
fn elements_touched(functor: &str, depth: usize) -> f64 {
    let (name, arguments) = type_parts(functor);
    // `<type, depth, lists that are read, the list that is written>`
    let numbers: Vec<usize> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let (all, read) = match numbers.as_slice() {
        [_, read, _] => (depth, *read),
        _ => (depth, depth),
    };
    let written = match name {
        // Adam and SGD write everything except the gradient.
        _ if name.starts_with("Fused") => all.saturating_sub(1),
        "LpNormFunctor" | "LpMaxFunctor" => 0,
        _ => 1,
    };
    (read.min(all) + written) as f64
}
