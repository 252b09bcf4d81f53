//! Beginnings of messages: the words by which an error is recognised, and its kind.

use super::{Elsewhere, OomKind};

/// Beginnings of messages, in order of precedence on a line.
const BEGINNINGS: [(&str, OomKind); 69] = [
    ("CUDA out of memory. Allocation was preemptively rejected", OomKind::FractionExceeded),
    ("CUDA out of memory. Tried to allocate more than 1EB", OomKind::Absurd),
    ("CUDA out of memory. Tried to allocate", OomKind::CachingAllocator),
    ("HIP out of memory. Tried to allocate", OomKind::CachingAllocator),
    ("XPU out of memory. Tried to allocate", OomKind::CachingAllocator),
    ("MPS backend out of memory", OomKind::Mps),
    ("out of memory occurred when warming up", OomKind::Serving),
    ("No available memory for the cache blocks", OomKind::Serving),
    ("is less than desired GPU memory utilization", OomKind::Serving),
    ("CUDA out of memory", OomKind::CachingAllocator),
    ("would exceed allowed memory. (out of memory)", OomKind::CudaMallocAsync),
    ("The custom allocator backing this MemPool returned nullptr", OomKind::MemPool),
    ("NVML_SUCCESS == ", OomKind::Unreported),
    ("CUBLAS_STATUS_ALLOC_FAILED", OomKind::Cublas),
    ("CUBLAS_STATUS_NOT_INITIALIZED", OomKind::Cublas),
    ("CUDNN_STATUS_ALLOC_FAILED", OomKind::Cudnn),
    ("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", OomKind::Cudnn),
    ("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", OomKind::Host),
    ("CUDNN_STATUS_NOT_INITIALIZED", OomKind::Cudnn),
    ("Unable to find a valid cuDNN algorithm to run convolution", OomKind::Cudnn),
    ("was unable to find an engine to execute this computation", OomKind::Cudnn),
    ("CUSOLVER_STATUS_ALLOC_FAILED", OomKind::OtherLibrary),
    ("CUSPARSE_STATUS_ALLOC_FAILED", OomKind::OtherLibrary),
    ("CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", OomKind::OtherLibrary),
    ("CUFFT_ALLOC_FAILED", OomKind::OtherLibrary),
    ("Failed to CUDA calloc", OomKind::Nccl),
    ("Failed to CUDA host alloc", OomKind::Nccl),
    ("Cuda failure 2 'out of memory'", OomKind::Nccl),
    ("Cuda failure 'out of memory'", OomKind::Nccl),
    ("CUDA error: out of memory", OomKind::Cuda),
    ("CUDA driver error: out of memory", OomKind::Cuda),
    ("HIP error: out of memory", OomKind::Cuda),
    ("CUDA_ERROR_OUT_OF_MEMORY", OomKind::Cuda),
    ("cudaErrorMemoryAllocation", OomKind::Cuda),
    // Extensions print the number and the name of the CUDA error in their own ways.
    ("error=2 : out of memory", OomKind::Cuda),
    ("cuda runtime error (2)", OomKind::Cuda),
    ("failed with error 2 out of memory", OomKind::Cuda),
    ("Error out of memory at line", OomKind::Cuda),
    ("cudaMalloc failed: out of memory", OomKind::Cuda),
    // What is left of an error that a program caught.
    ("ran out of memory, skipping batch", OomKind::Cuda),
    ("DefaultCPUAllocator: can't allocate memory", OomKind::Host),
    ("DefaultCPUAllocator: not enough memory", OomKind::Host),
    ("$ Torch: not enough memory", OomKind::Host),
    ("posix_memalign(&data, gAlignment, nbytes) == 0", OomKind::Host),
    ("numpy.core._exceptions._ArrayMemoryError", OomKind::Host),
    ("numpy._core._exceptions._ArrayMemoryError", OomKind::Host),
    ("numpy.core._exceptions.MemoryError", OomKind::Host),
    ("OSError: [Errno 12] Cannot allocate memory", OomKind::Host),
    ("insufficient shared memory (shm)", OomKind::SharedMemory),
    ("is killed by signal: Bus error", OomKind::SharedMemory),
    ("(exitcode: -7)", OomKind::SharedMemory),
    ("Signal 7 (SIGBUS)", OomKind::SharedMemory),
    ("is killed by signal: Killed", OomKind::Killed),
    ("(exitcode: -9)", OomKind::Killed),
    ("Signal 9 (SIGKILL)", OomKind::Killed),
    ("died with <Signals.SIGKILL: 9>", OomKind::Killed),
    ("exits with return code = -9", OomKind::Killed),
    ("exited with exit code 137", OomKind::Killed),
    ("exited with code 137", OomKind::Killed),
    ("OOMKilled", OomKind::HostLimit),
    ("invoked oom-killer", OomKind::HostLimit),
    ("Out of memory: Killed process", OomKind::HostLimit),
    ("Memory cgroup out of memory", OomKind::HostLimit),
    ("oom-kill event", OomKind::HostLimit),
    ("oom_kill event", OomKind::HostLimit),
    ("the node running low on memory", OomKind::HostLimit),
    ("killed due to memory pressure (OOM)", OomKind::HostLimit),
    // The parent's view of a worker whose end it has reported, or has not seen.
    ("exited unexpectedly", OomKind::Killed),
    ("background workers are no longer alive", OomKind::Killed),
];

