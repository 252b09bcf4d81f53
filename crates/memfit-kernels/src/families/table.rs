//! The table of families.
//!
//! Shares are relative to the bandwidth of long copies, for kernels as PyTorch launches them for large
//! tensors. Layouts are those of PyTorch's sources; the tables of kernel names and parameter sizes in
//! `symbols/` check them against the releases.

use super::{CostSource, EffectSource, Family, Kernels, foreach};
use crate::{
    cost::{
        kernel::{Attention, Cost, Flex, Template, grouped_numbers},
        shares,
    },
    name::{Name, Signature},
    values::{Arrange, Effect, Elementwise, Histogram, Random, Reduction, Scatter, Size, TopK, Type, Writes},
};

/// Source of families that pass over all their operands once.
const SHARES: &str = "cost/shares.rs";

/// A family of kernels that pass over all their operands once.
const fn streaming(name: &'static str, kernels: &'static [&'static str], share: f64) -> Family {
    let cost = CostSource::All(Cost::Passes { share, passes: 1.0 });
    Family {
        name,
        kernels: Kernels::Containing(kernels),
        effect: EffectSource::Writes,
        cost,
        stated_layout: false,
        source: SHARES,
    }
}

/// Flex attention compiled by Inductor from PyTorch's template.
fn flex(name: &Name) -> Option<Flex> {
    Flex::from_text(name.text?, name.mangled)
}

/// Counts the elements of an elementwise kernel whose functor is unknown.
fn counted_cost(name: &Name, tensors: f64) -> Cost {
    Cost::Counted { argument: 0, tensors, element: Type::mentioned(name.mangled) as f64 }
}

fn triton_kind<'a>(name: &Name<'a>) -> Option<&'a str> {
    name.mangled.strip_prefix("triton_")
}

fn is_template(name: &Name) -> bool {
    triton_kind(name).is_some_and(|rest| {
        matches!(rest.split('_').next(), Some("tem" | "mm"))
            && (rest.contains("_mm") || rest.contains("convolution"))
    })
}

fn is_compiled(name: &Name) -> bool {
    triton_kind(name)
        .is_some_and(|rest| matches!(rest.split('_').next(), Some("poi" | "red" | "per" | "for")))
}

/// Returns `true` for Inductor's reductions: looped ones, and those that hold a row at once.
fn is_reduction(name: &Name) -> bool {
    triton_kind(name).is_some_and(|rest| matches!(rest.split('_').next(), Some("red" | "per")))
}

/// Family of kernels that belong to no other.
pub(super) static UNKNOWN: Family = Family {
    name: "unknown",
    kernels: Kernels::Prefixed(&[""]),
    effect: EffectSource::Writes,
    cost: CostSource::All(Cost::Unknown),
    stated_layout: false,
    source: "nothing but the memory that its arguments lead to",
};

