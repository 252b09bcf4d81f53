//! What is on the card beside the allocator: other processes, contexts.

use std::fmt::Write as _;

use memfit_levers::{Cause, Label, Lever};

use super::{Finding, size};
use crate::bench::{Bench, modelled};
use crate::case::Refused;
use crate::explanation::{Apply, Fact};
use crate::source::{assigned, indent_of, is_word};

/// What helps where helper processes hold contexts.
const OFF_THE_CARD: &str = "keep CUDA out of helper processes: tensors of loader workers stay on the CPU, and the training process moves them";

/// Others that hold less than one in so many parts of the card are not what fills it.
const SHARE: u64 = 10;

pub(super) fn find(bench: &Bench<'_>) -> Vec<Finding> {
    let card = &bench.case.card;
    if let Some(refused) = card.refused.as_ref().filter(|_| bench.story.trouble.requested.is_none()) {
        return vec![of_refusal(bench, refused)];
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
        let _ = write!(text, ", process {} alone {}", most.pid, size(most.bytes));
    }
    if of_contexts {
        let _ = write!(
            text,
            "; {} of it are CUDA contexts and libraries, which each process that touches the card pays for",
            size(contexts)
        );
    }
    let (cause, lever, how) = if of_contexts {
        (Cause::Outside, Lever::WorkersOffTheCard, OFF_THE_CARD)
    } else {
        let how = "end the other processes first (`nvidia-smi` shows them), or train on another card (CUDA_VISIBLE_DEVICES)";
        (Cause::OtherProcesses, Lever::EndOtherProcess, how)
    };
    let apply = edit(bench, of_contexts).unwrap_or_default();
    let fix = modelled(bench, lever, Label::Exact, total, how.to_owned(), apply);
    vec![Finding {
        cause,
        bytes: total,
        // Without them the card has a whole stretch more: whether what is left of it now is in pieces does not matter.
        enough: bench.enough(total) == Some(true)
            && bench.limit.is_some_and(|limit| total.saturating_mul(SHARE) >= limit),
        facts: vec![bench.fact(text, total, None)],
        fixes: vec![fix],
    }]
}

/// A worker that touches the card pays for a context of its own, and for this one there was no room: no tensor was asked for yet.
fn of_refusal(bench: &Bench<'_>, refused: &Refused) -> Finding {
    let reserved = bench.story.trouble.reserved;
    let text = format!(
        "the card had no room left for the CUDA context of {}: the training process held {} in segments by then, and each process that \
         touches the card pays for a context of its own",
        refused.who(),
        size(reserved)
    );
    let lines = refused.lines.iter().map(|line| bench.with_text(line.clone())).collect();
    let apply = edit(bench, true).unwrap_or_default();
    Finding {
        cause: Cause::Outside,
        bytes: bench.case.card.own_outside.unwrap_or_default(),
        enough: true,
        facts: vec![Fact { text, bytes: reserved, lines }],
        fixes: vec![modelled(
            bench,
            Lever::WorkersOffTheCard,
            Label::Exact,
            0,
            OFF_THE_CARD.to_owned(),
            apply,
        )],
    }
}

/// Workers that are not started, or a child process that is waited for.
fn edit(bench: &Bench<'_>, workers: bool) -> Option<Apply> {
    for mut source in bench.sources() {
        let lines: Vec<(u32, String)> =
            source.lines().map(|(number, text)| (number, text.to_owned())).collect();
        if workers {
            for (number, text) in &lines {
                let Some(place) = text.find("num_workers=") else { continue };
                let value = place + "num_workers=".len();
                let end = text[value..].find([',', ')', ' ']).map_or(text.len(), |end| value + end);
                if &text[value..end] == "0" {
                    continue;
                }
                let mut line = format!("{}0{}", &text[..value], &text[end..]);
                for option in [
                    ", persistent_workers=True",
                    ", prefetch_factor=2",
                    ", multiprocessing_context=\"spawn\"",
                ] {
                    line = line.replace(option, "");
                }
                source.replace(*number, line);
                return source.edit();
            }
        }
        let child = |text: &str| {
            let (names, value) = assigned(text)?;
            let starts = value.contains("Popen(") || value.contains("Process(");
            (starts && names.len() == 1).then(|| (names[0].to_owned(), value.contains("Popen(")))
        };
        for (number, text) in &lines {
            let Some((name, is_popen)) = child(text) else { continue };
            if is_popen && text.contains("PIPE") {
                // It is spoken with: to wait for its end may be to wait for ever.
                continue;
            }
            if is_popen {
                let end = crate::source::statement_end(&source, *number);
                source.insert_before(end + 1, format!("{}{name}.wait()", indent_of(text)));
                return source.edit();
            }
            let started = lines
                .iter()
                .find(|(later, text)| later > number && text.contains(".start()") && is_word(text, &name));
            if let Some((later, text)) = started {
                source.insert_before(later + 1, format!("{}{name}.join()", indent_of(text)));
                return source.edit();
            }
        }
    }
    None
}
