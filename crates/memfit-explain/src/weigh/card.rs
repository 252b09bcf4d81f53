//! What is on the card beside the allocator: other processes, contexts.

use std::fmt::Write as _;

use memfit_patch::Known;
use memfit_vocabulary::{Cause, Lever};

use super::{Finding, size};
use crate::bench::{Bench, modelled};
use crate::case::{Kin, OtherProcess, Refused};
use crate::explanation::{Apply, Fact, Fix, Line};

/// What helps where helper processes hold contexts.
const OFF_THE_CARD: &str = "keep CUDA out of helper processes: leave the tensors of DataLoader workers on the CPU, and move them in the training process";

/// What helps where a process of the same script holds the card, and where anybody else does.
const WAIT: &str =
    "let the script's other process exit, or free its GPU memory, before the training needs it";
const END: &str = "end the other processes first (`nvidia-smi` shows them), or train on another card (CUDA_VISIBLE_DEVICES)";

/// Others that hold less than one in so many parts of the card are not what fills it.
const SHARE: u64 = 10;

pub(super) fn find(bench: &Bench<'_>) -> Vec<Finding> {
    let card = &bench.case.card;
    if let Some(refused) = card.refused.as_ref().filter(|_| bench.story.trouble.requested.is_none()) {
        return vec![if refused.trains { taken(bench, refused) } else { of_refusal(bench, refused) }];
    }
    let others = &card.others;
    if others.is_empty() || bench.story.trouble.requested.is_none() {
        return Vec::new();
    }
    let total: u64 = others.iter().map(|other| other.bytes).sum();
    let tensors: u64 = others.iter().map(|other| other.reserved).sum();
    let contexts = total.saturating_sub(tensors);
    let of_contexts = contexts > tensors;
    let most = others.iter().max_by_key(|other| other.bytes);
    let mut text = format!("{} other processes held {} of the card", others.len(), size(total));
    if let Some(most) = most {
        let _ = write!(text, ", {} alone {}", most.who(), size(most.bytes));
    }
    if of_contexts {
        let _ = write!(
            text,
            "; {} of it are CUDA contexts and libraries, which every process on the card needs",
            size(contexts)
        );
    }
    let cause = if of_contexts { Cause::Outside } else { Cause::OtherProcesses };
    let fix = leave(bench, most, total, of_contexts);
    let mut facts = vec![bench.fact(text, total, None)];
    facts.extend(most.and_then(|most| where_taken(bench, most)));
    vec![Finding {
        cause,
        bytes: total,
        // Without them the card has a whole stretch more: whether what is left of it now is in pieces does
        // not matter.
        enough: bench.enough(total) == Some(true)
            && bench.limit.is_some_and(|limit| total.saturating_mul(SHARE) >= limit),
        facts,
        fixes: vec![fix],
    }]
}

/// What makes the others leave the card, where one of them holds most of what they have.
fn leave(bench: &Bench<'_>, most: Option<&OtherProcess>, total: u64, of_contexts: bool) -> Fix {
    let kin = most.map(|most| most.kin).unwrap_or_default();
    // To start no workers keeps their contexts off the card, and what they would have put there not.
    let change = |lever| bench.change(lever, &[], Known::Nothing);
    let (lever, how, apply) = match kin {
        _ if of_contexts => (Lever::WorkersOffTheCard, OFF_THE_CARD, change(Lever::WorkersOffTheCard)),
        Kin::LoaderWorker => (Lever::WorkersOffTheCard, OFF_THE_CARD, Apply::ByHand(None)),
        Kin::OfScript => (Lever::EndOtherProcess, WAIT, change(Lever::EndOtherProcess)),
        Kin::Stranger => (Lever::EndOtherProcess, END, change(Lever::EndOtherProcess)),
    };
    modelled(bench, lever, total, how.to_owned(), apply)
}

/// Where another process got most of what it holds, if that was recorded.
fn where_taken(bench: &Bench<'_>, most: &OtherProcess) -> Option<Fact> {
    let lines: Vec<Line> = most.lines.iter().map(|line| bench.with_text(line.clone())).collect();
    let text = format!("{} allocated most of it here", most.who());
    (!lines.is_empty()).then_some(Fact { text, bytes: most.reserved, lines })
}

/// Others of the same script had taken the card before the process that trains had so much as a context on
/// it.
fn taken(bench: &Bench<'_>, refused: &Refused) -> Finding {
    let others = &bench.case.card.others;
    let total: u64 = others.iter().map(|other| other.bytes).sum();
    let most = others.iter().max_by_key(|other| other.bytes);
    let text = format!(
        "no memory was left for CUDA's own needs in the training process: {} held {} in segments by then",
        most.map_or_else(|| "another process".to_owned(), OtherProcess::who),
        size(most.map_or(0, |most| most.bytes)),
    );
    let lines = refused.lines.iter().map(|line| bench.with_text(line.clone())).collect();
    let mut facts = vec![Fact { text, bytes: total, lines }];
    facts.extend(most.and_then(|most| where_taken(bench, most)));
    Finding {
        cause: Cause::OtherProcesses,
        bytes: total,
        enough: true,
        facts,
        fixes: vec![leave(bench, most, total, false)],
    }
}

/// A worker that touches the card pays for a context of its own, and for this one there was no room: no
/// tensor was asked for yet.
fn of_refusal(bench: &Bench<'_>, refused: &Refused) -> Finding {
    let reserved = bench.story.trouble.reserved;
    let text = format!(
        "the card had no room left for the CUDA context of {}: the training process held {} in segments by then, and each process that \
         touches the card pays for a context of its own",
        refused.who(),
        size(reserved)
    );
    let lines = refused.lines.iter().map(|line| bench.with_text(line.clone())).collect();
    let apply = bench.change(Lever::WorkersOffTheCard, &[], Known::Nothing);
    Finding {
        cause: Cause::Outside,
        bytes: bench.case.card.own_outside.unwrap_or_default(),
        enough: true,
        facts: vec![Fact { text, bytes: reserved, lines }],
        fixes: vec![modelled(bench, Lever::WorkersOffTheCard, 0, OFF_THE_CARD.to_owned(), apply)],
    }
}
