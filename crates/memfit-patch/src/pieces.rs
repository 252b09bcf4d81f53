//! The batch in pieces: the loader's batch is cut, or, where the script makes its batches itself, it makes
//! smaller ones, and more of them in a step.

use memfit_plan::Plan;
use memfit_source::{Edit, Span};

use crate::Why;
use crate::draft::{Draft, Pieces, words};
use crate::training::{Training, is_name, is_path};

const PIECES: &str = r#"def pieces(batch, size):
    """The batch in pieces of at most `size` samples, each with its share of the whole, by which its loss is weighted."""

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

/// Puts the round into pieces.
pub(crate) fn write(draft: &mut Draft<'_>, plan: &Plan) -> Result<(), Why> {
    let training = draft.round()?;
    let micro_batch = plan.micro_batch.ok_or("the plan says no number of samples")?;
    Training::alone(draft.facts)?;
    if training.steps.iter().any(|step| training.suite[training.backward].span.contains(step.span)) {
        return Err("the optimizer steps in the statement of the backward".to_owned());
    }
    if !training.looped.emptied.is_empty() && training.steps.is_empty() {
        return Err("the optimizer steps elsewhere than in the loop with the backward".to_owned());
    }
    let index = training.looped.index.as_ref().map(|(name, _)| name);
    let batch: Vec<&String> =
        training.looped.targets.iter().filter(|name| Some(*name) != index && is_name(name)).collect();
    let from = needs(draft, training, &batch);
    leaves_by_itself(draft, training, from)?;
    let share = if plan.made_for.batch_names.is_empty() {
        if batch.is_empty() {
            return Err("the loop gives no batch a name".to_owned());
        }
        of_loader(draft, training, from, micro_batch, &batch)
    } else {
        of_its_own(draft, training, from, micro_batch, plan)?
    };
    let form = draft.scaled.take().unwrap_or_else(|| "{}".to_owned());
    draft.scaled = Some(form.replace("{}", &format!("({})", weighted("{}", &share))));
    Ok(())
}

fn weighted(loss: &str, share: &str) -> String {
    match share.strip_prefix("1 / ") {
        Some(count) => format!("{loss} / {count}"),
        None => format!("{loss} * {share}"),
    }
}

/// The first statement of a round that the forward needs: from there on it is done for each piece.
fn needs(draft: &Draft<'_>, training: &Training<'_>, batch: &[&String]) -> usize {
    let text = |index: usize| training.suite[index].span.of(draft.text);
    let mut needed: Vec<&str> = words(text(training.forward)).collect();
    let mut first = training.forward;
    for index in (0..training.forward).rev() {
        if training.clears.contains(&index) {
            continue;
        }
        let makes = text(index).split_once('=').is_some_and(|(left, right)| {
            !right.starts_with('=')
                && left.split(',').map(str::trim).any(|name| is_name(name) && needed.contains(&name))
        });
        let of_batch = batch.iter().any(|name| words(text(index)).any(|word| word == name.as_str()));
        if makes || (of_batch && training.suite[index].body.is_empty()) {
            first = index;
            needed.extend(words(text(index)));
        }
    }
    first
}

/// A statement that leaves the loop would leave the pieces alone.
fn leaves_by_itself(draft: &Draft<'_>, training: &Training<'_>, from: usize) -> Result<(), Why> {
    for statement in &training.suite[from..=training.backward] {
        if words(statement.span.of(draft.text)).any(|word| matches!(word, "break" | "continue")) {
            return Err("a `break` or `continue` stands between the batch and its backward".to_owned());
        }
    }
    Ok(())
}

