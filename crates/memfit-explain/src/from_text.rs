//! Explanation from the text of an out-of-memory error alone.

mod account;
mod elsewhere;
mod remedies;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use memfit_allocator::{LARGE_SEGMENT, SMALL_SEGMENT};
use memfit_recording::{Amount, LogFrame, OomKind, OomText};
use memfit_vocabulary::Cause;

use self::account::{GpuUse, is_room};
use crate::analysis::SMALL_SHARE_DIVISOR;
use crate::case::{Card, OtherProcess, Refused};
use crate::explanation::{
    CUT_OFF, ConsideredCause, Explanation, Fact, Fragmentation, HAD_ROOM, Line, MomentFacts, NO_FIGURES,
};
use crate::weigh::{FRACTION_SETTER, limited, size};

/// Explains the error of a log that says most: the last one with figures, else the last one that is certain.
pub(crate) fn explain_texts(texts: &[OomText]) -> Explanation {
    let worth = |text: &OomText| match text.kind {
        kind if kind.is_of_host() => u8::from(kind.is_certain(&text.message)),
        kind => u8::from(kind.is_certain(&text.message)) + 2 * u8::from(text.figures.requested.is_some()),
    };
    let Some((chosen, text)) = texts.iter().enumerate().max_by_key(|(_, text)| worth(text)) else {
        return Explanation::without_events(0);
    };
    let mut explanation = explain_text(text);
    if let Some(note) = other_errors(texts, chosen) {
        explanation.unknown.insert(0, note);
    }
    explanation
}

/// Says which of several errors is explained.
fn other_errors(texts: &[OomText], chosen: usize) -> Option<String> {
    let text = texts.get(chosen)?;
    if texts.len() == 1 {
        let rank = text.rank?;
        return Some(format!("this is rank {rank}'s message; other ranks may have failed because of it"));
    }
    // One end of the run is reported several times.
    if text.rank.is_none() && text.kind.is_of_host() && texts.iter().all(|other| other.kind == text.kind) {
        return None;
    }
    let mut ranks: Vec<u32> = texts.iter().filter_map(|text| text.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let of_ranks = match ranks.as_slice() {
        [] | [_] => String::new(),
        ranks if ranks.len() > 8 => format!(", of {} ranks", ranks.len()),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(u32::to_string).collect();
            format!(", of ranks {} and {last}", first.join(", "))
        }
    };
    let explained = match text.rank {
        Some(rank) => format!("rank {rank}'s, on line {}", text.line),
        None => format!("the one on line {}", text.line),
    };
    let mut note = format!(
        "the log has {} out-of-memory errors{of_ranks}; this answer is about {explained}",
        texts.len()
    );
    let last = texts.last()?;
    if last.kind != text.kind && last.line != text.line {
        let _ = write!(note, ". The last, on line {}, is about {}", last.line, about(last.kind));
    }
    Some(note)
}

/// Names what an error is about.
const fn about(kind: OomKind) -> &'static str {
    match kind {
        OomKind::Host | OomKind::HostLimit => "the host's memory",
        OomKind::Killed => "a process that was killed",
        OomKind::SharedMemory => "the host's shared memory",
        _ => "the GPU's memory",
    }
}

/// Explains a message. The text does not show what filled the memory, leaks, or lines of the model; the gaps
/// name what to record to learn more.
pub(crate) fn explain_text(text: &OomText) -> Explanation {
    match text.kind {
        kind if kind.is_of_host() => elsewhere::host(text),
        OomKind::Mps => elsewhere::mps(text),
        OomKind::Serving => elsewhere::serving(text),
        _ => explain_gpu(text),
    }
}

fn bytes(amount: Option<Amount>) -> Option<u64> {
    amount.map(Amount::bytes)
}

fn device(text: &OomText) -> u8 {
    text.figures.device.and_then(|device| u8::try_from(device).ok()).unwrap_or(0)
}

