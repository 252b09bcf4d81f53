//! Micro-batches: the loader's batch is split; a script that creates its batches itself creates smaller ones,
//! and several in a step.

use memfit_plan::{MadeFor, Plan};
use memfit_source::{Edit, Span};

use crate::Why;
use crate::code::Script;
use crate::draft::{Draft, Pieces, words};
use crate::round::{Read, Round};
use crate::training::{Training, is_name, is_path};

const PIECES_HELPER: &str = r#"def pieces(batch, size):
    """Yield micro-batches of at most `size` samples, each with its share of the batch, which weights its loss."""

    def sizes(part):
        if hasattr(part, "items"):
            return [size for _, entry in part.items() for size in sizes(entry)]
        return [len(part)] if hasattr(part, "__len__") and getattr(part, "ndim", 1) else []

    def cut(part, start):
        if hasattr(part, "items"):
            return type(part)({key: cut(entry, start) for key, entry in part.items()})
        return part[start : start + size] if sizes(part) == [samples] else part

    parts = list(batch) if isinstance(batch, (list, tuple)) else [batch]
    samples = next(size for part in parts for size in sizes(part))
    for start in range(0, samples, size):
        piece = [cut(part, start) for part in parts]
        share = min(size, samples - start) / samples
        yield piece if isinstance(batch, (list, tuple)) else piece[0], share
"#;

const DETACHED_HELPER: &str = r#"def detached(value):
    """Return the value without its graph, so that the micro-batch's memory is freed."""
    if hasattr(value, "items"):
        return type(value)({key: detached(entry) for key, entry in value.items()})
    if isinstance(value, (tuple, list)):
        return type(value)([detached(entry) for entry in value])
    return value.detach() if isinstance(value, torch.Tensor) else value
"#;

const JOINED_HELPER: &str = r#"def joined(pieces):
    """Combine the values of micro-batches: concatenate tensors, add counts, average means by their shares."""
    values = [value for value, _ in pieces]
    first = values[0]
    if hasattr(first, "items"):
        return type(first)({key: joined([(value[key], share) for value, share in pieces]) for key in first})
    if isinstance(first, (tuple, list)):
        return type(first)([joined([(value[i], share) for value, share in pieces]) for i in range(len(first))])
    if isinstance(first, torch.Tensor) and first.ndim:
        return torch.cat(values)
    if isinstance(first, int) or (isinstance(first, torch.Tensor) and not first.is_floating_point()):
        return first if isinstance(first, bool) else sum(values)
    if isinstance(first, (float, torch.Tensor)):
        return sum(value * share for value, share in pieces)
    return values[-1]
"#;

/// Divides an iteration into micro-batches.
pub(crate) fn write(draft: &mut Draft<'_>, plan: &Plan) -> Result<(), Why> {
    let training = draft.round()?;
    let micro_batch = plan.micro_batch.ok_or("the plan has no micro-batch size")?;
    Training::check_only_backward(draft.facts)?;
    if training.steps.iter().any(|step| training.suite[training.backward].span.contains(step.span)) {
        return Err("the backward pass and the optimizer step are in one statement".to_owned());
    }
    if !training.looped.emptied.is_empty() && training.steps.is_empty() {
        return Err("the optimizer step is not in the loop with the backward pass".to_owned());
    }
    let index = training.looped.index.as_ref().map(|(name, _)| name);
    let batch: Vec<&String> =
        training.looped.targets.iter().filter(|name| Some(*name) != index && is_name(name)).collect();
    let of_loader = plan.made_for.batch_names.is_empty();
    let round = Round::classify(training, if of_loader { &batch } else { &[] })?;
    leaves_by_itself(draft, training, round.from)?;
    let mut pieces = if of_loader {
        if batch.is_empty() {
            return Err("the loop assigns no batch to a variable".to_owned());
        }
        split_loader_batches(draft, training, round, micro_batch, &batch)
    } else {
        shrink_own_batches(draft, training, round, micro_batch, plan)?
    };
    values_after(draft, training, &mut pieces);
    draft.pieces = Some(pieces);
    Ok(())
}

/// Changes the batch size of a script, given the names that hold it.
pub fn with_batch(text: &str, made_for: &MadeFor, batch: u64) -> Option<String> {
    let script = Script::read(text).ok()?;
    let mut draft = Draft::new(text, &script.facts, &script.statements, None);
    let before = made_for.batch?;
    let mut found = false;
    for name in &made_for.batch_names {
        found |= set_number(&mut draft, name, before, batch);
    }
    if found { draft.render().ok() } else { None }
}

/// Refuses a statement that leaves the loop, since it would only leave the loop over micro-batches.
fn leaves_by_itself(draft: &Draft<'_>, training: &Training<'_>, from: usize) -> Result<(), Why> {
    for statement in &training.suite[from..=training.backward] {
        if words(statement.span.slice(draft.text)).any(|word| matches!(word, "break" | "continue")) {
            return Err("there is a `break` or `continue` between the batch and its backward pass".to_owned());
        }
    }
    Ok(())
}

