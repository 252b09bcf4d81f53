//! Parser of a single message: its kind and its figures.

use super::{Advice, Amount, Figures, OomKind};

/// Beginnings of messages, in order of precedence on a line.
const BEGINNINGS: [(&str, OomKind); 29] = [
    ("CUDA out of memory. Allocation was preemptively rejected", OomKind::FractionExceeded),
    ("CUDA out of memory. Tried to allocate more than 1EB", OomKind::Absurd),
    ("CUDA out of memory. Tried to allocate", OomKind::CachingAllocator),
    ("HIP out of memory. Tried to allocate", OomKind::CachingAllocator),
    ("XPU out of memory. Tried to allocate", OomKind::CachingAllocator),
    ("CUDA out of memory", OomKind::CachingAllocator),
    ("would exceed allowed memory. (out of memory)", OomKind::CudaMallocAsync),
    ("The custom allocator backing this MemPool returned nullptr", OomKind::MemPool),
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
    ("CUDA_ERROR_OUT_OF_MEMORY", OomKind::Cuda),
    ("cudaErrorMemoryAllocation", OomKind::Cuda),
    ("DefaultCPUAllocator: can't allocate memory", OomKind::Host),
];

/// Finds the beginning of a message on a line, with its kind.
pub(super) fn find_beginning(line: &str) -> Option<(usize, OomKind)> {
    // A cheap test first: nearly all lines of a log contain none of these words.
    if !(line.contains("memory")
        || line.contains("MEMORY")
        || line.contains("STATUS_")
        || line.contains("cuDNN"))
        && !(line.contains("alloc")
            || line.contains("ALLOC")
            || line.contains("engine")
            || line.contains("Memory"))
    {
        return None;
    }
    // Explanatory text that the runtime prints below the error itself.
    if line.contains("Search for `cuda") {
        return None;
    }
    BEGINNINGS.iter().find_map(|(find_beginning, kind)| Some((line.find(find_beginning)?, *kind)))
}

/// Returns `true` if a message names a failed allocation, and not only a frequent consequence of one.
pub(super) const fn names_allocation(message: &str) -> bool {
    contains(message.as_bytes(), b"ALLOC")
        || contains(message.as_bytes(), b"alloc")
        || contains(message.as_bytes(), b"out of memory")
}

const fn contains(text: &[u8], part: &[u8]) -> bool {
    let mut start = 0;
    while start + part.len() <= text.len() {
        let mut at = 0;
        while at < part.len() && text[start + at] == part[at] {
            at += 1;
        }
        if at == part.len() {
            return true;
        }
        start += 1;
    }
    false
}

/// Returns `true` if a message is complete. Terminals and log viewers break long messages into several lines.
pub(super) fn is_whole(kind: OomKind, message: &str) -> bool {
    match kind {
        OomKind::CachingAllocator if message.contains("(GPU ") => {
            message.contains("reserved in total by PyTorch)") || message.contains(" cached)")
        }
        OomKind::CachingAllocator => {
            !message.contains("Tried to allocate") || message.contains("reserved by PyTorch but unallocated.")
        }
        OomKind::CudaMallocAsync => message.contains("PyTorch limit") && message.matches(" : ").count() >= 4,
        _ => true,
    }
}

/// Parses the figures of a message whose words are separated by single spaces.
pub(super) fn figures(kind: OomKind, message: &str) -> Figures {
    match kind {
        OomKind::CachingAllocator if message.contains("(GPU ") => figures_of_list(message),
        OomKind::CachingAllocator => figures_of_sentences(message),
        OomKind::FractionExceeded => {
            Figures { requested: amount_after(message, "Requested size: "), ..figures_of_sentences(message) }
        }
        OomKind::CudaMallocAsync => Figures {
            device: number_after(message, "Allocation on device "),
            allocated: amount_after(message, "Currently allocated : "),
            requested: amount_after(message, "Requested : "),
            capacity: amount_after(message, "Device limit : "),
            free: amount_after(message, "Free (according to CUDA): "),
            allowed: amount_after(message, "memory fraction) : "),
            ..Figures::default()
        },
        OomKind::Nccl => Figures {
            requested: amount_after(message, "Failed to CUDA calloc async ")
                .or_else(|| amount_after(message, "Failed to CUDA calloc ")),
            ..Figures::default()
        },
        OomKind::Host => {
            Figures { requested: amount_after(message, "you tried to allocate "), ..Figures::default() }
        }
        _ => Figures::default(),
    }
}

