//! Classification of exceptions.
//!
//! PyTorch reports "out of memory" in many forms. The exception type has precedence; messages are examined
//! only if the type is inconclusive, and an ambiguous message counts only if memory was short.

/// Kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Device memory ran out, reported by the caching allocator or a library.
    DeviceMemory(Library),
    /// Host memory ran out.
    HostMemory,
    /// The device is in an error state that every later call reports again: only a new process helps.
    Sticky,
    /// Another failure.
    Other,
}

/// Library that reported the lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// PyTorch's allocator, or the CUDA runtime.
    Torch,
    /// cuBLAS, while creating a handle or a workspace.
    Cublas,
    /// cuDNN, likewise.
    Cudnn,
    /// NCCL, likewise.
    Nccl,
    /// cuSOLVER, cuFFT, cuSPARSE, likewise.
    Other,
}

impl Library {
    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Torch => "PyTorch",
            Self::Cublas => "cuBLAS",
            Self::Cudnn => "cuDNN",
            Self::Nccl => "NCCL",
            Self::Other => "a CUDA library",
        }
    }
}

/// Device memory at the time of the failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Free bytes.
    pub free: u64,
    /// Total bytes.
    pub capacity: u64,
}

impl Evidence {
    /// Returns `true` if a library's workspace may not have fitted into the free memory.
    fn is_short(self) -> bool {
        self.free < self.capacity / 32
    }
}

/// Messages after which the device is unusable.
const STICKY_MESSAGES: &[&str] = &[
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "misaligned address",
    "illegal instruction",
    "illegal address",
    "invalid address space",
    "invalid program counter",
    "hardware stack error",
    "uncorrectable ECC",
    "uncorrectable NVLink",
    "launch timed out",
    "context is destroyed",
    "GPU is lost",
    "fallen off the bus",
];

/// Messages that mean device memory, whatever the type.
const MEMORY_MESSAGES: &[(&str, Library)] = &[
    ("CUBLAS_STATUS_ALLOC_FAILED", Library::Cublas),
    ("CUDNN_STATUS_ALLOC_FAILED", Library::Cudnn),
    ("CUSOLVER_STATUS_ALLOC_FAILED", Library::Other),
    ("CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", Library::Other),
    ("CUSPARSE_STATUS_ALLOC_FAILED", Library::Other),
    ("CUFFT_ALLOC_FAILED", Library::Other),
    ("Cuda failure 'out of memory'", Library::Nccl),
    ("Cuda failure 2 'out of memory'", Library::Nccl),
    ("CUDA out of memory", Library::Torch),
    ("CUDA error: out of memory", Library::Torch),
    ("CUDA driver error: out of memory", Library::Torch),
    ("CUDA_ERROR_OUT_OF_MEMORY", Library::Torch),
    ("cudaErrorMemoryAllocation", Library::Torch),
    ("HIP out of memory", Library::Torch),
    ("would exceed allowed memory", Library::Torch),
    ("preemptively rejected", Library::Torch),
    ("running out of virtual address space", Library::Torch),
];

/// Messages that mean device memory only if it was short.
const AMBIGUOUS_MESSAGES: &[(&str, Library)] = &[
    ("CUDNN_STATUS_INTERNAL_ERROR", Library::Cudnn),
    ("CUDNN_STATUS_NOT_SUPPORTED", Library::Cudnn),
    ("CUDNN_STATUS_EXECUTION_FAILED", Library::Cudnn),
    ("CUBLAS_STATUS_NOT_INITIALIZED", Library::Cublas),
    ("CUBLAS_STATUS_INTERNAL_ERROR", Library::Cublas),
    ("CUBLAS_STATUS_EXECUTION_FAILED", Library::Cublas),
    ("handles_.at(i)", Library::Torch),
    ("CUDA driver error: device not ready", Library::Torch),
];

/// Messages that mean host memory.
const HOST_MESSAGES: &[&str] = &[
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory",
];

/// Classifies an exception by the names of its type and base types, its message, and the free memory.
pub fn classify(types: &[&str], message: &str, evidence: Evidence) -> Fault {
    let is = |name: &str| types.iter().any(|found| found.rsplit('.').next() == Some(name));
    let says = |text: &&str| message.contains(*text);
    if is("OutOfMemoryError") {
        return Fault::DeviceMemory(Library::Torch);
    }
    if is("MemoryError") {
        return Fault::HostMemory;
    }
    // A message about a broken device may mention memory too: an illegal access is not a lack of it.
    if STICKY_MESSAGES.iter().any(says) {
        return Fault::Sticky;
    }
    // CUDA, its libraries and PyTorch raise RuntimeError and its subclasses; a ValueError may quote anything.
    if !is("RuntimeError") {
        return Fault::Other;
    }
    if HOST_MESSAGES.iter().any(says) {
        return Fault::HostMemory;
    }
    if let Some((_, library)) = MEMORY_MESSAGES.iter().find(|(text, _)| message.contains(text)) {
        return Fault::DeviceMemory(*library);
    }
    if evidence.is_short()
        && let Some((_, library)) = AMBIGUOUS_MESSAGES.iter().find(|(text, _)| message.contains(text))
    {
        return Fault::DeviceMemory(*library);
    }
    if is("AcceleratorError") { Fault::Sticky } else { Fault::Other }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNTIME: &[&str] = &["RuntimeError", "Exception"];
    const SHORT: Evidence = Evidence { free: 1 << 20, capacity: 8 << 30 };
    const PLENTY: Evidence = Evidence { free: 4 << 30, capacity: 8 << 30 };

    #[test]
    fn exceptions_are_judged_by_type_then_text_then_evidence() {
        use Fault::{DeviceMemory, HostMemory, Other, Sticky};
        let torch = &["torch.OutOfMemoryError", "RuntimeError"][..];
        let accelerator = &["torch.AcceleratorError", "RuntimeError"][..];
        let distributed =
            &["torch.distributed.DistBackendError", "torch.distributed.DistError", "RuntimeError"][..];
        for (types, message, evidence, fault) in [
            (torch, "whatever it says", PLENTY, DeviceMemory(Library::Torch)),
            (&["MemoryError"], "", PLENTY, HostMemory),
            (RUNTIME, "CUDA out of memory. Tried to allocate 2.00 GiB", PLENTY, DeviceMemory(Library::Torch)),
            (
                RUNTIME,
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                PLENTY,
                DeviceMemory(Library::Cublas),
            ),
            (RUNTIME, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", SHORT, DeviceMemory(Library::Cudnn)),
            (RUNTIME, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", PLENTY, Other),
            (RUNTIME, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", Evidence::default(), Other),
            (
                distributed,
                "NCCL error: unhandled cuda error\nCuda failure 'out of memory'",
                PLENTY,
                DeviceMemory(Library::Nccl),
            ),
            (
                RUNTIME,
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
                PLENTY,
                HostMemory,
            ),
            (accelerator, "CUDA error: an illegal memory access was encountered", SHORT, Sticky),
            (accelerator, "CUDA error: out of memory", PLENTY, DeviceMemory(Library::Torch)),
            (accelerator, "CUDA error: unknown error", PLENTY, Sticky),
            (RUNTIME, "CUDA error: device-side assert triggered. CUDA out of memory", SHORT, Sticky),
            (RUNTIME, "Expected all tensors to be on the same device", SHORT, Other),
            (&["ValueError"], "CUDA out of memory is what I read", SHORT, Other),
        ] {
            assert_eq!(classify(types, message, evidence), fault, "{types:?}: {message}");
        }
    }
}