/// The loader's batches are cut.
fn of_loader(
    draft: &mut Draft<'_>,
    training: &Training<'_>,
    from: usize,
    micro_batch: u64,
    batch: &[&String],
) -> String {
    let names = batch.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    let share = draft.fresh("share");
    let targets = if batch.len() > 1 { format!("({names})") } else { names.clone() };
    let header = format!("for {targets}, {share} in pieces({targets}, {micro_batch})");
    let mut pieces = Pieces {
        from,
        header,
        share: share.clone(),
        before: Vec::new(),
        after_each: Vec::new(),
        after: Vec::new(),
    };
    let rest = rest(draft, training);
    if batch.iter().any(|name| words(rest).any(|word| word == name.as_str())) {
        let whole = draft.fresh("whole");
        pieces.before.push(format!("{whole} = {names}"));
        pieces.after.push(format!("{names} = {whole}"));
    }
    whole_loss(draft, training, &mut pieces);
    draft.helpers.push(PIECES);
    draft.pieces = Some(pieces);
    share
}

/// The script makes smaller batches, and goes through several of them in a step.
fn of_its_own(
    draft: &mut Draft<'_>,
    training: &Training<'_>,
    from: usize,
    micro_batch: u64,
    plan: &Plan,
) -> Result<String, Why> {
    let batch =
        plan.made_for.batch.filter(|batch| *batch > 0).ok_or("the plan does not say how large a batch is")?;
    if !batch.is_multiple_of(micro_batch) {
        return Err(format!("pieces of {micro_batch} do not make a batch of {batch}"));
    }
    let count = batch / micro_batch;
    let targets = &training.looped.targets;
    let made = Span::new(training.suite[from].span.start, training.suite[training.backward].span.end);
    if targets.iter().any(|target| words(made.of(draft.text)).any(|word| word == target)) {
        return Err("each round's batch depends on the loop's own counter".to_owned());
    }
    let mut found = false;
    for name in &plan.made_for.batch_names {
        found |= set(draft, name, batch, micro_batch);
    }
    if !found {
        return Err(format!("no line was found that sets {}", plan.made_for.batch_names.join(" or ")));
    }
    let mut pieces = Pieces {
        from,
        header: format!("for _ in range({count})"),
        share: format!("1 / {count}"),
        before: Vec::new(),
        after_each: Vec::new(),
        after: Vec::new(),
    };
    whole_loss(draft, training, &mut pieces);
    let share = pieces.share.clone();
    draft.pieces = Some(pieces);
    Ok(share)
}

/// What stands behind the backward in the loop.
fn rest<'a>(draft: &Draft<'a>, training: &Training<'_>) -> &'a str {
    let start = training.suite[training.backward].span.end as usize;
    let end = training.looped.span.end as usize;
    draft.text.get(start..end).unwrap_or_default()
}

/// The loss that is used after the backward is the whole batch's.
fn whole_loss(draft: &mut Draft<'_>, training: &Training<'_>, pieces: &mut Pieces) {
    let written = training.loss.of(draft.text);
    let name = written.split_once(".scale(").map_or(written, |(_, inner)| inner.trim_end_matches(')'));
    let used = |word: &str| words(rest(draft, training)).any(|other| other == word);
    if is_name(name) && used(name) {
        let total = draft.fresh(&format!("whole_{name}"));
        pieces.before.push(format!("{total} = 0"));
        let part = weighted(&format!("{name}.detach()"), &pieces.share);
        pieces.after_each.push(format!("{total} += {part}"));
        pieces.after.push(format!("{name} = {total}"));
    }
}

/// Sets a number of the script's by its name: where it is assigned, or once the arguments are read.
fn set(draft: &mut Draft<'_>, name: &str, batch: u64, micro_batch: u64) -> bool {
    let mut found = false;
    let mut waiting: Vec<&memfit_source::Statement> = draft.statements.iter().collect();
    let mut edits = Vec::new();
    while let Some(statement) = waiting.pop() {
        waiting.extend(statement.suites().flatten());
        if !statement.body.is_empty() {
            continue;
        }
        let text = statement.span.of(draft.text);
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
                span: Span::at(end),
                text: format!("\n{line}{target}.{name} = {micro_batch}{comment}"),
            });
            found = true;
        }
    }
    draft.edits.extend(edits);
    found
}
