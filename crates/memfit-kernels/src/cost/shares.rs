//! Shares of the bandwidth of long copies that kernels reach, and of the rate of large products.
//!
//! Each constant says where it is from, in a line that begins with one of these words. A test holds it
//! (`crates/memfit-tidy/tests/constants.rs`).
//!
//! - `Source:` a publication with a measurement, a data sheet, or the code that it describes.
//! - `Fitted:` the published rows that it was fitted to; rows kept aside are in the same table.
//! - `Definition:` it follows from what it is a share of.
//! - `Unsourced:` an estimate that no publication was found for, and why it is what it is.

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
/// Definition: STREAM's kernels, which the bandwidth of long copies is from, are of this kind. PyTorch's own
/// addition reached 831 of 900 GB/s on a V100 (output of Triton's tutorial 01-vector-add).
pub(crate) const ELEMENTWISE: f64 = 1.0;
/// Elementwise kernels that convert types, or generate a range.
/// Unsourced: elements of two sizes are not both moved in whole vectors.
pub(crate) const CONVERTING: f64 = 0.85;
/// Elementwise kernels over strided operands.
/// Unsourced: parts of sectors are moved in vain.
pub(crate) const STRIDED: f64 = 0.70;
/// Kernels over lists of tensors.
/// Unsourced: as dense kernels, with a tenth lost at the ends of the pieces.
pub(crate) const FOREACH: f64 = 0.90;
/// Fills, which only write.
/// Unsourced: between a copy and a kernel.
pub const FILL: f64 = 0.95;
/// Copies that one rank makes in place of a collective.
/// Unsourced: as lists of tensors.
pub(crate) const ONE_RANK: f64 = 0.9;
/// Partial sums of a product, and other passes of a library over its operands.
/// Unsourced: as elementwise kernels that convert.
pub(crate) const PARTIAL_SUMS: f64 = 0.8;
/// Operands of a matrix product that is bound by memory.
/// Source: pytorch-labs/gpt-fast at 0f925b5 reads weights at 1,397 GB/s on an A100, over all of a token's
/// time, and states that about 1,700 are the most that it has seen there.
pub(crate) const PRODUCT_OPERANDS: f64 = 0.95;
/// Inductor's pointwise kernels.
/// Fitted: measurements/ablation.md, rows of torchtune's README on an A100.
pub(crate) const COMPILED_POINTWISE: f64 = 0.88;
/// Inductor's reductions: norms, softmax, losses, sums over rows.
/// Fitted: fitted rows of measurements/datacenter-speed.md. A softmax that Inductor compiled reached 983 of
/// 2,039 GB/s on an A100, where PyTorch's own reached 1,446 (output of Triton's tutorial 02-fused-softmax).
pub(crate) const COMPILED_REDUCTION: f64 = 0.63;
/// Kernels of which only the operands are known.
/// Unsourced: in the middle of those that are known.
pub(crate) const UNKNOWN: f64 = 0.6;
/// Kernels that count elements in an argument, and gathers of rows.
/// Unsourced: as strided elementwise kernels.
pub(crate) const COUNTED: f64 = 0.70;
/// Reductions and counts.
/// Unsourced: one pass, and little work of each thread.
pub(crate) const REDUCTION: f64 = 0.85;
/// Concatenations.
/// Unsourced: as elementwise kernels that convert.
pub(crate) const CONCATENATION: f64 = 0.80;
/// Running totals of rows.
/// Unsourced: threads of a block wait for each other.
pub(crate) const ROW_SCAN: f64 = 0.50;
/// Running totals of a whole tensor.
/// Unsourced: one pass with decoupled look-back, which its authors describe as nearly a copy's speed.
pub(crate) const SCAN: f64 = 0.70;
/// Sorts within a block.
/// Unsourced: its steps are in shared memory.
pub(crate) const BITONIC_SORT: f64 = 0.25;
/// Selections, and a pass of a radix sort.
/// Unsourced: reads in order and writes scattered.
pub(crate) const SELECTION: f64 = 0.60;
/// PyTorch's softmax.
/// Source: 1,446 of 2,039 GB/s on an A100 in rows of 12,672 (output of Triton's tutorial 02-fused-softmax),
/// where long copies reach 0.86.
pub(crate) const SOFTMAX: f64 = 0.82;
/// Its gradient.
/// Unsourced: as the softmax, with a second operand.
pub(crate) const SOFTMAX_BACKWARD: f64 = 0.80;
/// Layer norms of the usual widths.
/// Unsourced: one pass, and a reduction in each row.
pub(crate) const LAYER_NORM: f64 = 0.80;
/// Layer norms of other widths, and gradients of their inputs.
/// Unsourced: rows are read twice, the second time from the cache.
pub(crate) const LAYER_NORM_GENERAL: f64 = 0.75;
/// Kernels that read along one dimension and write along another: gradients of a layer norm's weights,
/// pooling, interpolation, im2col.
/// Unsourced: between strided kernels and scattered ones.
pub(crate) const ACROSS_ROWS: f64 = 0.60;
/// Group norms.
/// Unsourced: as layer norms of large groups.
pub(crate) const GROUP_NORM: f64 = 0.70;
/// The elementwise part of a batch norm.
/// Unsourced: as elementwise kernels that convert.
pub(crate) const BATCH_NORM_TRANSFORM: f64 = 0.80;
/// The sums of a batch norm, and dropout with its random numbers.
/// Unsourced: one pass, and a reduction or a generator.
pub(crate) const BATCH_NORM: f64 = 0.75;
/// Adaptive pooling, losses of classes, col2im: windows that overlap, or rows of which little is used.
/// Unsourced: half of what is moved is of use.
pub(crate) const OVERLAPPING: f64 = 0.50;
/// PyTorch's own depthwise convolutions.
/// Unsourced: windows that overlap, and arithmetic beside them.
pub(crate) const DEPTHWISE: f64 = 0.40;
/// Fused attention that is bound by its operands, and the passes before and after its gradient.
/// Unsourced: as the softmax.
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
