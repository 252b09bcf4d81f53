//! Parser of a single message: its figures, and where it ends.

use super::{Advice, Amount, Figures, OomKind};

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

/// Process that a launcher or a loader reports.
pub(super) fn process(message: &str) -> Option<u32> {
    ["(pid: ", "PID ", "(pid ", "(pid(s) "].iter().find_map(|words| number_after(message, words))
}

/// Rank of an entry in torchrun's summary: `rank      : 3 (local_rank: 3)`.
pub(super) fn rank_of_summary(line: &str) -> Option<u32> {
    let rest = line.trim_start().strip_prefix("rank")?.trim_start().strip_prefix(':')?;
    rest.contains("local_rank").then(|| number_after(rest.trim_start(), ""))?
}

/// Returns `true` for a message of the allocator without anything behind its first words.
pub(super) fn is_bare(message: &str) -> bool {
    message.trim_end().trim_end_matches('.') == "CUDA out of memory"
}

/// Returns `true` if a message is complete. Terminals and log viewers break long messages into several lines.
pub(super) fn is_whole(kind: OomKind, message: &str) -> bool {
    match kind {
        OomKind::CachingAllocator if message.contains("(GPU ") => {
            message.contains("reserved in total by PyTorch)") || message.contains(" cached)")
        }
        OomKind::CachingAllocator => {
            (!message.contains("Tried to allocate") && !is_bare(message))
                || message.contains("reserved by PyTorch but unallocated.")
        }
        OomKind::Mps => message.contains(" on private pool") || message.contains(" on shared pool"),
        OomKind::HostLimit => !message.contains("node running low on memory") || message.contains(" / "),
        // A program printed the first words alone.
        OomKind::CudaMallocAsync if !message.contains("would exceed") => true,
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
        // Allocations of the process outside of PyTorch's own count towards the limit.
        OomKind::Mps => Figures {
            requested: amount_after(message, "Tried to allocate "),
            allocated: amount_after(message, "MPS allocated: "),
            this_process: amount_after(message, "MPS allocated: ")
                .zip(amount_after(message, "other allocations: "))
                .map(|(own, other)| own + other),
            allowed: amount_after(message, "max allowed: "),
            ..Figures::default()
        },
        OomKind::Nccl => Figures {
            // `node:4242:4250 [1] …`: the device of the process.
            device: message
                .split_once(" [")
                .and_then(|(_, rest)| rest.split_once(']'))
                .and_then(|(device, _)| device.parse().ok()),
            requested: amount_after(message, "Failed to CUDA calloc async ")
                .or_else(|| amount_after(message, "Failed to CUDA calloc ")),
            ..Figures::default()
        },
        // Ray states the node's memory.
        OomKind::HostLimit => Figures {
            allocated: amount_after(message, "was running was "),
            capacity: amount_after(message, " / "),
            ..Figures::default()
        },
        OomKind::Host => Figures {
            requested: amount_after(message, "you tried to allocate ")
                .or_else(|| amount_after(message, "Unable to allocate ")),
            ..Figures::default()
        },
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
            // The last words may be missing where the message is cut off.
            what if what.starts_with("total") => &mut figures.capacity,
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
