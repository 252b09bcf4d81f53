//! What kind of failure an exception is.
//!
//! PyTorch says "out of memory" in many ways. Types come first; messages are looked at only where the type
//! says nothing, and a message that may mean memory or may not is believed only on evidence that memory was
//! short.

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device's memory did not suffice: the caching allocator said so, or a library for it.
    DeviceMemory(Library),
    /// The host's memory did not suffice.
    HostMemory,
    /// The device is in a state that every later call will report again: only a new process helps.
    Sticky,
    /// Something else.
    Other,
}

/// Who noticed that memory was short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// PyTorch's allocator, or the CUDA runtime.
    Torch,
    /// cuBLAS, which could not make a handle or a workspace.
    Cublas,
    /// cuDNN, likewise.
    Cudnn,
    /// NCCL, likewise.
    Nccl,
    /// cuSOLVER, cuFFT, cuSPARSE, likewise.
    Other,
}

impl Library {
    /// Its name for people.
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

/// What is known of the device's memory at the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Bytes that nobody has.
    pub free: u64,
    /// Bytes that the device has.
    pub capacity: u64,
}

impl Evidence {
    /// Whether so little is free that a library's workspace may not have found room.
    fn is_short(self) -> bool {
        self.capacity > 0 && self.free < self.capacity / 32
    }
}

/// Texts after which nothing on the device works any more.
const STICKY: &[&str] = &[
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

/// Texts that mean the device's memory, whatever the type.
const MEMORY: &[(&str, Library)] = &[
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

/// Texts that mean memory only where memory was short.
const SUSPECTS: &[(&str, Library)] = &[
    ("CUDNN_STATUS_INTERNAL_ERROR", Library::Cudnn),
    ("CUDNN_STATUS_NOT_SUPPORTED", Library::Cudnn),
    ("CUDNN_STATUS_EXECUTION_FAILED", Library::Cudnn),
    ("CUBLAS_STATUS_NOT_INITIALIZED", Library::Cublas),
    ("CUBLAS_STATUS_INTERNAL_ERROR", Library::Cublas),
    ("CUBLAS_STATUS_EXECUTION_FAILED", Library::Cublas),
    ("handles_.at(i)", Library::Torch),
    ("CUDA driver error: device not ready", Library::Torch),
];

/// Texts that mean the host's memory.
const HOST: &[&str] = &[
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory",
];

/// Judges an exception by the names of its type and that type's bases, by its message, and by the memory that
/// was left.
pub fn classify(types: &[&str], message: &str, evidence: Evidence) -> Fault {
    let is = |name: &str| types.iter().any(|found| found.rsplit('.').next() == Some(name));
    let says = |text: &&str| message.contains(*text);
    if is("OutOfMemoryError") {
        return Fault::DeviceMemory(Library::Torch);
    }
    if is("MemoryError") {
        return Fault::HostMemory;
    }
    // A device that is broken may mention memory as well: an illegal access is no lack of it.
    if STICKY.iter().any(says) {
        return Fault::Sticky;
    }
    // CUDA, its libraries and PyTorch raise RuntimeError and its heirs; somebody's ValueError may quote
    // anything.
    if !is("RuntimeError") {
        return Fault::Other;
    }
    if HOST.iter().any(says) {
        return Fault::HostMemory;
    }
    if let Some((_, library)) = MEMORY.iter().find(|(text, _)| message.contains(text)) {
        return Fault::DeviceMemory(*library);
    }
    if evidence.is_short()
        && let Some((_, library)) = SUSPECTS.iter().find(|(text, _)| message.contains(text))
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
