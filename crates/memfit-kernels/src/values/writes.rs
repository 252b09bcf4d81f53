//! Memory that unmodelled kernels write: its contents become unknown.
//!
//! An unknown kernel may write to any address in its arguments. In C++, the types of pointers and of
//! PyTorch's accessors show whether they are only read; the type of a structure passed by value does not, so
//! every address in it counts.

use crate::{
    launch::{Arguments, Launch},
    layout::{Lists, Strides},
    memory::Memory,
    name::{Signature, plain_size, type_parts},
};

/// Memory that a kernel writes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Writes {
    /// None that matters.
    Nowhere,
    /// Memory behind an address in an argument: the argument, and the offset of the address.
    At(usize, usize),
    /// Memory behind the addresses of an argument except the first, which is read.
    BehindFirst(usize),
    /// Tensors of the lists in its first argument; for the flag see [`counts`].
    Lists(Lists, bool),
    /// Memory behind some of its parameters.
    Parameters(Access),
    /// All memory that its arguments lead to.
    Anywhere,
}

/// Parameter access according to a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Number of parameters.
    count: usize,
    /// Parameters of which each word may be an address that is written to.
    written: Vec<usize>,
    /// Parameters with one such address for each block; words after those are left over from earlier
    /// launches.
    per_block: Vec<usize>,
}

impl Writes {
    /// Derives the writes from a kernel's signature.
    pub(crate) fn from_signature(signature: &Signature) -> Self {
        let in_lambda = |field: usize| {
            let lambda = signature.template(2).unwrap_or("");
            let fills = ["index_fill_kernel", "scatter_fill_internal_kernel"];
            let tensors = if fills.iter().any(|name| lambda.contains(name)) { 2 } else { 3 };
            Self::At(1, Strides::bytes(tensors).next_multiple_of(8) + 8 * field)
        };
        match signature.name() {
            _ if !signature.is_pytorch() => Self::parameters(signature),
            "multi_tensor_apply_kernel" => Lists::from_signature(signature)
                .map_or(Self::Anywhere, |lists| Self::Lists(lists, counts(signature))),
            // The lambda holds the offsets of output, input and index (a fill has no input), then the
            // output's address…
            "index_elementwise_kernel" => in_lambda(0),
            // … or the index's, its extent and a functor before the output's.
            "_scatter_gather_elementwise_kernel" => in_lambda(3),
            // The lambda that stores the numbers begins with the address.
            "distribution_elementwise_grid_stride_kernel" => Self::At(3, 0),
            // The unknown operation begins with the address of its input.
            "reduce_kernel" => Self::BehindFirst(0),
            // PyTorch's IndexKernelUtils.cu: the output, then the input and the index; none is const.
            "vectorized_gather_kernel" => Self::At(0, 0),
            // Gradients are assumed finite, so the scale stays; scripts compare it with its old value.
            "amp_update_scale_cuda_kernel" => Self::Nowhere,
            _ => Self::parameters(signature),
        }
    }

    /// Derives the writes from the types of the parameters.
    fn parameters(signature: &Signature) -> Self {
        let access: Vec<Option<PossibleAccess>> = signature.params().map(parameter_access).collect();
        let those = |kinds: &[PossibleAccess]| {
            let is_one = |index: &usize| access[*index].is_some_and(|kind| kinds.contains(&kind));
            (0..access.len()).filter(is_one).collect()
        };
        if access.is_empty() {
            Self::Nowhere
        } else {
            Self::Parameters(Access {
                count: access.len(),
                written: those(&[PossibleAccess::Write, PossibleAccess::Anything]),
                per_block: those(&[PossibleAccess::PerBlock]),
            })
        }
    }

    /// The same without the first argument, which some kernels that only read it do not declare const.
    pub(crate) fn but_first(mut self) -> Self {
        if let Self::Parameters(access) = &mut self {
            access.written.retain(|argument| *argument != 0);
        }
        self
    }

    /// Returns `true` if nothing is written.
    pub(crate) fn is_nowhere(&self) -> bool {
        match self {
            Self::Nowhere => true,
            Self::Parameters(access) => access.written.is_empty() && access.per_block.is_empty(),
            _ => false,
        }
    }

