//! Which family a kernel is of, by its name.

use super::{Attention, Flex, Foreach, Math, grouped};
use crate::values::{Elementwise, Signature, Type};

/// How a kernel's length is found.
#[derive(Debug)]
pub(super) enum Family {
    /// Of PyTorch's elementwise kernels, whose count, types and strides are in the arguments.
    Elementwise(Elementwise),
    /// Over lists of tensors.
    Foreach(Foreach),
    /// Fused attention.
    Attention(Attention),
    /// Fused attention that Inductor made a kernel of its own for.
    Flex(Flex),
    /// Passes over all operands, at a share of what long copies achieve.
    Known { share: f64, passes: f64 },
    /// So many elements as an argument says, in each of some tensors.
    Counted { argument: usize, tensors: f64, element: f64 },
    /// Picks rows of a table, or adds to them.
    Rows,
    /// So little that only the launch counts, whatever its operands are.
    Short,
    /// Inductor's own: pointwise kernels and reductions.
    Compiled,
    /// Inductor's own: products of matrices.
    Template,
    /// Prepares many products of matrices of a type, for one kernel.
    Prepares((Math, f64)),
    /// Many products of matrices, as they were prepared.
    Grouped,
    /// Nothing but where its arguments lead.
    Unknown,
}

/// Families by a part of the kernel's name, the first that fits. Shares are of kernels as PyTorch launches
/// them for large tensors.
const KNOWN: [(&str, Family); 40] = [
    ("reduce_kernel", Family::Known { share: 0.85, passes: 1.0 }),
    ("SoftMaxForward", Family::Known { share: 0.85, passes: 1.0 }),
    ("SoftMaxBackward", Family::Known { share: 0.80, passes: 1.0 }),
    ("softmax_warp", Family::Known { share: 0.85, passes: 1.0 }),
    ("layer_norm_kernel", Family::Known { share: 0.80, passes: 1.0 }),
    ("layer_norm_grad_input", Family::Known { share: 0.75, passes: 1.0 }),
    ("LayerNormForward", Family::Known { share: 0.75, passes: 1.0 }),
    ("GammaBetaBackward", Family::Known { share: 0.60, passes: 1.0 }),
    ("RowwiseMoments", Family::Known { share: 0.75, passes: 1.0 }),
    ("GroupNorm", Family::Known { share: 0.70, passes: 1.0 }),
    ("ComputeInternalGradients", Family::Known { share: 0.70, passes: 1.0 }),
    ("batch_norm_collect", Family::Known { share: 0.75, passes: 1.0 }),
    ("batch_norm_transform", Family::Known { share: 0.80, passes: 1.0 }),
    ("batch_norm_backward_reduce", Family::Known { share: 0.75, passes: 1.0 }),
    ("batch_norm_backward", Family::Known { share: 0.75, passes: 1.0 }),
    ("max_pool", Family::Known { share: 0.60, passes: 1.0 }),
    ("avg_pool", Family::Known { share: 0.60, passes: 1.0 }),
    ("adaptive_average", Family::Known { share: 0.50, passes: 1.0 }),
    ("upsample", Family::Known { share: 0.60, passes: 1.0 }),
    ("fused_dropout", Family::Known { share: 0.75, passes: 1.0 }),
    ("CatArrayBatchedCopy", Family::Known { share: 0.80, passes: 1.0 }),
    ("im2col", Family::Known { share: 0.60, passes: 1.0 }),
    ("col2im", Family::Known { share: 0.50, passes: 1.0 }),
    ("conv_depthwise", Family::Known { share: 0.40, passes: 1.0 }),
    // One number of each row.
    ("nll_loss_forward_reduce", Family::Short),
    ("nll_loss_backward_reduce", Family::Short),
    ("nll_loss", Family::Known { share: 0.50, passes: 1.0 }),
    ("tensor_kernel_scan", Family::Known { share: 0.50, passes: 1.0 }),
    ("DeviceScan", Family::Known { share: 0.70, passes: 1.0 }),
    ("DeviceReduce", Family::Known { share: 0.85, passes: 1.0 }),
    ("DeviceSelect", Family::Known { share: 0.60, passes: 1.0 }),
    ("RadixSort", Family::Known { share: 0.60, passes: 1.0 }),
    ("bitonicSort", Family::Known { share: 0.25, passes: 1.0 }),
    // Of all that their parameters lead to, one or two tensors.
    ("flash_bwd_dot_do_o", Family::Known { share: 0.80, passes: 0.25 }),
    ("flash_bwd_convert_dq", Family::Known { share: 0.80, passes: 0.25 }),
    ("index", Family::Rows),
    ("gather", Family::Rows),
    ("scatter", Family::Rows),
    ("embedding", Family::Rows),
    ("Embedding", Family::Rows),
];

impl Family {
    /// From a kernel's mangled name, and the text that Triton kept of it.
    pub(super) fn of(mangled: &str, text: Option<&str>) -> Self {
        if let Some(flex) = text.and_then(|text| Flex::of(text, mangled)) {
            return Self::Flex(flex);
        }
        if let Some(rest) = mangled.strip_prefix("triton_") {
            return match rest.split('_').next() {
                Some("poi" | "red" | "per" | "for") => Self::Compiled,
                Some("tem" | "mm") if rest.contains("_mm") || rest.contains("convolution") => Self::Template,
                _ => Self::Unknown,
            };
        }
        if mangled.contains("prepare_grouped_gemm_data") {
            return Self::Prepares(grouped::numbers(mangled));
        }
        if mangled.contains("GroupProblemShape") {
            return Self::Grouped;
        }
        if let Some(attention) = Attention::of(mangled) {
            return Self::Attention(attention);
        }
        let Some(signature) = Signature::of(mangled) else { return Self::by_name(mangled) };
        if let Some(foreach) = Foreach::of(&signature) {
            return Self::Foreach(foreach);
        }
        if let Some(elementwise) = Elementwise::of(&signature) {
            return Self::Elementwise(elementwise);
        }
        match signature.name() {
            // Count, then what makes the numbers and where they go.
            "distribution_elementwise_grid_stride_kernel" => {
                Self::Counted { argument: 0, tensors: 1.0, element: 4.0 }
            }
            "elementwise_kernel"
            | "vectorized_elementwise_kernel"
            | "unrolled_elementwise_kernel"
            | "legacy_elementwise_kernel" => {
                Self::Counted { argument: 0, tensors: 3.0, element: Type::mentioned(mangled) as f64 }
            }
            "index_elementwise_kernel" | "_scatter_gather_elementwise_kernel" => {
                Self::Counted { argument: 0, tensors: 4.0, element: Type::mentioned(mangled) as f64 }
            }
            name => Self::by_name(name),
        }
    }

    fn by_name(name: &str) -> Self {
        let known = KNOWN.iter().find(|(part, _)| name.contains(part));
        match known.map(|(_, family)| family) {
            Some(Self::Known { share, passes }) => Self::Known { share: *share, passes: *passes },
            Some(Self::Rows) => Self::Rows,
            Some(Self::Short) => Self::Short,
            _ => Self::Unknown,
        }
    }
}
