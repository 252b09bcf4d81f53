//! Where kernels write that are not modelled: what was known there is known no more.

use crate::{
    launch::Arguments,
    layout::Strides,
    memory::Memory,
    name::{Signature, type_parts},
};

/// The addresses that a kernel writes to, as far as its signature tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writes {
    /// An argument, and where in it the address is.
    addresses: Vec<(usize, usize)>,
    /// How many addresses stand at the start of the first argument, for kernels over lists of tensors.
    listed: usize,
}

/// A kernel has fewer parameters than this.
const MOST_PARAMS: usize = 64;

impl Writes {
    /// From a kernel's name: C++ tells what is only read.
    pub(crate) fn of(signature: &Signature) -> Self {
        if signature.name() == "multi_tensor_apply_kernel" {
            return Self { addresses: Vec::new(), listed: signature.template(0).map_or(0, listed) };
        }
        let in_lambda = |field: usize| {
            let lambda = signature.template(2).unwrap_or("");
            let fills = ["index_fill_kernel", "scatter_fill_internal_kernel"];
            let tensors = if fills.iter().any(|name| lambda.contains(name)) { 2 } else { 3 };
            vec![(1, Strides::bytes(tensors).next_multiple_of(8) + 8 * field)]
        };
        let addresses = match signature.name() {
            // The lambda holds the offsets of output, input and index (filling has no input), then the
            // output's address…
            "index_elementwise_kernel" => in_lambda(0),
            // … or the index's, its extent and a functor before the output's.
            "_scatter_gather_elementwise_kernel" => in_lambda(3),
            // The lambda that stores the numbers begins with the address.
            "distribution_elementwise_grid_stride_kernel" => vec![(3, 0)],
            // Gradients are taken for finite, so the scale stays; scripts compare it with what it was.
            "amp_update_scale_cuda_kernel" => Vec::new(),
            _ => outputs(signature),
        };
        Self { addresses, listed: 0 }
    }

    /// The same without the first argument, which some kernels that only read it do not declare const.
    pub(crate) fn but_first(mut self) -> Self {
        self.addresses.retain(|(argument, _)| *argument != 0);
        self
    }

    /// Whether anything is known to be written.
    pub(crate) fn is_none(&self) -> bool {
        self.addresses.is_empty() && self.listed == 0
    }

    /// Applies a launch.
    pub(super) fn apply(&self, arguments: Arguments, memory: &dyn Memory) {
        for (argument, offset) in &self.addresses {
            if let Some(address) = arguments.get_at::<u64>(*argument, *offset) {
                memory.forget_from(address);
            }
        }
        for index in 0..self.listed {
            if let Some(address) = arguments.get_at::<u64>(0, 8 * index) {
                memory.forget_from(address);
            }
        }
    }
}

/// The parameters that lead to memory which the kernel writes.
fn outputs(signature: &Signature) -> Vec<(usize, usize)> {
    let params = (0..MOST_PARAMS).map_while(|index| signature.param(index).map(|text| (index, text)));
    let access: Vec<(usize, Access)> =
        params.filter_map(|(index, text)| Some((index, access(text)?))).collect();
    let tells = access.iter().any(|(_, access)| *access == Access::Reads);
    let mut written: Vec<_> =
        access.iter().filter(|(_, access)| *access == Access::Writes).map(|(index, _)| (*index, 0)).collect();
    if !tells {
        // Older kernels declare nothing const; their output comes first.
        written.truncate(1);
    }
    written
}

/// What a kernel may do with memory to which it is led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Reads,
    Writes,
}

/// Whether a parameter leads to memory, and what its type allows there.
fn access(text: &str) -> Option<Access> {
    let constant =
        |element: &str| if element.trim_end().ends_with("const") { Access::Reads } else { Access::Writes };
    if let Some(pointee) = text.strip_suffix('*') {
        return Some(constant(pointee));
    }
    let (name, arguments) = type_parts(text);
    let leads_to_memory = matches!(
        name,
        "TensorInfo" | "PackedTensorAccessor32" | "PackedTensorAccessor64" | "GenericPackedTensorAccessor"
    );
    if leads_to_memory { arguments.first().map(|element| constant(element)) } else { None }
}

/// Addresses of a list of lists of tensors, by its depth: what fits into the arguments of a kernel, rounded
/// down. Those that are not used hold rubbish, and what is forgotten for nothing is only unknown.
fn listed(metadata: &str) -> usize {
    const LISTS: [usize; 5] = [72, 60, 48, 36, 30];
    let (_, arguments) = type_parts(metadata);
    let depth: usize = arguments.last().and_then(|depth| depth.parse().ok()).unwrap_or(0);
    depth.checked_sub(1).and_then(|index| LISTS.get(index)).map_or(0, |each| each * depth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_that_are_not_const_are_written() {
        let signature = Signature::of("_Z3addPKfPfiPKPKf").unwrap();
        assert_eq!(Writes::of(&signature), Writes { addresses: vec![(1, 0)], listed: 0 });
        let signature = Signature::of("_Z4swapPfS_i").unwrap();
        assert_eq!(Writes::of(&signature).addresses, [(0, 0)], "nothing is const: the first");
        for (text, expected) in [
            ("float*", Some(Access::Writes)),
            ("float const*", Some(Access::Reads)),
            ("at::cuda::detail::TensorInfo<long, unsigned int>", Some(Access::Writes)),
            ("at::cuda::detail::TensorInfo<long const, unsigned int>", Some(Access::Reads)),
            (
                "at::GenericPackedTensorAccessor<float const, 1ul, at::RestrictPtrTraits, int>",
                Some(Access::Reads),
            ),
            ("long", None),
        ] {
            assert_eq!(access(text), expected, "{text}");
        }
    }

    #[test]
    fn random_numbers_are_stored_by_a_lambda() {
        let mangled = "_ZN2at6native54_GLOBAL__N__d8ceb000_21_DistributionNormal_cu_0c5b6e8543distribution_elementwise_grid_stride_kernelIfLi4EZNS0_9templates4cuda20normal_and_transformIffPNS_17CUDAGeneratorImplEZZZNS4_13normal_kernelIS7_EEvRKNS_10TensorBaseEddT_ENKUlvE_clEvENKUlvE0_clEvEUlfE_EEvRNS_18TensorIteratorBaseET1_T2_EUlP24curandStatePhilox4_32_10E0_ZNS1_27distribution_nullary_kernelIff6float4S7_SM_SF_EEvSH_SJ_RKT3_T4_EUlifE0_EEvlNS_15PhiloxCudaStateESI_SJ_";
        assert_eq!(Writes::of(&Signature::of(mangled).unwrap()).addresses, [(3, 0)]);
    }

    #[test]
    fn lists_of_tensors_are_counted_by_their_depth() {
        for (text, expected) in [
            ("at::native::TensorListMetadata<1>", 72),
            ("at::native::FusedOptimizerTensorListMetadata<4>", 144),
            ("at::native::TensorListScalarListMetadata<float, 2>", 120),
            ("at::native::TensorListMetadata<9>", 0),
            ("other", 0),
        ] {
            assert_eq!(listed(text), expected, "{text}");
        }
    }
}
