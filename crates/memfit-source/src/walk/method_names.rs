//! What the names of methods and of their owners say.

use ruff_python_ast::{Expr, ExprCall};

use super::definitions::dotted;
use crate::facts::{Kind, Value};

/// Functions and methods whose result is an index, a comparison or a sample, which has no gradient.
pub(super) fn has_no_gradient(name: &str) -> bool {
    matches!(
        name,
        "argmax"
            | "argmin"
            | "argsort"
            | "multinomial"
            | "bernoulli"
            | "bincount"
            | "nonzero"
            | "eq"
            | "ne"
            | "isnan"
            | "isfinite"
            | "one_hot"
            | "new_empty"
            | "new_full"
            | "new_ones"
            | "new_tensor"
            | "new_zeros"
    )
}

/// Tensor methods that take sizes, dimensions and counts, or of another tensor its type or shape only.
pub(super) fn takes_sizes(name: &str) -> bool {
    matches!(
        name,
        "view"
            | "reshape"
            | "expand"
            | "repeat"
            | "permute"
            | "transpose"
            | "squeeze"
            | "unsqueeze"
            | "flatten"
            | "unflatten"
            | "split"
            | "chunk"
            | "narrow"
            | "select"
            | "unbind"
            | "unfold"
            | "tile"
            | "repeat_interleave"
            | "type"
            | "type_as"
            | "view_as"
            | "reshape_as"
            | "expand_as"
    )
}

/// Returns `true` for methods whose arguments contribute no graph: sizes, dimensions and indices.
pub(super) fn takes_plain_arguments(name: &str) -> bool {
    takes_sizes(name) || matches!(name, "gather" | "index_select" | "masked_select" | "take")
}

/// Returns `true` for `parameter.grad` and `parameter.grad.data`.
pub(super) fn is_gradient(name: &str) -> bool {
    name.strip_suffix(".data").unwrap_or(name).rsplit('.').next() == Some("grad")
}

/// Returns `true` for a method of a name other than `self`.
pub(super) fn dotted_receiver(node: &ExprCall, text: &str) -> bool {
    let Expr::Attribute(attribute) = &*node.func else { return false };
    dotted(&attribute.value, text).is_some_and(|name| !["self", "ctx", "cls"].contains(&name))
}

/// Returns `true` for a Fabric object, by its class or else by its name.
pub(super) fn is_fabric(name: &str, value: &Value) -> bool {
    match &value.kind {
        Kind::Imported(class) => class.rsplit('.').next() == Some("Fabric"),
        _ => name.rsplit('.').next().is_some_and(|last| last.trim_start_matches('_') == "fabric"),
    }
}

/// Returns `true` for names of Accelerate and Fabric objects.
pub(super) fn is_accelerate_or_fabric(name: &str) -> bool {
    name.contains("accelerator") || name.contains("fabric")
}

/// Returns `true` for methods of NumPy arrays, numbers and texts that compute values of their kind.
pub(super) fn is_of_arrays(name: &str) -> bool {
    [
        "flatten",
        "reshape",
        "ravel",
        "squeeze",
        "astype",
        "copy",
        "transpose",
        "swapaxes",
        "repeat",
        "take",
        "mean",
        "sum",
        "std",
        "max",
        "min",
        "argmax",
        "argmin",
        "argsort",
        "round",
        "clip",
        "nonzero",
        "any",
        "all",
        "tolist",
        "item",
        "tobytes",
    ]
    .contains(&name)
}
