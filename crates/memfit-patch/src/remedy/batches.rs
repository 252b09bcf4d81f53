//! Frees a step's tensors at its end: variables by `del`, gradients by `zero_grad` right after the step.

use memfit_source::{ExpressionKind as Kind, OpKind, Span, Statement, StatementKind};

use super::{Change, Edits, Refusal};
use crate::Why;
use crate::code::{Code, Path, Scene, Script, Site};

/// Adds `del` at the end of the loop, and moves `zero_grad` after `step`.
pub(super) fn change(
    code: &Code<'_>,
    sites: &[Site],
    step: Option<&Site>,
    gradients: bool,
) -> Result<Change, Refusal> {
    let in_loop = |site: &Site| {
        let scene = code.scene(&site.file)?;
        let path = scene.script.statement_at_line(site.line)?;
        let binds = path.statement().kind == StatementKind::Assign && path.loops().next().is_some();
        binds.then(|| site.clone())
    };
    let anchor = step.cloned().or_else(|| sites.iter().find_map(in_loop)).ok_or(Refusal::NotHere)?;
    let scene = code.scene(&anchor.file).ok_or(Refusal::NotHere)?;
    scene.is_current(&anchor)?;
    let script = &*scene.script;
    let path = script.statement_at_line(anchor.line).ok_or("no statement was found on that line")?;
    let looped = path.loops().next().ok_or("the step is not in a loop of its function")?;
    let mut edits = Edits::default();
    let mut refusal = None;
    if gradients {
        match cleared_earlier(&scene, &path) {
            Ok(call) => edits.line_behind(script, path.statement().span, &call),
            Err(why) => refusal = Some(why),
        }
    }
    let mut names: Vec<String> = Vec::new();
    for site in sites.iter().filter(|site| site.file == anchor.file) {
        match droppable(script, site, looped) {
            Ok(found) => names.extend(found),
            Err(why) => {
                refusal.get_or_insert(why);
            }
        }
    }
    names.sort();
    names.dedup();
    if !names.is_empty() {
        let last = looped.body.last().filter(|last| last.kind != StatementKind::Exit && last.span.start > 0);
        let last = last.ok_or("the loop ends with `break`, `continue` or `raise`")?;
        let same_line = script.line_of(last.span.start) == script.line_of(looped.span.start);
        if same_line {
            return Err("the loop is on one line".into());
        }
        let first = looped.body.first().map_or(last.span, |first| first.span);
        edits.line_behind(
            script,
            Span::new(first.start, last.span.end),
            &format!("del {}", names.join(", ")),
        );
    }
    for (looped, own) in consumers(script, &path, sites, &names) {
        let first = looped.body.first().map_or(looped.span, |first| first.span);
        let last = looped.body.last().map_or(looped.span, |last| last.span);
        edits.line_behind(script, Span::new(first.start, last.end), &format!("del {own}"));
    }
    if edits.0.is_empty() {
        return Err(refusal.map_or(Refusal::NotHere, Refusal::Unproven));
    }
    edits.change(&scene).map_err(Refusal::Unproven)
}

/// Loops over the function as a generator that get the dropped names from it, with the names that hold them
/// there: both have to be dropped for the memory to be free.
fn consumers<'s>(
    script: &'s Script,
    path: &Path<'_>,
    sites: &[Site],
    dropped: &[String],
) -> Vec<(&'s Statement, String)> {
    let Some(name) = path.function().and_then(|function| function.name.as_deref()) else { return Vec::new() };
    // The positions at which dropped names are yielded.
    let mut yielded: Vec<usize> = Vec::new();
    for each in path.scope() {
        each.visit(&mut |each| {
            for value in each.values.iter().filter_map(|value| match &value.kind {
                Kind::Yield(parts) => parts.first(),
                _ => None,
            }) {
                let parts = if value.name().is_some() { vec![value] } else { value.parts() };
                let is_dropped = |part: &&memfit_source::Expression| {
                    part.name().is_some_and(|name| dropped.iter().any(|dropped| dropped == name))
                };
                yielded
                    .extend((0..).zip(&parts).filter(|(_, part)| is_dropped(part)).map(|(index, _)| index));
            }
        });
    }
    let own = |site: &Site| {
        let path = script.statement_at_line(site.line)?;
        let looped = path.statement();
        let (callee, _) = looped.values.first()?.call()?;
        let takes = looped.kind == StatementKind::Loop && callee.last_name() == Some(name);
        let [target] = &looped.targets[..] else { return None };
        let parts = if target.name().is_some() { vec![target] } else { target.parts() };
        let names = yielded.iter().map(|index| parts.get(*index)?.name()).collect::<Option<Vec<&str>>>()?;
        let ends = looped.body.last().is_some_and(|last| last.kind != StatementKind::Exit);
        let free = names.iter().all(|name| ends_in_loop(&path, looped, name));
        (takes && ends && free && !names.is_empty()).then(|| (looped, names.join(", ")))
    };
    sites.iter().filter_map(own).collect()
}