    /// Applies a launch.
    pub(super) fn apply(&self, launch: Launch) {
        let Launch { grid, arguments, memory } = launch;
        let count = arguments.params().map(<[_]>::len);
        match self {
            Self::Nowhere => {}
            Self::At(argument, offset) => match arguments.get_at::<u64>(*argument, *offset) {
                Some(address) => memory.forget_from(address),
                None => forget_all_targets(arguments, memory),
            },
            Self::BehindFirst(argument) if count.is_some() => {
                let addresses = arguments.words(*argument).filter(|word| memory.reach(*word).is_some());
                addresses.skip(1).for_each(|address| memory.forget_from(address));
            }
            Self::Lists(lists, counts) if count.is_some() => match lists.tensors(grid, arguments) {
                Some(tensors) => tensors.into_iter().for_each(|(address, elements)| {
                    let counted =
                        *counts && elements == 1 && add_to_counter(address, arguments, memory).is_some();
                    if !counted {
                        memory.forget_from(address);
                    }
                }),
                None => forget_targets(0, arguments, memory),
            },
            // A kernel with more parameters than the signature was written in another language.
            Self::Parameters(access) if count == Some(access.count) => {
                access.written.iter().for_each(|index| forget_targets(*index, arguments, memory));
                let blocks = grid.blocks[0] as usize;
                let addresses =
                    access.per_block.iter().flat_map(|index| arguments.words(*index).take(blocks));
                addresses.for_each(|address| memory.forget_from(address));
            }
            Self::BehindFirst(_) | Self::Lists(..) | Self::Parameters(_) | Self::Anywhere => {
                forget_all_targets(arguments, memory);
            }
        }
    }
}

/// Returns `true` if it adds a number to each element in place, as optimizers count their steps on the
/// device.
fn counts(signature: &Signature) -> bool {
    let (functor, arguments) = signature.template(1).map(type_parts).unwrap_or_default();
    let operation = signature.param(2).map(|operation| type_parts(operation).0);
    functor == "BinaryOpScalarFunctor" && arguments == ["float", "1", "1", "0"] && operation == Some("plus")
}

/// Adds the number, its fourth argument, to a known tensor of one element.
fn add_to_counter(address: u64, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
    let (bytes, origin) = memory.get(address, 4)?;
    let number = f32::from_le_bytes(bytes.try_into().ok()?) + arguments.get::<f32>(3)?;
    memory.write(address, &number.to_le_bytes(), origin);
    Some(())
}

/// Forgets the memory that the addresses in one argument lead to.
fn forget_targets(index: usize, arguments: Arguments, memory: &dyn Memory) {
    arguments.words(index).for_each(|address| memory.forget_from(address));
}

/// Forgets the memory that any argument leads to; all memory if the sizes of the arguments are unknown.
pub(super) fn forget_all_targets(arguments: Arguments, memory: &dyn Memory) {
    match arguments.params() {
        Some(params) => (0..params.len()).for_each(|index| forget_targets(index, arguments, memory)),
        None => memory.forget(0, u64::MAX),
    }
}

/// Access that a parameter's type allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PossibleAccess {
    Read,
    Write,
    /// An array with the address of a block's tensor at the index of the block.
    PerBlock,
    /// A structure of unknown contents.
    Anything,
}

/// Structures that lead to no written memory: inputs, extents and strides, the state of random numbers.
const READ_ONLY: [&str; 12] = [
    "CatArrInputTensorMetadata",
    "TensorSizeStride",
    "OffsetCalculator",
    "TrivialOffsetCalculator",
    "IntDivider",
    "PhiloxCudaState",
    "NullType",
    "TransformInputIterator",
    "CountingInputIterator",
    "ConstantInputIterator",
    "transform_iterator",
    "counting_iterator",
];