/// Explains the message of an error of the GPU's memory.
fn explain_gpu(text: &OomText) -> Explanation {
    let figures = &text.figures;
    let (requested, on_gpu) = (bytes(figures.requested), bytes(figures.free));
    let used = GpuUse::from_text(text);
    let card = card_from_text(text);
    let mut explanation = Explanation::without_events(device(text));
    let allocated = bytes(figures.allocated).unwrap_or(0);
    let reserved = bytes(figures.total_reserved()).unwrap_or(allocated);
    // Free memory beyond the process's memory fraction is not available to it.
    let free = on_gpu.map(|free| {
        bytes(figures.allowed).map_or(free, |allowed| free.min(allowed.saturating_sub(reserved)))
    });
    let missing =
        requested.zip(card.limit).map(|(requested, limit)| (allocated + requested).saturating_sub(limit));
    explanation.moment = MomentFacts {
        requested,
        allocated,
        reserved,
        limit: card.limit,
        missing: missing.filter(|missing| *missing > 0),
        ..MomentFacts::default()
    };
    let unused = unused(text).unwrap_or(0);
    explanation.fragmentation = Fragmentation {
        unused,
        share: if reserved == 0 { 0.0 } else { unused as f64 / reserved as f64 },
        in_private_pools: bytes(figures.private_pools).unwrap_or(0),
        ..Fragmentation::default()
    };
    let lines = user_lines(text);
    let others = card.others_total();
    let room = free.unwrap_or(0) + unused;
    let wanted = requested.unwrap_or(u64::MAX);
    let absurd =
        figures.capacity.is_some_and(|capacity| wanted > capacity.bytes()) || text.kind == OomKind::Absurd;
    // A new segment would exceed the limit: the sizes are rounded, so it may lack less than they say.
    let is_limited = figures.requested.zip(figures.allowed).is_some_and(|(wanted, allowed)| {
        let reserved = figures.total_reserved().map_or(0, |reserved| reserved.high);
        allowed.low.saturating_sub(reserved) < wanted.high && on_gpu.is_some_and(|free| free >= wanted.low)
    });
    let nearly_full = is_small(room, card.limit.unwrap_or(allocated + room));
    let mut fact =
        |text: String, bytes: u64| explanation.evidence.push(Fact { text, bytes, lines: Vec::new() });
    let cause = if absurd {
        let whole = figures.capacity.map(|capacity| format!(": {}", size(capacity.bytes())));
        fact(
            format!(
                "one request of {} is more than the whole GPU has{}",
                size(wanted),
                whole.unwrap_or_default()
            ),
            wanted,
        );
        Cause::GiantRequest
    } else if let Some(allowed) = bytes(figures.allowed).filter(|_| is_limited) {
        fact(limited(Some(allowed), FRACTION_SETTER, on_gpu.unwrap_or(0), &size(wanted)), card.withheld);
        Cause::SettingThatHurts
    } else if let Some(fact_of_room) = requested.and_then(|_| is_room(text, &used)) {
        fact(fact_of_room, on_gpu.unwrap_or(0));
        explanation.unknown.push(HAD_ROOM.to_owned());
        Cause::None
    } else if others > 0 && !used.unclear && others + room >= wanted && others > unused {
        fact(
            format!(
                "other processes held {} of the GPU; without them the request of {} would have succeeded",
                size(others),
                size(wanted)
            ),
            others,
        );
        Cause::OtherProcesses
    } else if bytes(figures.private_pools).is_some_and(|pools| pools + room >= wanted && pools > unused) {
        let pools = bytes(figures.private_pools).unwrap_or(0);
        fact(
            format!(
                "{} were in private pools (CUDA graphs, `MemPool`), whose free memory nothing else may use",
                size(pools)
            ),
            pools,
        );
        Cause::PrivatePools
    } else if room >= wanted && unused > wanted / 10 && !nearly_full {
        fact(
            format!(
                "{} were reserved but unallocated, and {} were free on the GPU: together more than the {} requested, but not in one piece",
                size(unused),
                size(free.unwrap_or(0)),
                size(wanted)
            ),
            unused,
        );
        Cause::Fragmented
    } else if used.own_outside.is_some_and(|outside| outside >= wanted && outside > allocated) {
        let outside = used.own_outside.unwrap_or(0);
        fact(
            format!(
                "{} of this process's memory are not PyTorch tensors: CUDA contexts and libraries",
                size(outside)
            ),
            outside,
        );
        Cause::Outside
    } else if requested.is_some() && figures.allocated.is_some() {
        let refused = if room >= wanted {
            let full = if nearly_full { "the GPU was nearly full, and " } else { "" };
            format!("{full}{} did not fit in one piece", size(wanted))
        } else {
            format!("{} more did not fit", size(wanted))
        };
        let idle = (unused > 0).then(|| format!(", {} reserved but unallocated", size(unused)));
        let free = free.map(|free| format!(", {} free on the GPU", size(free)));
        fact(
            format!(
                "{} were in tensors{}{}: {refused}",
                size(allocated),
                idle.unwrap_or_default(),
                free.unwrap_or_default()
            ),
            allocated,
        );
        Cause::TooBig
    } else if let Some(refused) = &card.refused {
        fact(
            format!(
                "CUDA ran out of memory before the first tensor, in {}: every process on the GPU needs its own context",
                refused.describe()
            ),
            0,
        );
        Cause::Outside
    } else if let Some(requested) = requested {
        let gpu = account::name(figures);
        let whole = figures.capacity.map(|capacity| format!(", which has {}", size(capacity.bytes())));
        match free {
            // The sum of the GPU's memory has it.
            Some(_) if used.facts(text).is_some() => {}
            Some(free) => fact(format!("{} were free on {gpu}", size(free)), requested),
            None if figures.device.is_some() => {
                fact(format!("the request failed on {gpu}{}", whole.unwrap_or_default()), requested);
            }
            None => {}
        }
        explanation.unknown.push(CUT_OFF.to_owned());
        Cause::None
    } else {
        if let Some(reported) =
            reported_by(text.kind).filter(|_| text.kind != OomKind::Cuda || lines.is_empty())
        {
            let named = figures.device.map(|device| reported.replace("the GPU", &format!("GPU {device}")));
            fact(named.unwrap_or_else(|| reported.to_owned()), 0);
        } else if !lines.is_empty() {
            fact("memory ran out here".to_owned(), 0);
        }
        explanation.unknown.push(NO_FIGURES.to_owned());
        Cause::None
    };
    if let Some(first) = explanation.evidence.first_mut() {
        first.lines = lines;
    } else if !lines.is_empty() {
        explanation.evidence.push(Fact { text: "memory ran out here".to_owned(), bytes: 0, lines });
    }
    if let Some(note) = segment_note(text, requested).filter(|_| cause != Cause::None && !is_limited) {
        explanation.evidence.push(Fact { text: note, bytes: requested.unwrap_or(0), lines: Vec::new() });
    }
    explanation.evidence.extend(used.facts(text));
    explanation.cause = cause;
    if cause != Cause::None {
        let bytes = wanted.min(allocated.max(unused));
        explanation.considered = vec![ConsideredCause { cause, bytes, enough: true }];
    }
    let room = if requested.is_some() { room } else { 0 };
    explanation.fixes = remedies::of_gpu(text, cause, &card, &used, unused, room);
    if !text.kind.is_certain(&text.message) && text.kind != OomKind::Unreported {
        explanation.unknown.push("a library reported it, and may have failed for another reason".to_owned());
    }
    explanation.unknown.push(TO_RECORD.to_owned());
    explanation
}

