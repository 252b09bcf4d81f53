//! # penalty-without-graph
//!
//! ## What it does
//! Finds gradient penalties that are computed with `torch.autograd.grad` without `create_graph=True`.
//!
//! ## Why
//! The gradients have no graph then: the penalty is a number for the backward pass, and nothing is trained by
//! it. The loss that is printed has it all the same. Measured: with `create_graph=True`, the penalty has a
//! graph; without it, `backward()` of the penalty alone raises an error.
//!
//! ## Example
//! ```python
//! gradients = torch.autograd.grad(model(x).sum(), x, retain_graph=True)[0]
//! penalty = ((gradients.norm(2, dim=1) - 1) ** 2).mean()
//! (loss + penalty).backward()
//! ```
//! Use instead:
//! ```python
//! gradients = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
//! penalty = ((gradients.norm(2, dim=1) - 1) ** 2).mean()
//! (loss + penalty).backward()
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [autograd.grad](https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html)

use memfit_source::{Call, Expression, ExpressionKind, Statement, StatementKind};

use crate::query::words;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};
use crate::tree::{bound_names, follows, tree};

pub(super) static RULE: Rule =
    Rule { name: "penalty-without-graph", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut body: Option<Vec<Statement>> = None;
    for call in facts.calls.iter().filter(|call| call.is("torch.autograd.grad") && has_no_graph(call)) {
        let body = body.get_or_insert_with(|| tree(context));
        let function = facts.function(call.site.function);
        let Some(penalty) = penalty_of(context, call, suite_of(body, call)) else { continue };
        // A function that is named for what it measures returns it to one that trains or only prints.
        let is_measured = ["eval", "test", "metric", "measure", "log"]
            .iter()
            .any(|word| function.name.rsplit('.').next().is_some_and(|name| name.starts_with(word)));
        if !is_measured {
            findings
                .report(
                    call.span,
                    format!("`{penalty}` is computed of gradients without a graph: nothing is trained by it"),
                )
                .help("call `torch.autograd.grad` with `create_graph=True`");
        }
    }
}

/// Returns `true` for a call that certainly makes no graph.
fn has_no_graph(call: &Call) -> bool {
    !call.is_open() && call.argument(4, "create_graph").is_none_or(|given| given.value.truth() == Some(false))
}

/// Body of the innermost function around a call.
fn suite_of<'a>(body: &'a [Statement], call: &Call) -> &'a [Statement] {
    let mut found = body;
    for statement in body {
        statement.visit(&mut |inner| {
            if inner.kind == StatementKind::Function
                && inner.span.start <= call.span.start
                && call.span.end <= inner.span.end
            {
                found = &inner.body;
            }
        });
    }
    found
}

/// Name of a penalty that is computed of the gradients of a call, and that is no longer a plain number.
fn penalty_of<'a>(context: &'a Context<'_>, call: &Call, body: &'a [Statement]) -> Option<&'a str> {
    let mut statement = None;
    for outer in body {
        outer.visit(&mut |inner| {
            if inner.span.start <= call.span.start && call.span.end <= inner.span.end {
                statement = Some(inner);
            }
        });
    }
    let statement = statement.filter(|found| found.kind == StatementKind::Assign)?;
    let mut derived: Vec<&str> = statement.targets.iter().flat_map(bound_names).collect();
    // Of the gradients as they are: `torch.autograd.grad(…)[0]`.
    let value = statement.values.first()?;
    if cuts(context, value) {
        return None;
    }
    let mut all = Vec::new();
    for later in follows(body, statement) {
        later.visit(&mut |inner| all.push(inner));
    }
    for later in all {
        let uses = |part: &Expression| derived.iter().any(|name| part.mentions(name));
        match later.kind {
            StatementKind::Assign | StatementKind::Augment(_) => {
                let Some(value) = later.values.first().filter(|value| uses(value)) else { continue };
                if cuts(context, value) {
                    continue;
                }
                let targets: Vec<&str> = later.targets.iter().flat_map(bound_names).collect();
                if let Some(name) = targets.iter().find(|name| is_penalty(name)) {
                    return Some(name);
                }
                derived.extend(targets);
            }
            StatementKind::Return => {
                let name = context.facts.function(call.site.function).name.rsplit('.').next()?;
                if later.values.iter().any(uses) && is_penalty(name) {
                    return Some(name);
                }
            }
            _ => {}
        }
    }
    None
}

fn is_penalty(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.contains("penalty") || words(&lower).any(|word| word.split('_').any(|part| part == "gp"))
}

/// Returns `true` for a value that is meant as a number: `grad.norm().item()`, `grad.detach()`.
fn cuts(context: &Context<'_>, value: &Expression) -> bool {
    let text = context.slice(value.span);
    let cut = [".item(", ".detach(", ".data", ".numpy(", "float("];
    cut.iter().any(|word| text.contains(word)) || matches!(value.kind, ExpressionKind::Lambda(_))
}
