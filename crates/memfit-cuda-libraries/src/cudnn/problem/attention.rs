//! Fused attention among a graph's operations: one operation of its own, or products of matrices around a
//! softmax whose scores never reach memory.

use super::{Known, attribute, kind};
use crate::numbers::of_cudnn;
use memfit_kernels::cost::kernel::{Attention, Shape};

/// More products than the forward's two.
const OF_BACKWARD: usize = 4;

/// The attention that these operations are, if they are one.
pub(super) fn of(operations: &[&Known]) -> Option<(Attention, Shape)> {
    let of_kind = |wanted: i32| operations.iter().filter(move |operation| operation.kind == wanted);
    let products = of_kind(kind::MATMUL).count();
    let causal = operations.iter().any(|operation| operation.is_causal());
    let whole = of_kind(kind::ATTENTION).next();
    let (queries, keys) = if let Some(whole) = whole {
        let [queries, keys] = attribute::ATTENTION.map(|attribute| whole.part(attribute));
        (queries?, Side::rows_of(keys?))
    } else if products > 1 {
        let [queries, keys, scores] = attribute::MATMUL;
        let scoring =
            of_kind(kind::MATMUL).find(|product| product.part(scores).is_some_and(|made| made.is_virtual))?;
        (scoring.part(queries)?, Side::columns_of(scoring.part(keys)?))
    } else {
        return None;
    };
    let rows = Side::rows_of(queries);
    let shape =
        Shape { heads: rows.heads, queries: rows.length, keys: keys.length, width: rows.width, causal };
    Some((Attention::graph(of_cudnn(queries.numbers).1, products >= OF_BACKWARD), shape))
}

/// Vectors for each head.
struct Side {
    heads: f64,
    length: f64,
    width: f64,
}

impl Side {
    /// One vector a row.
    fn rows_of(tensor: &Known) -> Self {
        let (heads, [length, width]) = tensor.matrices();
        Self { heads, length, width }
    }

    /// One vector a column.
    fn columns_of(tensor: &Known) -> Self {
        let (heads, [width, length]) = tensor.matrices();
        Self { heads, length, width }
    }
}

impl Known {
    /// Whether it, or a graph within it, leaves scores out by their place: in a band, or where one counted
    /// index is compared with another.
    fn is_causal(&self) -> bool {
        let compared = |attribute: i32| {
            self.part(attribute).is_some_and(|tensor| tensor.is_virtual && tensor.holds_integers())
        };
        self.kind == kind::BAND
            || (self.kind == kind::POINTWISE && attribute::POINTWISE.into_iter().all(compared))
            || self.parts.iter().any(|(_, part)| part.is_causal())
    }
}