/// All families, the more specific ones first.
pub static FAMILIES: &[Family] = &[
    Family {
        name: "flex attention",
        kernels: Kernels::Accepted(|name| flex(name).is_some()),
        effect: EffectSource::Writes,
        cost: CostSource::Each(|name, _| flex(name).map_or(Cost::Unknown, Cost::Flex)),
        stated_layout: false,
        source: "the text that Triton keeps; speed: PyTorch's introduction of FlexAttention, August 2024",
    },
    Family {
        name: "Inductor's pointwise kernels and reductions",
        kernels: Kernels::Accepted(is_compiled),
        effect: EffectSource::Writes,
        cost: CostSource::Each(|name, _| Cost::Compiled {
            share: if is_reduction(name) { shares::COMPILED_REDUCTION } else { shares::COMPILED_POINTWISE },
        }),
        stated_layout: false,
        source: "the text that Triton keeps, the machine code; cost/shares.rs",
    },
    Family {
        name: "Inductor's products of matrices",
        kernels: Kernels::Accepted(is_template),
        effect: EffectSource::Writes,
        cost: CostSource::Each(|name, _| Cost::Template(Template::from_kernel(name.mangled, name.text))),
        stated_layout: false,
        source: "the text that Triton keeps",
    },
    Family {
        name: "other Triton kernels",
        kernels: Kernels::Prefixed(&["triton_"]),
        effect: EffectSource::Writes,
        cost: CostSource::All(Cost::Unknown),
        stated_layout: false,
        source: "the text that Triton keeps",
    },
    Family {
        name: "preparation of grouped products",
        kernels: Kernels::Mangled(&["prepare_grouped_gemm_data"]),
        effect: EffectSource::Writes,
        cost: CostSource::Each(|name, _| Cost::Prepares(grouped_numbers(name.mangled))),
        stated_layout: false,
        source: "PyTorch's GroupMMCommon.cuh",
    },
    Family {
        name: "grouped products",
        kernels: Kernels::Mangled(&["GroupProblemShape"]),
        effect: EffectSource::Writes,
        cost: CostSource::All(Cost::Grouped),
        stated_layout: false,
        source: "what the preparation left",
    },
    Family {
        name: "attention",
        kernels: Kernels::Accepted(|name| Attention::from_name(name.mangled).is_some()),
        effect: EffectSource::Writes,
        cost: CostSource::Each(|name, _| {
            Attention::from_name(name.mangled).map_or(Cost::Unknown, Cost::Attention)
        }),
        stated_layout: false,
        source: "flash.h and kernel_forward.h of the releases; shares in cost/kernel/attention.rs",
    },
    Family {
        name: "foreach",
        kernels: Kernels::Named(&["multi_tensor_apply_kernel"]),
        effect: EffectSource::Writes,
        cost: CostSource::Each(foreach),
        stated_layout: false,
        source: "MultiTensorApply.cuh",
    },
    Family {
        name: "elementwise",
        kernels: Kernels::Named(&[
            "vectorized_elementwise_kernel",
            "unrolled_elementwise_kernel",
            "elementwise_kernel",
            "legacy_elementwise_kernel",
        ]),
        effect: EffectSource::Signature(|signature| {
            Elementwise::from_signature(signature).map(Effect::Elementwise)
        }),
        cost: CostSource::Each(|name, effect| match effect {
            Effect::Elementwise(elementwise) => Cost::Elementwise(elementwise.clone()),
            _ => counted_cost(name, 3.0),
        }),
        stated_layout: true,
        source: "CUDALoops.cuh and OffsetCalculator.cuh",
    },
    Family {
        name: "ranges",
        kernels: Kernels::Named(&["elementwise_kernel_with_index"]),
        effect: EffectSource::Signature(|signature| {
            Elementwise::from_signature(signature).map(Effect::Elementwise)
        }),
        cost: CostSource::Each(|_, effect| match effect {
            Effect::Elementwise(elementwise) => Cost::Elementwise(elementwise.clone()),
            _ => Cost::Rows,
        }),
        stated_layout: true,
        source: "RangeFactories.cu",
    },
    Family {
        name: "random numbers",
        kernels: Kernels::Named(&["distribution_elementwise_grid_stride_kernel"]),
        effect: EffectSource::Signature(|signature| Random::from_signature(signature).map(Effect::Random)),
        cost: CostSource::All(Cost::Counted { argument: 0, tensors: 1.0, element: 4.0 }),
        stated_layout: true,
        source: "DistributionTemplates.h",
    },
    Family {
        name: "indexing",
        kernels: Kernels::Named(&["index_elementwise_kernel"]),
        effect: EffectSource::Signature(|signature| Arrange::from_signature(signature).map(Effect::Arrange)),
        cost: CostSource::Each(|name, _| counted_cost(name, 4.0)),
        stated_layout: true,
        source: "IndexKernel.cu",
    },
    Family {
        name: "gather and scatter",
        kernels: Kernels::Named(&["_scatter_gather_elementwise_kernel"]),
        effect: EffectSource::Signature(|signature| Scatter::from_signature(signature).map(Effect::Scatter)),
        cost: CostSource::Each(|name, _| counted_cost(name, 4.0)),
        stated_layout: true,
        source: "ScatterGatherKernel.cu",
    },
    Family {
        name: "reduction",
        kernels: Kernels::Containing(&["reduce_kernel"]),
        effect: EffectSource::Signature(|signature| {
            Reduction::from_signature(signature).map(Effect::Reduction)
        }),
        cost: CostSource::All(Cost::Passes { share: shares::REDUCTION, passes: 1.0 }),
        stated_layout: true,
        source: "Reduce.cuh",
    },
    Family {
        name: "concatenation",
        kernels: Kernels::Containing(&["CatArrayBatchedCopy"]),
        effect: EffectSource::Signature(|signature| Arrange::from_signature(signature).map(Effect::Arrange)),
        cost: CostSource::All(Cost::Passes { share: shares::CONCATENATION, passes: 1.0 }),
        stated_layout: true,
        source: "Shape.cu",
    },
    Family {
        name: "running totals of rows",
        kernels: Kernels::Containing(&["tensor_kernel_scan"]),
        effect: EffectSource::Signature(|signature| Arrange::from_signature(signature).map(Effect::Arrange)),
        cost: CostSource::All(Cost::Serial { rate: shares::ROW_SCAN_RATE }),
        stated_layout: true,
        source: "ScanUtils.cuh",
    },
    Family {
        name: "running totals",
        kernels: Kernels::Containing(&["DeviceScan"]),
        effect: EffectSource::Signature(|signature| Arrange::from_signature(signature).map(Effect::Arrange)),
        cost: CostSource::All(Cost::Passes { share: shares::LOOK_BACK, passes: 1.0 }),
        stated_layout: false,
        source: "CUB's dispatch_scan.cuh",
    },
    Family {
        name: "bitonic sort",
        kernels: Kernels::Containing(&["bitonicSort"]),
        effect: EffectSource::Signature(|signature| Arrange::from_signature(signature).map(Effect::Arrange)),
        cost: CostSource::All(Cost::Unknown),
        stated_layout: true,
        source: "SortUtils.cuh",
    },
    Family {
        name: "other sorts of rows",
        kernels: Kernels::Named(&["radixSortKVInPlace", "warpMergeSortKVInPlace"]),
        effect: EffectSource::Signature(|signature| Arrange::from_signature(signature).map(Effect::Arrange)),
        cost: CostSource::All(Cost::Unknown),
        stated_layout: true,
        source: "SortUtils.cuh",
    },
    Family {
        name: "top k",
        kernels: Kernels::Named(&["gatherTopK"]),
        effect: EffectSource::Signature(|signature| TopK::from_signature(signature).map(Effect::TopK)),
        cost: CostSource::All(Cost::Rows),
        stated_layout: true,
        source: "TensorTopK.cu",
    },
    Family {
        name: "histogram",
        kernels: Kernels::Named(&["kernelHistogram1D"]),
        effect: EffectSource::Signature(|signature| {
            Histogram::from_signature(signature).map(Effect::Histogram)
        }),
        cost: CostSource::All(Cost::Unknown),
        stated_layout: true,
        source: "SummaryOps.cu",
    },
    Family {
        name: "counts",
        kernels: Kernels::Containing(&["DeviceReduce"]),
        effect: EffectSource::Signature(size),
        cost: CostSource::All(Cost::Passes { share: shares::REDUCTION, passes: 1.0 }),
        stated_layout: false,
        source: "CUB's dispatch_reduce.cuh and dispatch_reduce_by_key.cuh",
    },
    Family {
        name: "selection",
        kernels: Kernels::Containing(&["DeviceSelect"]),
        effect: EffectSource::Signature(size),
        cost: CostSource::All(Cost::Passes { share: shares::LOOK_BACK, passes: 1.0 }),
        stated_layout: false,
        source: "CUB's dispatch_select_if.cuh",
    },
    Family {
        name: "unique elements",
        kernels: Kernels::Named(&["DeviceUniqueByKeySweepKernel", "_kernel_agent"]),
        effect: EffectSource::Signature(size),
        cost: CostSource::All(Cost::Unknown),
        stated_layout: false,
        source: "CUB's dispatch_unique_by_key.cuh, Thrust's unique.h",
    },
    streaming("softmax", &["SoftMaxForward", "softmax_warp"], shares::SOFTMAX),
    streaming("softmax backward", &["SoftMaxBackward"], shares::SOFTMAX_BACKWARD),
    // Some of its kernels have the names of a layer norm's.
    Family {
        name: "group norm",
        kernels: Kernels::Mangled(&["group_norm_kernel_cu"]),
        effect: EffectSource::Writes,
        cost: CostSource::All(Cost::Serial { rate: shares::GROUP_NORM_RATE }),
        stated_layout: false,
        source: SHARES,
    },
    Family {
        name: "layer norm",
        kernels: Kernels::Containing(&["layer_norm_kernel"]),
        effect: EffectSource::Writes,
        cost: CostSource::All(Cost::Serial { rate: shares::LAYER_NORM_RATE }),
        stated_layout: false,
        source: SHARES,
    },
    streaming(
        "layer norm, general",
        &["layer_norm_grad_input", "LayerNormForward", "RowwiseMoments"],
        shares::LAYER_NORM_GENERAL,
    ),
    streaming("layer norm, gradients of weights", &["GammaBetaBackward"], shares::ACROSS_ROWS),
    streaming(
        "batch norm",
        &["batch_norm_transform", "batch_norm_collect", "batch_norm_backward"],
        shares::BATCH_NORM,
    ),
    streaming("pooling", &["max_pool", "avg_pool"], shares::ACROSS_ROWS),
    streaming("adaptive pooling", &["adaptive_average"], shares::OVERLAPPING),
    streaming("interpolation", &["upsample"], shares::ACROSS_ROWS),
    streaming("dropout", &["fused_dropout"], shares::BATCH_NORM),
    streaming("im2col", &["im2col"], shares::ACROSS_ROWS),
    streaming("col2im", &["col2im"], shares::OVERLAPPING),
    streaming("depthwise convolution of volumes", &["conv_depthwise3d"], shares::DEPTHWISE_VOLUMES),
    streaming("depthwise convolution", &["conv_depthwise"], shares::DEPTHWISE),
    Family {
        name: "losses of classes, reduced",
        kernels: Kernels::Containing(&["nll_loss_forward_reduce", "nll_loss_backward_reduce"]),
        effect: EffectSource::Writes,
        cost: CostSource::All(Cost::Short),
        stated_layout: false,
        source: "one number of each row is read",
    },
    streaming("losses of classes", &["nll_loss"], shares::OVERLAPPING),
    streaming("radix sort", &["RadixSort"], shares::LOOK_BACK),
    // Of all the memory that their parameters lead to, they pass over one or two tensors.
    Family {
        name: "attention backward, before and after",
        kernels: Kernels::Containing(&["flash_bwd_dot_do_o", "flash_bwd_convert_dq"]),
        effect: EffectSource::Writes,
        cost: CostSource::All(Cost::Passes { share: shares::SOFTMAX, passes: 1.0 / 4.0 }),
        stated_layout: false,
        source: SHARES,
    },
    Family {
        name: "rows of a table",
        kernels: Kernels::Containing(&["index", "gather", "scatter", "embedding", "Embedding"]),
        effect: EffectSource::Writes,
        cost: CostSource::All(Cost::Rows),
        stated_layout: false,
        source: SHARES,
    },
];

/// Tracks a size that the host reads back, and forgets the other memory that the kernel writes.
fn size(signature: &Signature) -> Option<Effect> {
    Some(Effect::Size(Size::from_signature(signature)?, Writes::from_signature(signature).but_first()))
}
