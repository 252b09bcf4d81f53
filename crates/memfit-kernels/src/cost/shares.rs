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
/// Unsourced: with elements of two sizes, one of them is not moved in whole vectors. Published tables have
/// conversions only as parts of other operators.
pub(crate) const CONVERTING: f64 = 0.85;
/// Elementwise kernels over strided operands.
/// Source: 0.73 with strided rows and 0.64 with every second element, of a copy in the same table
/// (`contiguous` of 537 million elements, github.com/flagos-ai/FlagGems/pull/511).
pub const STRIDED: f64 = 0.70;
/// Kernels over lists of tensors.
/// Unsourced: the share of dense kernels, minus a tenth for the ends of the pieces. Fused Adam moves 2,108
/// GB/s on an H100 with HBM2E (github.com/pytorch/pytorch/pull/119842), a card whose bandwidth is not
/// published.
pub(crate) const FOREACH: f64 = 0.90;
/// Fills, which only write.
/// Source: writing alone reaches 1.04 to 1.24 of the rate of a copy with one product for each element, in the
/// middle 1.09, on A40, A100, L40, V100 and GH200 (gpu-stream of github.com/RRZE-HPC/gpu-benches).
pub const FILL: f64 = 1.09;
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
/// Definition: about the median of the shares of the known families; a test below computes it.
pub(crate) const UNKNOWN: f64 = 0.75;
/// Kernels that state their number of elements in an argument: random numbers, indexing by elements.
/// Unsourced: the share of strided elementwise kernels. Published times of scattered elements are for random
/// indices, which move a sector for each.
pub(crate) const COUNTED: f64 = 0.70;
/// Gathers of rows, each read and written once.
/// Source: `index_select` reaches 0.30 of an A100's bandwidth (github.com/pytorch/pytorch/pull/145999), or
/// 2.5 times that with elements of 16 bits since pull request 152380: 0.35 and 0.87 of long copies. This is
/// their geometric mean.
pub const ROWS: f64 = 0.55;
/// Reductions and counts, and partial sums of a product.
/// Source: sums of 2^30 numbers in single precision run at 3,136 GB/s on an H100
/// (github.com/pytorch/pytorch/issues/132964), which is 1.03 of long copies, and at 0.95 of an elementwise
/// kernel on an H20 (FlagGems' pull requests 5761 and 3857).
pub(crate) const REDUCTION: f64 = 0.95;
/// Concatenations.
/// Unsourced: about the share of elementwise kernels that convert types. Pull requests to PyTorch give times
/// (150233: 1,900 GB/s) without the card.
pub(crate) const CONCATENATION: f64 = 0.80;
/// Bytes per cycle of a multiprocessor in cumulative sums of rows.
/// Fitted: rows marked in `measured.rs`, of an A100; those of an H20 were never fitted.
pub(crate) const ROW_SCAN_RATE: f64 = 3.5;
/// Passes with decoupled look-back: cumulative sums of a whole tensor, selections, digits of a radix sort.
/// Source: Adinets and Merrill (Onesweep, 2022) sort 29.4 billion keys of 32 bits per second on an A100. Four
/// passes of 8 bytes and a histogram of 4 make 1,058 GB/s, 0.60 of the long copies of the card with 80 GB.
pub(crate) const LOOK_BACK: f64 = 0.60;
/// PyTorch's softmax.
/// Source: 1,446 of 2,039 GB/s on an A100 in rows of 12,672 (output of Triton's tutorial 02-fused-softmax),
/// where long copies reach 0.86.
pub(crate) const SOFTMAX: f64 = 0.82;
/// Its gradient.
/// Source: 67 µs for 4,096 rows of 4,096 in single precision on an H20, where an elementwise kernel of four
/// operands takes 70 (FlagGems' pull requests 5250 and 3857): 0.79.
pub(crate) const SOFTMAX_BACKWARD: f64 = 0.80;
/// Bytes per cycle of a multiprocessor in layer norms of the usual widths.
/// Fitted: rows marked in `measured.rs`, of an A100; those of an H100 were never fitted.
pub(crate) const LAYER_NORM_RATE: f64 = 18.0;
/// Layer norms of other widths, and gradients of their inputs.
/// Unsourced: with the share of the weights' gradients below, backward passes of an H100 come to within 15 %
/// for 2,048 to 16,384 columns (`measured.rs`), to which neither was fitted.
pub(crate) const LAYER_NORM_GENERAL: f64 = 0.75;
/// Kernels that read along one dimension and write along another: gradients of a layer norm's weights,
/// pooling, interpolation, im2col.
/// Unsourced: as the share above, for gradients of weights. The others are assumed to be like them.
pub(crate) const ACROSS_ROWS: f64 = 0.60;
/// Bytes per cycle of a multiprocessor in group norms, except their elementwise part.
/// Fitted: rows marked in `measured.rs`, of a B200. A row of an A100 with few groups takes longer.
pub(crate) const GROUP_NORM_RATE: f64 = 3.3;
/// Batch norms by PyTorch's own kernels, and dropout with its random numbers.
/// Unsourced: one pass, with a reduction or a random number generator. Pull requests to PyTorch give times of
/// batch norms without the card or for sizes that fit into caches.
pub(crate) const BATCH_NORM: f64 = 0.75;
/// Adaptive pooling, classification losses, col2im: windows that overlap, or rows of which little is used.
/// Unsourced: half of the moved bytes are used. Times of adaptive pooling were found for small sizes alone.
pub(crate) const OVERLAPPING: f64 = 0.50;
/// PyTorch's own depthwise convolutions of images.
/// Unsourced: three times the share below, with a third of the products for each element.
pub(crate) const DEPTHWISE: f64 = 0.33;
/// The same for volumes.
/// Source: 14.2 ms for forward and backward passes over 8 x 64 x 32 x 56 x 56 numbers on a V100, and 7.2 ms
/// for half as many (github.com/pytorch/pytorch/pull/40801, windows of 27): 87 GB/s.
pub(crate) const DEPTHWISE_VOLUMES: f64 = 0.11;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::speeds::card_speeds, *};

    /// Shares of the families of kernels that read and write.
    const ALL: [f64; 20] = [
        ELEMENTWISE,
        CONVERTING,
        STRIDED,
        FOREACH,
        PRODUCT_OPERANDS,
        COMPILED_POINTWISE,
        COMPILED_REDUCTION,
        COUNTED,
        ROWS,
        REDUCTION,
        CONCATENATION,
        LOOK_BACK,
        SOFTMAX,
        SOFTMAX_BACKWARD,
        LAYER_NORM_GENERAL,
        ACROSS_ROWS,
        BATCH_NORM,
        OVERLAPPING,
        DEPTHWISE,
        DEPTHWISE_VOLUMES,
    ];

    #[test]
    fn an_unknown_kernel_is_as_fast_as_the_median_of_the_known() {
        let mut sorted = ALL;
        sorted.sort_by(f64::total_cmp);
        assert!((UNKNOWN - sorted[sorted.len() / 2]).abs() < 0.06, "{}", sorted[sorted.len() / 2]);
    }

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
