//! Recognition of fused attention in a graph: a single operation, or matrix products around a softmax whose
//! scores never reach memory.

use super::{Attributes, attribute, kind};
use crate::numbers::cudnn_element;
use memfit_kernels::cost::kernel::{Attention, Shape};

/// Minimum matrix products of a backward pass; the forward pass has two.
const MIN_BACKWARD_PRODUCTS: usize = 4;

/// Returns the attention that these operations form, if they do.
pub(super) fn recognise(operations: &[&Attributes]) -> Option<(Attention, Shape)> {
    let of_kind = |wanted: i32| operations.iter().filter(move |operation| operation.kind == wanted);
    let products = of_kind(kind::MATMUL).count();
    let causal = operations.iter().any(|operation| operation.is_causal());
    let whole = of_kind(kind::ATTENTION).next();
    let (queries, keys) = if let Some(whole) = whole {
        let [queries, keys] = attribute::ATTENTION.map(|attribute| whole.part(attribute));
        (queries?, Side::from_rows(keys?))
    } else if products > 1 {
        let [queries, keys, scores] = attribute::MATMUL;
        let scoring =
            of_kind(kind::MATMUL).find(|product| product.part(scores).is_some_and(|made| made.is_virtual))?;
        (scoring.part(queries)?, Side::from_columns(scoring.part(keys)?))
    } else {
        return None;
    };
    let rows = Side::from_rows(queries);
    let shape =
        Shape { heads: rows.heads, queries: rows.length, keys: keys.length, width: rows.width, causal };
    Some((Attention::graph(cudnn_element(queries.numbers).1, products >= MIN_BACKWARD_PRODUCTS), shape))
}

/// Queries or keys: vectors per head.
struct Side {
    heads: f64,
    length: f64,
    width: f64,
}

impl Side {
    /// Reads a tensor with one vector per row.
    fn from_rows(tensor: &Attributes) -> Self {
        let (heads, [length, width]) = tensor.matrices();
        Self { heads, length, width }
    }

    /// Reads a tensor with one vector per column.
    fn from_columns(tensor: &Attributes) -> Self {
        let (heads, [width, length]) = tensor.matrices();
        Self { heads, length, width }
    }
}

impl Attributes {
    /// Returns `true` if it, or a graph within it, masks scores by position: in a band, or by comparing one
    /// generated index with another.
    fn is_causal(&self) -> bool {
        let compared = |attribute: i32| {
            self.part(attribute).is_some_and(|tensor| tensor.is_virtual && tensor.holds_integers())
        };
        self.kind == kind::BAND
            || (self.kind == kind::POINTWISE && attribute::POINTWISE.into_iter().all(compared))
            || self.parts.iter().any(|(_, part)| part.is_causal())
    }
}