/// Splits the batches of the loader.
fn split_loader_batches(
    draft: &mut Draft<'_>,
    training: &Training<'_>,
    round: Round,
    micro_batch: u64,
    batch: &[&String],
) -> Pieces {
    let names = batch.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    let share = draft.unused_name("share");
    let targets = if batch.len() > 1 { format!("({names})") } else { names.clone() };
    let header = format!("for {targets}, {share} in pieces({targets}, {micro_batch})");
    let mut pieces = Pieces::new(round, header, share);
    // After the loop, the names refer to the whole batch again.
    let bound = |name: &String| pieces.round.bound.contains(name);
    let read = pieces.round.read_after(training, batch.iter().copied());
    if read.iter().any(|(name, how)| *how == Read::Size || !bound(name)) {
        let whole = draft.unused_name("whole");
        pieces.before.push(format!("{whole} = {names}"));
        pieces.after.push(format!("{names} = {whole}"));
    }
    // A name of which only the size is read keeps the whole batch; others get joined results.
    pieces.restored =
        read.into_iter().filter(|(_, how)| *how == Read::Size).map(|(name, _)| name.clone()).collect();
    draft.helpers.push(PIECES_HELPER);
    pieces
}

/// Makes the script create smaller batches, and several of them in a step.
fn shrink_own_batches(
    draft: &mut Draft<'_>,
    training: &Training<'_>,
    round: Round,
    micro_batch: u64,
    plan: &Plan,
) -> Result<Pieces, Why> {
    let batch =
        plan.made_for.batch.filter(|batch| *batch > 0).ok_or("the plan does not state the batch size")?;
    if !batch.is_multiple_of(micro_batch) {
        return Err(format!("micro-batches of {micro_batch} do not divide a batch of {batch} evenly"));
    }
    let count = batch / micro_batch;
    let targets = &training.looped.targets;
    let made = Span::new(training.suite[round.from].span.start, training.suite[training.backward].span.end);
    if targets.iter().any(|target| words(made.slice(draft.text)).any(|word| word == target)) {
        return Err("each iteration's batch depends on the loop counter".to_owned());
    }
    let mut found = false;
    for name in &plan.made_for.batch_names {
        found |= set_number(draft, name, batch, micro_batch);
    }
    if !found {
        return Err(format!("no line was found that sets {}", plan.made_for.batch_names.join(" or ")));
    }
    Ok(Pieces::new(round, format!("for _ in range({count})"), format!("1 / {count}")))
}

/// Values that the script reads after the loop become those of the whole batch: the loss and others.
fn values_after(draft: &mut Draft<'_>, training: &Training<'_>, pieces: &mut Pieces) {
    let written = training.loss.slice(draft.text);
    let loss = written.split_once(".scale(").map_or(written, |(_, inner)| inner.trim_end_matches(')'));
    let bound = pieces.round.bound.clone();
    for (name, _) in pieces.round.read_after(training, bound.iter()) {
        if pieces.restored.contains(name) {
            continue;
        }
        let total = draft.unused_name(&format!("whole_{name}"));
        if name.as_str() == loss {
            pieces.before.push(format!("{total} = 0"));
            let part = pieces.weighted(&format!("{name}.detach()"));
            pieces.after_each.push(format!("{total} += {part}"));
            pieces.after.push(format!("{name} = {total}"));
            continue;
        }
        pieces.before.push(format!("{total} = []"));
        pieces.after_each.push(format!("{total}.append((detached({name}), {}))", pieces.share));
        // The values of the micro-batches are freed with their list.
        pieces.after.push(format!("{name}, {total} = joined({total}), None"));
        for helper in [DETACHED_HELPER, JOINED_HELPER] {
            if !draft.helpers.contains(&helper) {
                draft.helpers.push(helper);
            }
        }
        draft.import("torch");
    }
}

/// Sets the batch size that a name holds: at its assignment, or after `parse_args()`.
fn set_number(draft: &mut Draft<'_>, name: &str, batch: u64, micro_batch: u64) -> bool {
    let mut found = false;
    let mut waiting: Vec<&memfit_source::Statement> = draft.statements.iter().collect();
    let mut edits = Vec::new();
    while let Some(statement) = waiting.pop() {
        waiting.extend(statement.suites().flatten());
        if !statement.body.is_empty() {
            continue;
        }
        let text = statement.span.slice(draft.text);
        let Some((left, right)) = text.split_once('=').filter(|(_, right)| !right.starts_with('=')) else {
            continue;
        };
        let target = left.split(':').next().unwrap_or_default().trim();
        let value = right.trim();
        if target.rsplit('.').next() == Some(name) && value == batch.to_string() {
            let start = statement.span.end - right.trim_start().len() as u32;
            edits.push(Edit { span: Span::new(start, statement.span.end), text: micro_batch.to_string() });
            found = true;
        } else if is_path(target) && (value.ends_with(".parse_args()") || value == "parse_args()") {
            let line = draft.indent(statement);
            let end = statement.span.end;
            let comment = format!("  # {batch} in a step");
            edits.push(Edit {
                span: Span::empty(end),
                text: format!("\n{line}{target}.{name} = {micro_batch}{comment}"),
            });
            found = true;
        }
    }
    draft.edits.extend(edits);
    found
}

#[cfg(test)]
mod tests;