/// Access that a parameter's type allows; `None` if it leads to no memory.
fn parameter_access(text: &str) -> Option<PossibleAccess> {
    let constant = |element: &str| {
        if element.trim_end().ends_with("const") { PossibleAccess::Read } else { PossibleAccess::Write }
    };
    if let Some(pointee) = text.strip_suffix(['*', '&']) {
        return Some(constant(pointee));
    }
    if plain_size(text).is_some() {
        return None;
    }
    let (name, arguments) = type_parts(text);
    match name {
        "TensorInfo"
        | "PackedTensorAccessor32"
        | "PackedTensorAccessor64"
        | "GenericPackedTensorAccessor" => {
            // Later releases name an accessor of fewer dimensions in place of the element.
            let element = arguments.first().map(|first| match type_parts(first) {
                ("TensorAccessor", inner) => inner.get(1).copied().unwrap_or(first),
                _ => first,
            });
            Some(element.map_or(PossibleAccess::Anything, constant))
        }
        // Results of a norm over lists of tensors (PyTorch's ForeachReduceOp.cu).
        "TensorListAddresses" => Some(PossibleAccess::PerBlock),
        _ if READ_ONLY.contains(&name) => Some(PossibleAccess::Read),
        _ => Some(PossibleAccess::Anything),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(mangled: &str) -> Vec<usize> {
        match Writes::from_signature(&Signature::demangle(mangled).unwrap()) {
            Writes::Parameters(access) => access.written,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pointers_that_are_not_const_are_written() {
        assert_eq!(written("_Z3addPKfPfiPKPKf"), [1]);
        assert_eq!(written("_Z4swapPfS_i"), [0, 1], "nothing is const: any of them");
        assert_eq!(written("_ZN2at6native4swapEPfS1_i"), [0, 1], "and so it is in PyTorch");
        for (text, expected) in [
            ("float*", Some(PossibleAccess::Write)),
            ("float const*", Some(PossibleAccess::Read)),
            ("at::cuda::detail::TensorInfo<long, unsigned int>", Some(PossibleAccess::Write)),
            ("at::cuda::detail::TensorInfo<long const, unsigned int>", Some(PossibleAccess::Read)),
            (
                "at::GenericPackedTensorAccessor<float const, 1ul, at::RestrictPtrTraits, int>",
                Some(PossibleAccess::Read),
            ),
            (
                "torch::headeronly::detail::GenericPackedTensorAccessor<torch::headeronly::detail::TensorAccessor<c10::ArrayRef<long>, float const, 3ul, torch::headeronly::DefaultPtrTraits, long>, at::detail::IndexBoundsCheck<4ul, long>, float const, 4ul, torch::headeronly::DefaultPtrTraits, long>",
                Some(PossibleAccess::Read),
            ),
            ("cutlass::Kernel::Params", Some(PossibleAccess::Anything)),
            ("at::PhiloxCudaState", Some(PossibleAccess::Read)),
            ("long", None),
        ] {
            assert_eq!(parameter_access(text), expected, "{text}");
        }
    }

    #[test]
    fn a_gather_leaves_its_indices() {
        let mangled = "_ZN2at6native24vectorized_gather_kernelILi16ElEEvPcS2_PT0_illllb";
        assert_eq!(Writes::from_signature(&Signature::demangle(mangled).unwrap()), Writes::At(0, 0));
    }

    #[test]
    fn random_numbers_are_stored_by_a_lambda() {
        let mangled = "_ZN2at6native54_GLOBAL__N__d8ceb000_21_DistributionNormal_cu_0c5b6e8543distribution_elementwise_grid_stride_kernelIfLi4EZNS0_9templates4cuda20normal_and_transformIffPNS_17CUDAGeneratorImplEZZZNS4_13normal_kernelIS7_EEvRKNS_10TensorBaseEddT_ENKUlvE_clEvENKUlvE0_clEvEUlfE_EEvRNS_18TensorIteratorBaseET1_T2_EUlP24curandStatePhilox4_32_10E0_ZNS1_27distribution_nullary_kernelIff6float4S7_SM_SF_EEvSH_SJ_RKT3_T4_EUlifE0_EEvlNS_15PhiloxCudaStateESI_SJ_";
        assert_eq!(Writes::from_signature(&Signature::demangle(mangled).unwrap()), Writes::At(3, 0));
    }
}
