//! A context around the line that calls the model, and `@torch.no_grad()` over a function that evaluates.

use memfit_source::{Edit, ExpressionKind as Kind, Span, Statement, StatementKind};

use super::contexts::{enters, is_autocast};
use super::flow::{Hazard, Origin, body_of, uses};
use super::{Edits, newline};
use crate::Why;
use crate::code::{Path, Scene, Script, Site};

/// Reason why a line without a statement cannot be changed.
const NO_STATEMENT: &str = "no statement was found on that line";

/// Wraps the forward pass in a context.
pub(super) fn forward(scene: &Scene<'_>, site: &Site, context: &str) -> Result<Edits, Why> {
    let script = &*scene.script;
    let path = script.statement_at_line(site.line).ok_or(NO_STATEMENT)?;
    let mut edits = Edits::default();
    wrap(script, &path, context, &mut edits)?;
    if context.contains("autocast") {
        if enters(script, site.line, &is_autocast) {
            return Err("autocast is already enabled there".to_owned());
        }
        if goes_backward(script, path.statement().span) {
            return Err(
                "the backward pass is in the same statement, and should not run under autocast".to_owned()
            );
        }
    }
    edits.import(script, "torch");
    Ok(edits)
}

/// Wraps a statement in a context.
fn wrap(script: &Script, path: &Path<'_>, context: &str, edits: &mut Edits) -> Result<(), Why> {
    let statement = path.statement();
    let simple = matches!(
        statement.kind,
        StatementKind::Assign | StatementKind::Augment(_) | StatementKind::Expression | StatementKind::Return
    );
    if !simple {
        return Err("the model is called in the header of a compound statement".to_owned());
    }
    let later = |part: &memfit_source::Expression| matches!(part.kind, Kind::Yield(_) | Kind::Lambda(_));
    if statement.values.iter().any(|value| value.any(&later) || is_generator(script, value)) {
        return Err("the model is called later than at this line".to_owned());
    }
    let lines = script.facts.whole_lines(statement.span).or_else(|| with_comment(script, statement.span));
    let lines = lines.ok_or("there is another statement on its line")?;
    let text = script.slice(lines);
    if text.contains("\"\"\"") || text.contains("'''") {
        return Err("it contains a multi-line string, which indenting it would change".to_owned());
    }
    let (_, blank) = script.facts.line_start(statement.span.start);
    let unit = if blank.contains('\t') { "\t" } else { "    " };
    let newline = newline(script);
    edits.push(Edit::insert(lines.start, format!("{blank}with {context}:{newline}{unit}")));
    let (first, last) = script.lines_of(statement.span);
    for index in first as usize..last as usize {
        if !script.lines.line_text(index, &script.text).trim().is_empty() {
            edits.push(Edit::insert(script.lines.line_start(index, &script.text), unit));
        }
    }
    Ok(())
}

/// Lines of a statement, including a trailing comment.
fn with_comment(script: &Script, span: Span) -> Option<Span> {
    let (start, blank) = script.facts.line_start(span.start);
    let rest = &script.text[span.end as usize..];
    let end = rest.find('\n').map_or(rest.len(), |at| at + 1);
    let alone = start as usize + blank.len() == span.start as usize
        && rest.trim_start_matches([' ', '\t']).starts_with('#');
    alone.then(|| Span::new(start, span.end + end as u32))
}

fn is_generator(script: &Script, of: &memfit_source::Expression) -> bool {
    matches!(of.kind, Kind::Comprehension { .. }) && !script.slice(of.span).starts_with(['[', '{'])
}

fn goes_backward(script: &Script, within: Span) -> bool {
    script.facts.ops.iter().filter(|op| op.kind.updates()).any(|op| within.contains(op.span))
}

/// Adds `@torch.no_grad()` to the evaluating function, or `with torch.no_grad():` around the line.
pub(super) fn no_grad(scene: &Scene<'_>, site: &Site, never_trained: bool) -> Result<Edits, Why> {
    let script = &*scene.script;
    let path = script.statement_at_line(site.line).ok_or(NO_STATEMENT)?;
    let mut edits = Edits::default();
    let function = path.function().filter(|function| !trains(script, function));
    if let Some(function) = function {
        let name = function.name.as_deref().unwrap_or_default();
        let calls = calls_of(scene, name);
        if returns(function) && !scene.is_main && !never_trained {
            return Err(format!(
                "`{name}` may be called by other files of the program, and its result may be part of a loss there"
            ));
        }
        shown(uses(scene, &Origin::Calls(calls)), never_trained, name)?;
        edits.line_before(script, head_of(script, function), "@torch.no_grad()");
    } else {
        let scope = path.function().and_then(body_of);
        let mut names = Vec::new();
        for target in &path.statement().targets {
            target.visit(&mut |part| names.extend(part.name()));
        }
        for name in names {
            let origin = Origin::Name { name: name.to_owned(), scope };
            shown(uses(scene, &origin), never_trained, name)?;
        }
        if path.statement().kind == StatementKind::Return {
            return Err(
                "the model's output is returned, and the caller may backpropagate through it".to_owned()
            );
        }
        wrap(script, &path, "torch.no_grad()", &mut edits)?;
    }
    edits.import(script, "torch");
    Ok(edits)
}

/// Checks that no backward pass goes through the values computed there. If the source does not show it, the
/// recording must show that no backward pass followed.
fn shown<T>(uses: Result<T, Hazard>, never_trained: bool, name: &str) -> Result<(), Why> {
    match uses {
        Err(hazard) if hazard.backward || !never_trained => {
            Err(format!("`{name}` may be part of a loss: {}", hazard.why))
        }
        _ => Ok(()),
    }
}

/// Returns `true` if a function runs a backward pass, steps an optimizer, or yields values.
fn trains(script: &Script, function: &Statement) -> bool {
    let mut yields = false;
    function.visit(&mut |each| {
        yields |= each.expressions().any(|of| of.any(&|part| matches!(part.kind, Kind::Yield(_))));
    });
    yields || goes_backward(script, function.span)
}

fn returns(function: &Statement) -> bool {
    let mut found = false;
    function.visit(&mut |each| found |= each.kind == StatementKind::Return && !each.values.is_empty());
    found
}

/// Start of the `def` line, below decorators: one above `@staticmethod` would apply to another object.
fn head_of(script: &Script, function: &Statement) -> u32 {
    let mut at = function.span.start;
    for line in script.slice(function.span).split_inclusive('\n') {
        if line.trim_start().starts_with("def ") || line.trim_start().starts_with("async def ") {
            return at + (line.len() - line.trim_start().len()) as u32;
        }
        at += line.len() as u32;
    }
    function.span.start
}

/// Calls of a function by its name.
fn calls_of(scene: &Scene<'_>, name: &str) -> Vec<Span> {
    let mut found = Vec::new();
    for statement in &scene.script.statements {
        statement.visit(&mut |each| {
            for value in each.expressions() {
                value.visit(&mut |part| {
                    let called = part.call().and_then(|(callee, _)| callee.last_name());
                    if called == Some(name) {
                        found.push(part.span);
                    }
                });
            }
        });
    }
    found
}