/// Parses the format up to release 2.0: `Tried to allocate S (GPU d; S total capacity; S already allocated;
/// …)`.
fn figures_of_list(message: &str) -> Figures {
    let mut figures = Figures {
        requested: amount_after(message, "Tried to allocate "),
        device: number_after(message, "(GPU "),
        ..Figures::default()
    };
    let list = message.split_once("(GPU ").map_or("", |(_, list)| list);
    for part in list.split(')').next().unwrap_or("").split(';').skip(1) {
        let Some((amount, what)) = Amount::parse(part) else { continue };
        let place = match what.trim() {
            "total capacity" => &mut figures.capacity,
            "already allocated" => &mut figures.allocated,
            "free" => &mut figures.free,
            "allowed" => &mut figures.allowed,
            "reserved in total by PyTorch" => &mut figures.reserved,
            // Up to release 1.4: bytes held beyond those of tensors (pytorch#13751).
            "cached" => &mut figures.unallocated,
            _ => continue,
        };
        *place = Some(amount);
    }
    figures
}

/// Parses the format since release 2.1, which consists of sentences.
fn figures_of_sentences(message: &str) -> Figures {
    let mut figures = Figures {
        requested: amount_after(message, "Tried to allocate "),
        device: number_after(message, ". GPU "),
        // Release 2.1 misspelt it as "capacty".
        capacity: amount_after(message, "total capacity of ")
            .or_else(|| amount_after(message, "total capacty of ")),
        free: amount_after(message, "of which "),
        this_process: amount_after(message, "this process has "),
        allocated: amount_after(message, "Of the allocated memory "),
        private_pools: amount_after(message, "by PyTorch, with "),
        unallocated: amount_before(message, " is reserved by PyTorch but unallocated"),
        allowed: amount_before(message, " allowed; "),
        ..Figures::default()
    };
    let mut rest = message;
    while let Some((_, process)) = rest.split_once("Process ") {
        rest = process;
        if let Some(pid) = number_after(process, "")
            && let Some(amount) = amount_after(process.get(..64).unwrap_or(process), " has ")
        {
            figures.other_processes.push((pid, amount));
        }
    }
    figures
}

/// Amount that follows some words.
fn amount_after(message: &str, words: &str) -> Option<Amount> {
    let (_, rest) = message.split_once(words)?;
    Amount::parse(rest).map(|(amount, _)| amount)
}

/// Amount that precedes some words.
fn amount_before(message: &str, words: &str) -> Option<Amount> {
    let (text, _) = message.split_once(words)?;
    let mut spaces = text.rmatch_indices(' ');
    spaces.next()?;
    let start = spaces.next().map_or(0, |(space, _)| space + 1);
    Amount::parse(&text[start..]).map(|(amount, _)| amount)
}

fn number_after(message: &str, words: &str) -> Option<u32> {
    let rest = if words.is_empty() { message } else { message.split_once(words)?.1 };
    let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Parses the advice at the end of a message.
pub(super) fn advice(message: &str) -> Option<Advice> {
    let has = |words: &str| message.contains(words);
    if has("exceeds the expandable-segment reserve") {
        Some(Advice::ExpandableReserve)
    } else if has("expandable_segments is enabled") {
        Some(Advice::ExpandableAlreadyOn)
    } else if has("expandable_segments:True") {
        Some(Advice::ExpandableSegments)
    } else if has("max_split_size_mb") {
        Some(Advice::MaxSplitSize)
    } else {
        None
    }
}