/// Returns `true` if nothing outside a loop uses a name that its head binds.
fn ends_in_loop(path: &Path<'_>, looped: &Statement, name: &str) -> bool {
    let mut used = false;
    for each in path.scope() {
        each.visit(&mut |each| {
            let inside = looped.span.contains(each.span);
            let around = each.span.contains(looped.span);
            let binds = each.targets.iter().any(|target| target.mentions(name));
            let reads = each.values.iter().any(|value| value.mentions(name));
            used |= !inside && (reads || binds && !around) || inside && binds && each.span != looped.span;
        });
    }
    !used
}

/// Names that a line binds in a loop and that nothing reads after the iteration.
fn droppable(script: &Script, site: &Site, looped: &Statement) -> Result<Vec<String>, Why> {
    let path = script.statement_at_line(site.line).ok_or("no statement was found on that line")?;
    let statement = path.statement();
    let inside = path.loops().next().is_some_and(|own| own.span == looped.span);
    // Local names of a function are gone when it returns.
    if statement.kind != StatementKind::Assign || !inside {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for target in &statement.targets {
        let parts = if target.name().is_some() { vec![target] } else { target.parts() };
        names.extend(parts.into_iter().filter_map(memfit_source::Expression::name));
    }
    let mut found = Vec::new();
    for name in names.into_iter().filter(|name| *name != "_") {
        ends_with_round(script, &path, looped, name)?;
        found.push(name.to_owned());
    }
    Ok(found)
}

/// Checks that each iteration binds a name before reading it, and that nothing reads it later.
fn ends_with_round(script: &Script, path: &Path<'_>, looped: &Statement, name: &str) -> Result<(), Why> {
    let statement = path.statement();
    if !path.is_in_each_round(looped) {
        return Err(format!("`{name}` is not assigned in each iteration, so it cannot be deleted in each"));
    }
    let outermost = path.loops().last().unwrap_or(looped);
    let mut why = None;
    for each in path.scope() {
        each.visit(&mut |each| {
            if matches!(each.kind, StatementKind::Function | StatementKind::Class) && each.mentions(name) {
                why.get_or_insert(format!(
                    "`{}` uses `{name}` as well",
                    each.name.as_deref().unwrap_or_default()
                ));
            }
            let deleted = matches!(each.kind, StatementKind::Delete | StatementKind::Global)
                && each.targets.iter().any(|target| target.name() == Some(name));
            if deleted {
                why.get_or_insert(format!(
                    "line {} already deletes `{name}` or declares it global",
                    script.line_of(each.span.start)
                ));
            }
            let reads = each.values.iter().any(|value| value.mentions(name))
                || each
                    .targets
                    .iter()
                    .any(|target| target.name() != Some(name) && target.root() == Some(name))
                || matches!(each.kind, StatementKind::Augment(_))
                    && each.targets.iter().any(|target| target.name() == Some(name));
            if !reads {
                return;
            }
            let in_round = looped.span.contains(each.span) && each.span != looped.span;
            let before = each.span.start <= statement.span.start;
            let line = script.line_of(each.span.start);
            if in_round && before {
                why.get_or_insert(format!("line {line} reads `{name}` from the previous iteration"));
            } else if !in_round && (!before || outermost.span.contains(each.span)) {
                why.get_or_insert(format!("line {line} reads `{name}` after the loop"));
            }
        });
    }
    why.map_or(Ok(()), Err)
}

/// Text of `optimizer.zero_grad()`, if nothing reads gradients between the step and the next backward pass.
fn cleared_earlier(scene: &Scene<'_>, path: &Path<'_>) -> Result<String, Why> {
    let script = &*scene.script;
    let facts = &script.facts;
    let step = facts
        .ops
        .iter()
        .find(|op| {
            op.via.is_none()
                && path.statement().span.contains(op.span)
                && matches!(op.kind, OpKind::Step { .. })
        })
        .ok_or("no optimizer step was found there")?;
    let (suite, index) = path.suite();
    let clears = facts.ops.iter().find(|op| {
        op.via.is_none()
            && matches!(op.kind, OpKind::ZeroGrad { .. })
            && suite[..index].iter().any(|statement| statement.span == op.span)
            && op.receiver == step.receiver
    });
    if clears.is_none() {
        return Err("its gradients are not cleared in the same iteration, before the step".to_owned());
    }
    let mut read = None;
    for statement in &suite[index + 1..] {
        statement.visit(&mut |each| {
            let of_gradients = each.expressions().any(|expression| {
                expression.any(&|part| {
                    matches!(part.last_name(), Some("grad" | "clip_grad_norm_" | "get_total_norm"))
                })
            });
            if of_gradients {
                read.get_or_insert(script.line_of(each.span.start));
            }
        });
    }
    match read {
        Some(line) => Err(format!("line {line} reads gradients after the step")),
        None => Ok(format!("{}.zero_grad()", step.receiver)),
    }
}