/// Finds the beginning of a message on a line, with its kind.
pub(super) fn find(line: &str) -> Option<(usize, OomKind)> {
    if !may_contain(line) {
        return None;
    }
    let (at, kind) = find_in_table(line).or_else(|| find_in_form(line))?;
    // A traceback shows the statement that raises a message, with the message in it.
    let before = &line[..at];
    let is_source = before.contains("raise ") || before.contains("print(") || before.contains("log(");
    (!is_source).then_some((at, kind))
}

/// A cheap test first: nearly all lines of a log contain none of these words.
fn may_contain(line: &str) -> bool {
    const WORDS: [&str; 12] = [
        "emory", "MEMORY", "STATUS_", "cuDNN", "lloc", "ALLOC", "engine", "illed", "KILL", "oom", "SUCCESS",
        "exit",
    ];
    const OTHER_WORDS: [&str; 3] = ["error", "workers", "SIGBUS"];
    WORDS.iter().chain(&OTHER_WORDS).any(|word| line.contains(word))
}

fn find_in_table(line: &str) -> Option<(usize, OomKind)> {
    // Explanatory text that the runtime prints below the error itself.
    if line.contains("Search for `cuda") {
        return None;
    }
    let (at, kind) = BEGINNINGS.iter().find_map(|(beginning, kind)| Some((line.find(beginning)?, *kind)))?;
    let is_of_loader = || line.contains("DataLoader worker");
    match kind {
        // The same words are common in other messages.
        OomKind::Unreported => line.contains("INTERNAL ASSERT FAILED").then_some((at, kind)),
        OomKind::Killed if line[at..].starts_with("exited unexpectedly") => {
            is_of_loader().then_some((at, kind))
        }
        _ => Some((at, kind)),
    }
}

/// Finds messages whose words are common: the whole line decides.
fn find_in_form(line: &str) -> Option<(usize, OomKind)> {
    // A message that lost its first words when it was copied, or that is wrapped behind them.
    if let Some(at) = line.find("Tried to allocate ")
        && (line[at..].contains("(GPU ") || line[at..].contains(". GPU "))
        && line[at..].contains("total capac")
    {
        return Some((at, OomKind::CachingAllocator));
    }
    // The backend `cudaMallocAsync` below a program that prints the first line of a message alone.
    for name in ["torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "OutOfMemoryError"] {
        if let Some(rest) = line.strip_prefix(name) {
            match rest.strip_prefix(':').map(str::trim) {
                Some(message) if message.starts_with("Allocation on device") => {
                    return Some((0, OomKind::CudaMallocAsync));
                }
                // The message itself is missing.
                None | Some("") if rest.trim_matches([':', ' ']).is_empty() && name != "OutOfMemoryError" => {
                    return Some((0, OomKind::Cuda));
                }
                _ => {}
            }
        }
    }
    if line == "MemoryError" || line.starts_with("MemoryError: ") || line.contains("'std::bad_alloc'") {
        return Some((0, OomKind::Host));
    }
    // Other libraries name the CUDA error in a sentence of their own.
    if let Some((name, message)) = line.split_once(": ")
        && (name.ends_with("Error") || name.ends_with("Exception"))
        && !name.contains(' ')
    {
        let message = message.to_lowercase();
        let of_gpu = ["cuda", "gpu", "hip ", "device"].iter().any(|word| message.contains(word));
        if of_gpu && message.contains("out of memory") {
            return Some((0, OomKind::Cuda));
        }
    }
    // `exitcode  : -9 (pid: 14750)` in the summary of torchrun.
    if let Some(rest) = line.trim_start().strip_prefix("exitcode") {
        let code = rest.trim_start().strip_prefix(':')?.trim_start();
        return match code.split([' ', '(']).next()? {
            "-9" | "137" => Some((0, OomKind::Killed)),
            "-7" | "135" => Some((0, OomKind::SharedMemory)),
            _ => None,
        };
    }
    // `srun: error: node7: task 0: Out Of Memory`.
    if line.contains("srun: error:") && line.ends_with("Out Of Memory") {
        return Some((line.find("srun: error:")?, OomKind::HostLimit));
    }
    is_of_shell(line).then_some((0, OomKind::Killed))
}

/// Returns `true` for what a shell prints about a command that was killed: `Killed`,
/// `run.sh: line 3:  7 Killed   python train.py`, `[1]    4242 killed     python train.py`.
fn is_of_shell(line: &str) -> bool {
    let line = line.trim();
    if line == "Killed" {
        return true;
    }
    let mut words = line.split_whitespace();
    let before = line.split_whitespace().take_while(|word| !matches!(*word, "Killed" | "killed")).count();
    let is_named = words.nth(before).is_some() && words.next().is_some();
    let is_script = line.contains(": line ");
    let process = before.checked_sub(1).and_then(|last| line.split_whitespace().nth(last));
    let is_process = process.is_some_and(|word| word.parse::<u32>().is_ok());
    is_named && is_process && (is_script || (line.starts_with('[') && before == 2))
}

/// Finds an error of memory that is not the device memory of PyTorch.
pub(super) fn find_elsewhere(line: &str) -> Option<Elsewhere> {
    const WORDS: [(&str, Elsewhere); 5] = [
        ("out of resource: shared memory", Elsewhere::KernelSharedMemory),
        ("OOM when allocating tensor with shape", Elsewhere::TensorFlow),
        ("RESOURCE_EXHAUSTED: Out of memory", Elsewhere::Jax),
        ("Resource exhausted: Out of memory while trying to allocate", Elsewhere::Jax),
        ("RESOURCE_EXHAUSTED: Failed to allocate request", Elsewhere::Jax),
    ];
    if !may_contain(line) {
        return None;
    }
    WORDS.iter().find(|(words, _)| line.contains(words)).map(|(_, what)| *what)
}
