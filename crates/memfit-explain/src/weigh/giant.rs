//! One request, or a few of its kind, that are out of proportion to everything else.

use memfit_vocabulary::{Category, Cause, Label, Lever};

use super::{Finding, size};
use crate::bench::{Bench, modelled};
use crate::explanation::{Apply, Fix};
use crate::origins::{Role, Site};
use crate::source::{Source, assigned, call_in, indent_of, is_word};
use crate::story::Life;

/// A request of this share of the card is large; one so many times the median of the others is out of
/// proportion.
const SHARE: u64 = 8;
const TIMES: u64 = 6;
/// More blocks of a kind than this are the model's nature and no single request.
const FEW: usize = 8;

pub(super) fn find(bench: &Bench<'_>) -> Option<Finding> {
    let story = &bench.story;
    let requested = story.trouble.requested?;
    let limit = bench.limit?;
    let mut sizes: Vec<u64> = story
        .live()
        .filter(|life| !life.stays() && life.block.bytes >= 1 << 20)
        .map(|life| life.block.bytes)
        .collect();
    sizes.push(requested);
    sizes.sort_unstable();
    let median = sizes[sizes.len() / 2];
    let giant = *sizes.last()?;
    // Half of it is the same thing in half the bytes: an index of 64 bits and its float, a product and its
    // half.
    let of_kind = |life: &&Life| !life.stays() && life.block.bytes * 2 >= giant;
    let count = story.live().filter(of_kind).count() + usize::from(requested * 2 >= giant);
    let bytes = story.live().filter(of_kind).map(|life| life.block.bytes).sum::<u64>()
        + if requested * 2 >= giant { requested } else { 0 };
    let rest = story.sum(|life| !life.stays()).saturating_sub(bytes);
    let out_of_proportion =
        giant >= limit / SHARE && (giant >= median * TIMES || count <= 3) && count <= FEW && bytes >= rest;
    if !out_of_proportion {
        return None;
    }
    // The line that calls the backward says nothing of what it goes back through.
    let own = Some(story.trouble.stack)
        .filter(|stack| requested * 2 >= giant && story.origins.get(*stack).role != Role::Backward);
    let kept = bench.stacks(story.live().filter(of_kind)).first().map(|(stack, _)| *stack);
    let stack = own.or(kept).or(Some(story.trouble.stack));
    let text = format!(
        "{} of {} each, {} together, are most of what the step holds; the median of its other large tensors is {}",
        if count == 1 { "one tensor".to_owned() } else { format!("{count} tensors") },
        size(giant),
        size(bytes),
        size(median)
    );
    let sites: Vec<Site> = stack.map(|stack| story.origins.get(stack).user.clone()).unwrap_or_default();
    let inputs = story.live().filter(of_kind).filter(|life| life.category == Category::Inputs).count() > 0;
    let stacks = story.live().filter(of_kind).map(|life| life.block.stack).chain([story.trouble.stack]);
    let loss = stacks.into_iter().any(|stack| story.origins.get(stack).operation.loss);
    Some(Finding {
        cause: Cause::GiantRequest,
        bytes,
        enough: bench.enough(bytes) == Some(true) && bench.full(),
        facts: vec![bench.fact(text, bytes, stack)],
        fixes: remedies(bench, &sites, bytes, inputs, loss),
    })
}

fn remedies(bench: &Bench<'_>, sites: &[Site], bytes: u64, inputs: bool, loss: bool) -> Vec<Fix> {
    let mut fixes = Vec::new();
    for site in sites {
        let Some(source) = bench.source(*site) else { continue };
        let mut attention = source.clone();
        if written_out_attention(&mut attention, site.line) {
            let how =
                "`F.scaled_dot_product_attention(q, k, v)` does the same without the matrix of all pairs";
            let apply = attention.edit().unwrap_or_default();
            fixes.push(modelled(bench, Lever::Sdpa, Label::Rounding, bytes, how.to_owned(), apply));
            return fixes;
        }
        let mut upload = source.clone();
        if resized_after_upload(&mut upload, site.line) {
            let how = "resize images before they go to the card";
            let apply = upload.edit().unwrap_or_default();
            fixes.push(modelled(
                bench,
                Lever::ResizeBeforeUpload,
                Label::Exact,
                bytes / 4 * 3,
                how.to_owned(),
                apply,
            ));
            return fixes;
        }
    }
    let by_hand =
        |lever, label, how: &str| modelled(bench, lever, label, bytes / 4 * 3, how.to_owned(), Apply::ByHand);
    if loss {
        fixes.push(by_hand(
            Lever::ChunkedLoss,
            Label::Rounding,
            "compute the loss over pieces of the tokens, under checkpointing, or with `F.linear_cross_entropy` (2.15): the logits are never there as a whole",
        ));
    }
    if inputs {
        fixes.push(by_hand(
            Lever::ResizeBeforeUpload,
            Label::Exact,
            "resize or crop images before they go to the card",
        ));
    }
    fixes
}

/// `scores = q @ k.transpose(-2, -1) * scale`, `weights = scores.softmax(-1)`, `out = weights @ v`, one below
/// the other.
fn written_out_attention(source: &mut Source, line: u32) -> bool {
    for first in line.saturating_sub(3).max(1)..=line {
        if attention_at(source, first) {
            return true;
        }
    }
    false
}

