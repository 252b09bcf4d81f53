//! Explanation from the text of an out-of-memory error alone.

use memfit_allocator::{LARGE_SEGMENT, Release, SMALL_SEGMENT};
use memfit_recording::{LogFrame, OomKind, OomText};
use memfit_vocabulary::{Cause, Lever, Proof};

use crate::analysis::SMALL_SHARE_DIVISOR;
use crate::case::{Card, OtherProcess, Refused};
use crate::explanation::{
    Apply, ConsideredCause, Explanation, Fact, Fix, Fragmentation, Line, MomentFacts, NO_FIGURES,
};
use crate::weigh::{FRACTION_SETTER, limited, size};

/// Explains a message. The text does not show what filled the memory, leaks, or lines of the model; the gaps
/// name what to record to learn more.
pub(crate) fn explain_text(text: &OomText) -> Explanation {
    let figures = &text.figures;
    let bytes = |amount: Option<memfit_recording::Amount>| amount.map(memfit_recording::Amount::bytes);
    let (requested, free) = (bytes(figures.requested), bytes(figures.free));
    let idle = bytes(figures.idle());
    let card = card_from_text(text);
    let device = figures.device.and_then(|device| u8::try_from(device).ok()).unwrap_or(0);
    let mut explanation = Explanation::without_events(device);
    let allocated = bytes(figures.allocated).unwrap_or(0);
    let reserved = bytes(figures.total_reserved()).unwrap_or(allocated);
    // Free memory beyond the process's memory fraction is not available to it.
    let on_gpu = free.unwrap_or(0);
    let free = free.map(|free| {
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
    let unused = idle.unwrap_or(0);
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
    let mut fact =
        |text: String, bytes: u64| explanation.evidence.push(Fact { text, bytes, lines: Vec::new() });
    let cause = if absurd {
        fact(format!("one request of {} is more than the whole GPU has", size(wanted)), wanted);
        Cause::GiantRequest
    } else if let Some(allowed) = bytes(figures.allowed).filter(|_| on_gpu >= wanted && room < wanted) {
        fact(limited(Some(allowed), FRACTION_SETTER, on_gpu, &size(wanted)), card.withheld);
        Cause::SettingThatHurts
    } else if others > 0 && others + room >= wanted && others > unused {
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
    } else if room >= wanted && unused > 0 && !is_small(room, card.limit.unwrap_or(allocated + room)) {
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
    } else if outside(text).is_some_and(|outside| outside >= wanted && outside > allocated) {
        let outside = outside(text).unwrap_or(0);
        fact(
            format!(
                "{} of this process's memory are not PyTorch tensors: CUDA contexts and libraries",
                size(outside)
            ),
            outside,
        );
        Cause::Outside
    } else if requested.is_some() {
        let refused = if room >= wanted {
            format!("the GPU was nearly full, and {} did not fit in one piece", size(wanted))
        } else {
            format!("{} more did not fit", size(wanted))
        };
        fact(
            format!(
                "{} were in tensors, {} reserved but unallocated, {} free on the GPU: {refused}",
                size(allocated),
                size(unused),
                size(free.unwrap_or(0))
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
    } else {
        if !lines.is_empty() {
            fact("memory ran out here".to_owned(), 0);
        }
        explanation.unknown.push(NO_FIGURES.to_owned());
        Cause::None
    };
    if let Some(first) = explanation.evidence.first_mut() {
        first.lines = lines;
    }
    if let Some(note) = segment_note(text, requested) {
        explanation.evidence.push(Fact { text: note, bytes: requested.unwrap_or(0), lines: Vec::new() });
    }
    explanation.cause = cause;
    if cause != Cause::None {
        let bytes = wanted.min(allocated.max(unused));
        explanation.considered = vec![ConsideredCause { cause, bytes, enough: true }];
    }
    let room = if requested.is_some() { room } else { 0 };
    explanation.fixes = fixes(cause, unused, &card, requested.unwrap_or(0), room, text);
    if let Some(rank) = text.rank {
        explanation
            .unknown
            .push(format!("this is rank {rank}'s message; other ranks may have failed because of it"));
    }
    if !text.kind.is_certain(&text.message) {
        explanation.unknown.push("a library reported it, and may have failed for another reason".to_owned());
    }
    explanation.unknown.push("an error message does not say which tensors held the memory, or whether memory grew. For that, `memfit explain` needs a recording: `memfit run -o run.memfit -- python train.py` makes one without a GPU; on a GPU, call `torch.cuda.memory._record_memory_history()` at the start and `torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")` where the error is caught".to_owned());
    explanation
}

/// Returns `true` if a part of the memory available to PyTorch counts as little: the GPU was nearly full.
const fn is_small(part: u64, available: u64) -> bool {
    part < available / SMALL_SHARE_DIVISOR
}

/// Facts about the GPU in a message.
pub(crate) fn card_from_text(text: &OomText) -> Card {
    let figures = &text.figures;
    let held = figures.total_reserved().map(memfit_recording::Amount::bytes);
    let free = figures.free.map(memfit_recording::Amount::bytes);
    let allowed = figures.allowed.map(memfit_recording::Amount::bytes);
    let limit = held.zip(free).map(|(held, free)| held + free);
    let others = figures.other_processes.iter().map(|(pid, amount)| OtherProcess {
        pid: *pid,
        reserved: amount.bytes(),
        bytes: amount.bytes(),
        ..OtherProcess::default()
    });
    Card {
        name: None,
        capacity: figures.capacity.map(memfit_recording::Amount::bytes),
        limit: match (limit, allowed) {
            (Some(limit), Some(allowed)) => Some(limit.min(allowed)),
            (limit, allowed) => limit.or(allowed),
        },
        withheld: limit.zip(allowed).map_or(0, |(limit, allowed)| limit.saturating_sub(allowed)),
        in_private_pools: figures.private_pools.map_or(0, memfit_recording::Amount::bytes),
        own_outside: outside(text),
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

/// Bytes that this process used outside of PyTorch's allocator.
fn outside(text: &OomText) -> Option<u64> {
    let process = text.figures.this_process?.bytes();
    Some(process.saturating_sub(text.figures.total_reserved()?.bytes()))
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

/// Remedies, those that may be enough first. `room` is what was free, or reserved but unallocated.
fn fixes(cause: Cause, unused: u64, card: &Card, requested: u64, room: u64, text: &OomText) -> Vec<Fix> {
    let fix = |lever, saves, how: &str, fits, apply| Fix {
        lever,
        saves,
        how: how.to_owned(),
        proof: Proof::Modelled,
        fits,
        apply,
    };
    let expandable = || {
        let on = text.advice == Some(memfit_recording::Advice::ExpandableAlreadyOn);
        let apply =
            Apply::Environment(Release::NEWEST.settings_variable(), "expandable_segments:True".to_owned());
        (!on).then(|| fix(Lever::ExpandableSegments, unused, "set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before 2.9): most of the memory that is reserved but unallocated becomes usable", (room < requested).then_some(false), apply))
    };
    let mut fixes = Vec::new();
    match cause {
        Cause::SettingThatHurts => fixes.push(fix(
            Lever::DropSetting,
            card.withheld,
            "let the process use the whole GPU, if nothing else needs the rest: drop `torch.cuda.set_per_process_memory_fraction`, or `per_process_memory_fraction` in the allocator's settings",
            Some(true),
            Apply::ByHand(None),
        )),
        Cause::OtherProcesses => fixes.push(fix(
            Lever::EndOtherProcess,
            card.others_total(),
            "end the other processes (`nvidia-smi` shows them), or use another GPU (CUDA_VISIBLE_DEVICES)",
            Some(true),
            Apply::ByHand(None),
        )),
        Cause::Outside => fixes.push(fix(
            Lever::CpuOnlyWorkers,
            0,
            "keep CUDA out of helper processes, and close other programs on the GPU",
            None,
            Apply::ByHand(None),
        )),
        Cause::PrivatePools => fixes.push(fix(
            Lever::SharePool,
            unused,
            "let graphs share one pool, or create the pool with `use_on_oom=True` (2.9 and later)",
            None,
            Apply::ByHand(None),
        )),
        _ => {}
    }
    let expandable = expandable().filter(|_| unused * 10 > requested);
    let settings_first = !matches!(cause, Cause::TooBig | Cause::GiantRequest);
    fixes.extend(expandable.clone().filter(|_| settings_first));
    // The limit may be there for a reason: then the training has to need less.
    if matches!(cause, Cause::TooBig | Cause::GiantRequest | Cause::SettingThatHurts) {
        fixes.push(fix(
            Lever::Checkpointing,
            0,
            "activation checkpointing (`torch.utils.checkpoint`) of the repeated blocks without BatchNorm, if activations fill the GPU",
            None,
            Apply::ByHand(None),
        ));
        fixes.push(fix(
            Lever::MicroBatch,
            0,
            "gradient accumulation over micro-batches",
            None,
            Apply::ByHand(None),
        ));
        fixes.push(fix(
            Lever::AutocastBf16,
            0,
            "run the forward pass under `torch.autocast(\"cuda\", dtype=torch.bfloat16)`",
            None,
            Apply::ByHand(None),
        ));
    }
    fixes.extend(expandable.filter(|_| !settings_first));
    fixes.sort_by_key(|fix| fix.fits == Some(false));
    fixes
}

#[cfg(test)]
mod tests {
    use memfit_recording::find_oom_texts;

    use super::*;

    const IN_WORKER: &str = "Caught AcceleratorError in DataLoader worker process 1.
Original Traceback (most recent call last):
  File \"/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py\", line 375, in _worker_loop
    data = fetcher.fetch(index)
  File \"/home/me/train.py\", line 11, in __getitem__
    return torch.full((2048,), float(index), device=\"cuda\")
torch.AcceleratorError: CUDA error: out of memory
Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com for more information.
";

    fn text_of(log: &str) -> OomText {
        let mut texts = find_oom_texts(log.as_bytes()).expect("memory can be read");
        assert_eq!(texts.len(), 1, "{texts:?}");
        texts.remove(0)
    }

    #[test]
    fn a_worker_that_gets_no_context_is_outside_of_the_allocator() {
        let text = text_of(IN_WORKER);
        let refused = card_from_text(&text).refused.expect("the worker was refused");
        assert_eq!(refused.lines.len(), 1);
        assert_eq!((refused.lines[0].file.as_str(), refused.lines[0].line), ("/home/me/train.py", 11));
        assert_eq!(worker_number(IN_WORKER), Some(1));
        let explanation = explain_text(&text);
        assert_eq!(explanation.cause, Cause::Outside);
        assert_eq!(explanation.fixes[0].lever, Lever::CpuOnlyWorkers);
    }

    #[test]
    fn a_limit_of_the_process_is_the_cause_while_the_gpu_has_room() {
        let message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 500.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which FREE is free. Process 1950 has 5.95 GiB memory in use. Including non-PyTorch memory, this process has 7.67 GiB memory in use. 6.99 GiB allowed; Of the allocated memory 6.77 GiB is allocated by PyTorch, and 175.39 MiB is reserved by PyTorch but unallocated.";
        let explained = |free: &str| explain_text(&text_of(&message.replace("FREE", free)));
        let limited = explained("124.59 GiB");
        assert_eq!(limited.cause, Cause::SettingThatHurts);
        let text = &limited.evidence[0].text;
        assert!(text.contains("more than 6.99 GiB") && text.contains("124.59 GiB"), "{text}");
        let levers: Vec<Lever> = limited.fixes.iter().map(|fix| fix.lever).collect();
        assert_eq!(levers[..2], [Lever::DropSetting, Lever::Checkpointing], "{levers:?}");
        assert_eq!(limited.fixes[0].fits, Some(true));
        // Without the limit the request would have failed as well.
        assert_eq!(explained("20.00 MiB").cause, Cause::OtherProcesses);
    }

    #[test]
    fn the_figures_of_a_message_are_those_of_the_card() {
        const GIB: u64 = 1 << 30;
        let message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 1.00 GiB is free. Process 41 has 3.00 GiB memory in use. Including non-PyTorch memory, this process has 12.00 GiB memory in use. Of the allocated memory 9.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 2.00 GiB is reserved by PyTorch but unallocated.";
        let card = card_from_text(&text_of(message));
        assert_eq!((card.capacity, card.limit, card.withheld), (Some(16 * GIB), Some(12 * GIB), 0));
        assert_eq!((card.in_private_pools, card.own_outside), (GIB, Some(GIB)));
        let others: Vec<(u32, u64, u64)> =
            card.others.iter().map(|other| (other.pid, other.reserved, other.bytes)).collect();
        assert_eq!(others, [(41, 3 * GIB, 3 * GIB)]);
        // What the process may not use, although it is free.
        let allowed =
            message.replace("Of the allocated memory", "11.50 GiB allowed; Of the allocated memory");
        let card = card_from_text(&text_of(&allowed));
        assert_eq!((card.limit, card.withheld), (Some(23 * GIB / 2), GIB / 2));
    }

    #[test]
    fn the_runtime_alone_proves_nothing_of_workers_and_figures_say_more() {
        let bare = "RuntimeError: CUDA error: out of memory";
        assert_eq!((card_from_text(&text_of(bare)).refused, worker_number(bare)), (None, None));
        let figures = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 3.00 GiB of which 1.00 GiB is free. Of the allocated memory 1.50 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.";
        let in_worker = IN_WORKER.replace("CUDA error: out of memory", figures);
        assert_eq!(card_from_text(&text_of(&in_worker)).refused, None);
    }

    const NEARLY_FULL: &str = "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 6.16 GiB already allocated; 11.44 MiB free; 6.26 GiB reserved in total by PyTorch)";
    const SHORT: &str = "CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in use. Of the allocated memory 21.40 GiB is allocated by PyTorch, and 640.00 MiB is reserved by PyTorch but unallocated.";

    #[test]
    fn a_full_gpu_is_not_fragmented() {
        let cause = |log: &str| explain_text(&text_of(log)).cause;
        assert_eq!(cause(NEARLY_FULL), Cause::TooBig);
        assert_eq!(cause(&NEARLY_FULL.replace("6.16 GiB already", "4.16 GiB already")), Cause::Fragmented);
    }

    #[test]
    fn a_remedy_that_cannot_be_enough_comes_last() {
        let ends = |log: &str| {
            let fixes = explain_text(&text_of(log)).fixes;
            let fix = |fix: &Fix| (fix.lever, fix.fits);
            (fixes.first().map(fix), fixes.last().map(fix))
        };
        let setting = Lever::ExpandableSegments;
        assert_eq!(ends(SHORT), (Some((Lever::Checkpointing, None)), Some((setting, Some(false)))));
        // More is unallocated than requested.
        let fits = SHORT
            .replace("1.96 GiB", "1.70 GiB")
            .replace("21.40 GiB", "18.40 GiB")
            .replace("640.00 MiB", "3.62 GiB");
        assert_eq!(ends(&fits).0, Some((setting, None)));
        let others = SHORT.replace("Including", "Process 41 has 2.00 GiB memory in use. Including");
        assert_eq!(ends(&others), (Some((Lever::EndOtherProcess, Some(true))), Some((setting, Some(false)))));
    }

    #[test]
    fn a_message_without_figures_has_no_cause() {
        for message in [
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "RuntimeError: CUDA error: out of memory",
        ] {
            let explanation = explain_text(&text_of(message));
            assert_eq!((explanation.cause, explanation.considered.len()), (Cause::None, 0), "{message}");
            assert!(explanation.unknown.iter().any(|gap| gap == NO_FIGURES), "{:?}", explanation.unknown);
            assert_eq!(explanation.fixes, []);
        }
    }
}