/// Limits of a message, and how to record more.
const TO_RECORD: &str = "an error message does not say which tensors held the memory, or whether memory grew. For that, `memfit explain` needs a recording: `memfit run --gpu NAME -o run.memfit -- python train.py` makes one without a GPU; on a GPU, call `torch.cuda.memory._record_memory_history()` at the start and `torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")` where the error is caught";

/// Says what was refused, of a message without figures.
const fn reported_by(kind: OomKind) -> Option<&'static str> {
    match kind {
        OomKind::Cublas => Some(
            "cuBLAS got no memory for its handle or workspace, which lie outside PyTorch's allocator: little or nothing was free on the GPU",
        ),
        OomKind::Cudnn => Some(
            "cuDNN could not be set up or found no algorithm that fits: often little or nothing is free on the GPU",
        ),
        OomKind::Nccl => Some(
            "NCCL got no memory for its buffers, which lie outside PyTorch's allocator: little or nothing was free on the GPU",
        ),
        OomKind::Cuda => Some("CUDA or an extension was refused memory outside PyTorch's allocator"),
        OomKind::CudaMallocAsync => Some(
            "PyTorch's allocator (`cudaMallocAsync`) could not serve a request; only the first words of its message are in the log",
        ),
        OomKind::Unreported => Some(
            "PyTorch ran out of GPU memory, and failed when it asked the driver (NVML) for the figures of its message, as happens in containers, on MIG slices and on Jetson",
        ),
        _ => None,
    }
}

/// Bytes reserved but unallocated. A difference of rounded figures that may be zero is zero.
fn unused(text: &OomText) -> Option<u64> {
    let stated = text.figures.unallocated;
    let difference = text.figures.idle().filter(|idle| idle.low > 0 || stated.is_some());
    bytes(difference)
}

/// Returns `true` if a part of the memory available to PyTorch counts as little: the GPU was nearly full.
const fn is_small(part: u64, available: u64) -> bool {
    part < available / SMALL_SHARE_DIVISOR
}

/// Facts about the GPU in a message.
pub(crate) fn card_from_text(text: &OomText) -> Card {
    let figures = &text.figures;
    let used = GpuUse::from_text(text);
    let held = bytes(figures.total_reserved());
    let free = bytes(figures.free);
    let allowed = bytes(figures.allowed);
    let limit = held.zip(free).map(|(held, free)| held + free);
    let others = used.others.iter().map(|(pid, bytes)| OtherProcess {
        pid: *pid,
        reserved: *bytes,
        bytes: *bytes,
        ..OtherProcess::default()
    });
    Card {
        name: None,
        capacity: bytes(figures.capacity),
        limit: match (limit, allowed) {
            (Some(limit), Some(allowed)) => Some(limit.min(allowed)),
            (limit, allowed) => limit.or(allowed),
        },
        withheld: limit.zip(allowed).map_or(0, |(limit, allowed)| limit.saturating_sub(allowed)),
        in_private_pools: bytes(figures.private_pools).unwrap_or(0),
        own_outside: used.own_outside,
        others: others.collect(),
        refused: worker_refusal(text),
    }
}

/// Path suffix of the worker loop of PyTorch's loader.
pub(crate) const WORKER_LOOP: &str = "torch/utils/data/_utils/worker.py";

/// Refusal of a CUDA allocation in a loader worker. PyTorch's allocator was not involved, since it prints
/// figures.
fn worker_refusal(text: &OomText) -> Option<Refused> {
    let of_worker = text.frames.iter().any(|frame| frame.file.ends_with(WORKER_LOOP));
    let outside = text.kind == OomKind::Cuda && text.figures.requested.is_none();
    (outside && of_worker).then(|| Refused { lines: user_lines(text), ..Refused::default() })
}

/// Refusal of a CUDA allocation in the training process.
pub(crate) fn training_refusal(text: &OomText) -> Option<Refused> {
    let outside = text.kind == OomKind::Cuda && text.figures.requested.is_none();
    outside.then(|| Refused { trains: true, lines: user_lines(text), ..Refused::default() })
}

/// User code lines of the traceback, innermost first.
fn user_lines(text: &OomText) -> Vec<Line> {
    let frames = text.frames.iter().rev().filter(|frame| memfit_vocabulary::is_user_file(&frame.file));
    let line = |frame: &LogFrame| Line {
        file: frame.file.clone(),
        line: frame.line,
        function: frame.function.clone(),
        text: None,
    };
    frames.map(line).collect()
}

/// Number of the loader worker that a log names as the source of an error.
pub(crate) fn worker_number(log: &str) -> Option<u32> {
    let (_, behind) = log.rsplit_once("DataLoader worker process ")?;
    behind.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
}

/// "Tried to allocate" states the segment size, which hides the size of small requests.
fn segment_note(text: &OomText, requested: Option<u64>) -> Option<String> {
    if text.kind != OomKind::CachingAllocator {
        return None;
    }
    match requested? {
        SMALL_SEGMENT => Some("\"Tried to allocate 2.00 MiB\" stands for any request of up to 1 MiB: the GPU was completely full, and the last request is not the cause".to_owned()),
        LARGE_SEGMENT => Some("\"Tried to allocate 20.00 MiB\" stands for any request from 1 to 10 MiB: the GPU was full, and the last request is not the cause".to_owned()),
        _ => None,
    }
}