fn attention_at(source: &mut Source, first: u32) -> bool {
    let texts: Vec<String> = (first..first + 3).map(|number| source.line(number).to_owned()).collect();
    let parts: Vec<(String, String)> = texts
        .iter()
        .filter_map(|text| assigned(text).filter(|(names, _)| names.len() == 1))
        .map(|(names, value)| (names[0].to_owned(), value.to_owned()))
        .collect();
    let [(scores, product), (weights, softmax), (out, sum)] = parts.as_slice() else { return false };
    let Some((query, key, scale)) = scaled_product(product) else { return false };
    let normalised = softmax.contains("softmax(") && is_word(softmax, scores) && !softmax.contains("mask");
    let Some(value) = product_with(sum, weights) else { return false };
    if !normalised || scale.is_none() {
        return false;
    }
    // Where the matrix is used again, it cannot go.
    let used = |name: &str| source.lines().filter(|(_, text)| is_word(text, name)).count();
    let reused = scores != weights && (used(scores) > 2 || used(weights) > 2);
    if reused {
        return false;
    }
    let indent = indent_of(&texts[0]).to_owned();
    let scale =
        scale.filter(|scale| !scale.is_empty()).map(|scale| format!(", scale={scale}")).unwrap_or_default();
    source.replace_by(
        first,
        vec![format!(
            "{indent}{out} = torch.nn.functional.scaled_dot_product_attention({query}, {key}, {value}{scale})"
        )],
    );
    source.replace_by(first + 1, Vec::new());
    source.replace_by(first + 2, Vec::new());
    source.import("import torch");
    true
}

/// Query, key and scale of `q @ k.transpose(-2, -1) / sqrt(d)`; an empty scale where there is the usual one.
fn scaled_product(text: &str) -> Option<(String, String, Option<String>)> {
    let transposed = [".transpose(-2, -1)", ".transpose(-1, -2)", ".mT"];
    let mark = transposed.iter().find(|mark| text.contains(*mark))?;
    let (before, after) = text.split_once(*mark)?;
    let (query, key) = match before.trim().trim_start_matches('(').split_once(" @ ") {
        Some((query, key)) => (query, key),
        None => before.trim().trim_start_matches('(').strip_prefix("torch.matmul(")?.split_once(", ")?,
    };
    let after = after.trim_start_matches(')').trim();
    let scale = if after.is_empty() {
        "1.0".to_owned()
    } else if let Some(divisor) = after.strip_prefix('/') {
        let usual = divisor.contains("sqrt(") || divisor.contains("** 0.5") || divisor.contains("**0.5");
        if usual { String::new() } else { format!("1 / ({})", divisor.trim()) }
    } else {
        after.strip_prefix('*')?.trim().to_owned()
    };
    Some((query.trim().to_owned(), key.trim().to_owned(), Some(scale)))
}

/// `v` of `weights @ v`.
fn product_with(text: &str, weights: &str) -> Option<String> {
    if let Some((left, right)) = text.split_once(" @ ") {
        return (left.trim() == weights).then(|| right.trim().to_owned());
    }
    let (callee, arguments) = call_in(text)?;
    let (left, right) = arguments.split_once(", ")?;
    (callee == "torch.matmul" && left.trim() == weights).then(|| right.trim().to_owned())
}

/// `x = x.to(device)`, then `x = F.interpolate(x, ...)`: the other way round.
fn resized_after_upload(source: &mut Source, line: u32) -> bool {
    let uploads = |text: &str| text.contains(".to(") || text.contains(".cuda(");
    let resizes = |text: &str| text.contains("interpolate(") || text.contains("resize(");
    for first in line.saturating_sub(4).max(1)..=line {
        let upload = source.line(first).to_owned();
        let Some((names, _)) = assigned(&upload).filter(|_| uploads(&upload) && !resizes(&upload)) else {
            continue;
        };
        let name = names[0].to_owned();
        for second in first + 1..=first + 4 {
            let resize = source.line(second).to_owned();
            let same = assigned(&resize)
                .is_some_and(|(names, value)| names == [name.as_str()] && is_word(value, &name));
            if same && resizes(&resize) && indent_of(&resize) == indent_of(&upload) {
                source.replace(first, resize.clone());
                source.replace(second, upload.clone());
                return true;
            }
            if is_word(&resize, &name) && !same {
                break;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Apply;

    #[test]
    fn attention_that_is_written_out_becomes_one_call() {
        let text = "import torch\n\ndef f(q, k, v):\n    scores = q @ k.transpose(-2, -1) / math.sqrt(d)\n    weights = torch.softmax(scores, dim=-1)\n    out = weights @ v\n    return out\n";
        let mut source = Source::new("m.py", text);
        assert!(written_out_attention(&mut source, 5));
        let Some(Apply::Edit { diff, .. }) = source.edit() else { panic!("there is a change") };
        assert!(
            diff.contains("+    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)\n"),
            "{diff}"
        );
        for other in ["weights = torch.softmax(scores + mask, dim=-1)", "weights = scores.relu()"] {
            let mut source =
                Source::new("m.py", &text.replace("weights = torch.softmax(scores, dim=-1)", other));
            assert!(!written_out_attention(&mut source, 5), "{other}");
        }
    }

    #[test]
    fn images_are_resized_before_they_are_uploaded() {
        let text =
            "for x in data:\n    x = x.to(device)\n    x = F.interpolate(x, size=224)\n    y = model(x)\n";
        let mut source = Source::new("t.py", text);
        assert!(resized_after_upload(&mut source, 2));
        let mut other = Source::new("t.py", &text.replace("    x = F.inter", "    z = F.inter"));
        assert!(!resized_after_upload(&mut other, 2));
    }
}
