//! Memory on the GPU outside of the allocator: other processes, contexts.

use std::fmt::Write as _;

use memfit_patch::RecordedFacts;
use memfit_vocabulary::{Cause, Lever};

use super::{Finding, size};
use crate::analysis::{Analysis, modelled_fix};
use crate::case::{Kin, OtherProcess, Refused};
use crate::explanation::{Apply, Fact, Fix, Line};

/// Advice for contexts of helper processes.
const CPU_ONLY: &str = "keep CUDA out of helper processes: leave the tensors of DataLoader workers on the CPU, and move them in the training process";

/// Advice for GPUs that another process of the same script, or an unrelated one, uses.
const WAIT: &str =
    "let the script's other process exit, or free its GPU memory, before the training needs it";
const END: &str =
    "end the other processes first (`nvidia-smi` shows them), or train on another GPU (CUDA_VISIBLE_DEVICES)";

/// Divisor of the capacity: other processes that use less than a tenth of the GPU are not the cause.
const MIN_SHARE_DIVISOR: u64 = 10;

pub(super) fn find(analysis: &Analysis<'_>) -> Vec<Finding> {
    let card = &analysis.case.card;
    if let Some(refused) = card.refused.as_ref().filter(|_| analysis.timeline.trouble.requested.is_none()) {
        return vec![if refused.trains {
            taken_before_training(analysis, refused)
        } else {
            worker_context_refused(analysis, refused)
        }];
    }
    let others = &card.others;
    if others.is_empty() || analysis.timeline.trouble.requested.is_none() {
        return Vec::new();
    }
    let total: u64 = others.iter().map(|other| other.bytes).sum();
    let tensors: u64 = others.iter().map(|other| other.reserved).sum();
    let contexts = total.saturating_sub(tensors);
    let of_contexts = contexts > tensors;
    let most = others.iter().max_by_key(|other| other.bytes);
    let mut text = format!("{} other processes held {} of the GPU", others.len(), size(total));
    if let Some(most) = most {
        let _ = write!(text, ", {} alone {}", most.describe(), size(most.bytes));
    }
    if of_contexts {
        let _ = write!(
            text,
            "; {} of it are CUDA contexts and libraries, which every process on the GPU needs",
            size(contexts)
        );
    }
    let cause = if of_contexts { Cause::Outside } else { Cause::OtherProcesses };
    let fix = free_the_card(analysis, most, total, of_contexts);
    let mut facts = vec![analysis.fact(text, total, None)];
    facts.extend(most.and_then(|most| largest_allocation(analysis, most)));
    vec![Finding {
        cause,
        bytes: total,
        // Without them, the GPU has one large free range, so the fragmentation of the remaining memory does
        // not matter.
        enough: analysis.enough(total) == Some(true)
            && analysis.limit.is_some_and(|limit| total.saturating_mul(MIN_SHARE_DIVISOR) >= limit),
        facts,
        fixes: vec![fix],
    }]
}

/// Remedy that removes other processes from the GPU, if one of them holds most of their memory.
fn free_the_card(analysis: &Analysis<'_>, most: Option<&OtherProcess>, total: u64, of_contexts: bool) -> Fix {
    let kin = most.map(|most| most.kin).unwrap_or_default();
    // Without workers, neither their contexts nor their tensors are on the GPU.
    let change = |lever| analysis.change(lever, &[], RecordedFacts::Nothing);
    let (lever, how, apply) = match kin {
        _ if of_contexts => (Lever::CpuOnlyWorkers, CPU_ONLY, change(Lever::CpuOnlyWorkers)),
        Kin::LoaderWorker => (Lever::CpuOnlyWorkers, CPU_ONLY, Apply::ByHand(None)),
        Kin::OfScript => (Lever::EndOtherProcess, WAIT, change(Lever::EndOtherProcess)),
        Kin::Stranger => (Lever::EndOtherProcess, END, change(Lever::EndOtherProcess)),
    };
    modelled_fix(analysis, lever, total, how.to_owned(), apply)
}

/// Line where another process allocated most of its memory, if it was recorded.
fn largest_allocation(analysis: &Analysis<'_>, most: &OtherProcess) -> Option<Fact> {
    let lines: Vec<Line> = most.lines.iter().map(|line| analysis.with_text(line.clone())).collect();
    let text = format!("{} allocated most of it here", most.describe());
    (!lines.is_empty()).then_some(Fact { text, bytes: most.reserved, lines })
}

/// Finding for processes of the same script that filled the GPU before the training process had created its
/// context.
fn taken_before_training(analysis: &Analysis<'_>, refused: &Refused) -> Finding {
    let others = &analysis.case.card.others;
    let total: u64 = others.iter().map(|other| other.bytes).sum();
    let most = others.iter().max_by_key(|other| other.bytes);
    let text = format!(
        "no memory was left for CUDA's own needs in the training process: {} held {} in segments by then",
        most.map_or_else(|| "another process".to_owned(), OtherProcess::describe),
        size(most.map_or(0, |most| most.bytes)),
    );
    let lines = refused.lines.iter().map(|line| analysis.with_text(line.clone())).collect();
    let mut facts = vec![Fact { text, bytes: total, lines }];
    facts.extend(most.and_then(|most| largest_allocation(analysis, most)));
    Finding {
        cause: Cause::OtherProcesses,
        bytes: total,
        enough: true,
        facts,
        fixes: vec![free_the_card(analysis, most, total, false)],
    }
}

/// Finding for a worker whose own CUDA context did not fit. No tensor had been allocated yet.
fn worker_context_refused(analysis: &Analysis<'_>, refused: &Refused) -> Finding {
    let reserved = analysis.timeline.trouble.reserved;
    let text = format!(
        "the GPU had no memory left for the CUDA context of {}: the training process held {} in segments by then, and each process \
         that uses the GPU needs its own context",
        refused.describe(),
        size(reserved)
    );
    let lines = refused.lines.iter().map(|line| analysis.with_text(line.clone())).collect();
    let apply = analysis.change(Lever::CpuOnlyWorkers, &[], RecordedFacts::Nothing);
    Finding {
        cause: Cause::Outside,
        bytes: analysis.case.card.own_outside.unwrap_or_default(),
        enough: true,
        facts: vec![Fact { text, bytes: reserved, lines }],
        fixes: vec![modelled_fix(analysis, Lever::CpuOnlyWorkers, 0, CPU_ONLY.to_owned(), apply)],
    }
}
