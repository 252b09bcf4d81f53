//! Shares of the bandwidth of long copies that kernels reach, and of the rate of large products.
//!
//! Each constant states its source in a line that begins with one of these words. A test checks that
//! (`crates/memfit-tidy/tests/constants.rs`).
//!
//! - `Source:` a publication with a measurement, a data sheet, or the code that it describes.
//! - `Fitted:` the published rows that it was fitted to; rows kept aside are in the same table.
//! - `Definition:` it follows from the definition of the share.
//! - `Unsourced:` an estimate for which no publication was found, with its reason.

use crate::values::Access;

/// Share of an elementwise kernel.
pub(crate) const fn elementwise(access: Access) -> f64 {
    match access {
        Access::Dense => ELEMENTWISE,
        Access::Converting => CONVERTING,
        Access::Strided => STRIDED,
    }
}

/// Dense elementwise kernels.
/// Definition: the bandwidth of long copies is measured with kernels of this kind (STREAM). PyTorch's own
/// addition reached 831 of 900 GB/s on a V100 (output of Triton's tutorial 01-vector-add).
pub(crate) const ELEMENTWISE: f64 = 1.0;
/// Elementwise kernels that convert types, or generate a range.
/// Unsourced: with elements of two sizes, one of them is not moved in whole vectors.
pub(crate) const CONVERTING: f64 = 0.85;
/// Elementwise kernels over strided operands.
/// Unsourced: parts of the moved sectors are not used.
pub(crate) const STRIDED: f64 = 0.70;
/// Kernels over lists of tensors.
/// Unsourced: the share of dense kernels, minus a tenth for the ends of the pieces.
pub(crate) const FOREACH: f64 = 0.90;
/// Fills, which only write.
/// Unsourced: between a copy and a kernel.
pub const FILL: f64 = 0.95;
/// Copies that one rank makes in place of a collective.
/// Unsourced: the share of kernels over lists of tensors.
pub(crate) const ONE_RANK: f64 = 0.9;
/// Partial sums of a product, and other passes of a library over its operands.
/// Unsourced: about the share of elementwise kernels that convert types.
pub(crate) const PARTIAL_SUMS: f64 = 0.8;
/// Operands of a matrix product that is bound by memory.
/// Source: pytorch-labs/gpt-fast at 0f925b5 reads weights at 1,397 GB/s on an A100, averaged over the whole
/// time of a token, and reports about 1,700 as the maximum observed there.
pub(crate) const PRODUCT_OPERANDS: f64 = 0.95;
/// Inductor's pointwise kernels.
/// Fitted: measurements/ablation.md, rows of torchtune's README on an A100.
pub(crate) const COMPILED_POINTWISE: f64 = 0.88;
/// Inductor's reductions: norms, softmax, losses, sums over rows.
/// Fitted: fitted rows of measurements/datacenter-speed.md. A softmax that Inductor compiled reached 983 of
/// 2,039 GB/s on an A100, where PyTorch's own reached 1,446 (output of Triton's tutorial 02-fused-softmax).
pub(crate) const COMPILED_REDUCTION: f64 = 0.63;
/// Kernels of which only the operands are known.
/// Unsourced: in the middle of the known kernels' shares.
pub(crate) const UNKNOWN: f64 = 0.6;
/// Kernels that state their number of elements in an argument, and gathers of rows.
/// Unsourced: the share of strided elementwise kernels.
pub(crate) const COUNTED: f64 = 0.70;
/// Reductions and counts.
/// Unsourced: one pass, with little work per thread.
pub(crate) const REDUCTION: f64 = 0.85;
/// Concatenations.
/// Unsourced: about the share of elementwise kernels that convert types.
pub(crate) const CONCATENATION: f64 = 0.80;
/// Cumulative sums of rows.
/// Unsourced: threads of a block wait for each other.
pub(crate) const ROW_SCAN: f64 = 0.50;
/// Cumulative sums of a whole tensor.
/// Unsourced: one pass with decoupled look-back, which its authors describe as nearly as fast as a copy.
pub(crate) const SCAN: f64 = 0.70;
/// Sorts within a block.
/// Unsourced: most of the time is spent on steps in shared memory.
pub(crate) const BITONIC_SORT: f64 = 0.25;
/// Selections, and a pass of a radix sort.
/// Unsourced: reads are sequential, writes are scattered.
pub(crate) const SELECTION: f64 = 0.60;
/// PyTorch's softmax.
/// Source: 1,446 of 2,039 GB/s on an A100 in rows of 12,672 (output of Triton's tutorial 02-fused-softmax),
/// where long copies reach 0.86.
pub(crate) const SOFTMAX: f64 = 0.82;
/// Its gradient.
/// Unsourced: about the share of the softmax, with a second operand.
pub(crate) const SOFTMAX_BACKWARD: f64 = 0.80;
/// Layer norms of the usual widths.
/// Unsourced: one pass, with a reduction in each row.
pub(crate) const LAYER_NORM: f64 = 0.80;
/// Layer norms of other widths, and gradients of their inputs.
/// Unsourced: rows are read twice, the second time from the cache.
pub(crate) const LAYER_NORM_GENERAL: f64 = 0.75;
/// Kernels that read along one dimension and write along another: gradients of a layer norm's weights,
/// pooling, interpolation, im2col.
/// Unsourced: between strided kernels and scattered ones.
pub(crate) const ACROSS_ROWS: f64 = 0.60;
/// Group norms.
/// Unsourced: about the share of layer norms, with groups in place of rows.
pub(crate) const GROUP_NORM: f64 = 0.70;
/// The elementwise part of a batch norm.
/// Unsourced: about the share of elementwise kernels that convert types.
pub(crate) const BATCH_NORM_TRANSFORM: f64 = 0.80;
/// The sums of a batch norm, and dropout with its random numbers.
/// Unsourced: one pass, with a reduction or a random number generator.
pub(crate) const BATCH_NORM: f64 = 0.75;
/// Adaptive pooling, classification losses, col2im: windows that overlap, or rows of which little is used.
/// Unsourced: half of the moved bytes are used.
pub(crate) const OVERLAPPING: f64 = 0.50;
/// PyTorch's own depthwise convolutions.
/// Unsourced: windows overlap, and arithmetic takes additional time.
pub(crate) const DEPTHWISE: f64 = 0.40;
/// Fused attention that is bound by its operands, and the passes before and after its gradient.
/// Unsourced: about the share of the softmax.
pub(crate) const ATTENTION_OPERANDS: f64 = 0.80;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::speeds::card_speeds, *};

    /// All shares of the bandwidth.
    const ALL: [f64; 29] = [
        ELEMENTWISE,
        CONVERTING,
        STRIDED,
        FOREACH,
        FILL,
        ONE_RANK,
        PARTIAL_SUMS,
        PRODUCT_OPERANDS,
        COMPILED_POINTWISE,
        COMPILED_REDUCTION,
        UNKNOWN,
        COUNTED,
        REDUCTION,
        CONCATENATION,
        ROW_SCAN,
        SCAN,
        BITONIC_SORT,
        SELECTION,
        SOFTMAX,
        SOFTMAX_BACKWARD,
        LAYER_NORM,
        LAYER_NORM_GENERAL,
        ACROSS_ROWS,
        GROUP_NORM,
        BATCH_NORM_TRANSFORM,
        BATCH_NORM,
        OVERLAPPING,
        DEPTHWISE,
        ATTENTION_OPERANDS,
    ];

    proptest! {
        #[test]
        fn more_bytes_never_take_less_time_nor_more_bandwidth_more(bytes in 1.0_f64..1e10, which in 0..ALL.len()) {
            let (a100, h100) = (card_speeds("a100-80gb"), card_speeds("h100-sxm"));
            let share = ALL[which];
            // Data that fits into the cache is moved faster, so there is one step up.
            prop_assert!(a100.traffic(2.0 * bytes, share) >= a100.traffic(bytes, share));
            prop_assert!(a100.traffic(2.0 * bytes, share) <= 4.0 * a100.traffic(bytes, share));
            prop_assert!(h100.traffic(bytes, share) <= a100.traffic(bytes, share));
            prop_assert!(a100.traffic(bytes, share) >= a100.traffic(bytes, ELEMENTWISE), "no kernel beats a copy");
        }
    }
}
