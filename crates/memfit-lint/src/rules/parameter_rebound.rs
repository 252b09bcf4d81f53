//! # parameter-rebound
//!
//! ## What it does
//! Finds loops over parameters that bind a new tensor to the loop's variable and do not use it: moving
//! averages, target networks and updates by hand.
//!
//! ## Why
//! An assignment to the loop's variable binds a name. It writes nothing into the parameter, and the next
//! iteration forgets it: the average or the target network keeps its first weights. Measured: 0 of 2
//! parameters change; with `lerp_`, 2 of 2.
//!
//! ## Example
//! ```python
//! with torch.no_grad():
//!     for mean, p in zip(average.parameters(), model.parameters()):
//!         mean = 0.99 * mean + 0.01 * p
//! ```
//! Use instead:
//! ```python
//! with torch.no_grad():
//!     for mean, p in zip(average.parameters(), model.parameters()):
//!         mean.lerp_(p, 0.01)
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [lerp_](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.lerp_.html)

use memfit_source::{Expression, ExpressionKind, Statement, StatementKind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};
use crate::tree::{bound_names, follows, tree};

pub(super) static RULE: Rule =
    Rule { name: "parameter-rebound", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    if !context.facts.text.contains("parameters()") {
        return;
    }
    for statement in &tree(context) {
        statement.visit(&mut |found| {
            if found.kind == StatementKind::Loop {
                in_loop(context, found, findings);
            }
        });
    }
}

/// Names of a loop's variables that are parameters.
fn parameters(looped: &Statement) -> Vec<&str> {
    let (Some(target), Some(over)) = (looped.targets.first(), looped.values.first()) else {
        return Vec::new();
    };
    let calls = |method: &str| {
        over.any(&|part| part.call().is_some_and(|(callee, _)| callee.last_name() == Some(method)))
    };
    let named = calls("named_parameters");
    if !named && !calls("parameters") {
        return Vec::new();
    }
    let names = bound_names(target);
    // The first of a pair is the parameter's name, and the first of an enumeration its number.
    let counted = over.call().is_some_and(|(callee, _)| callee.last_name() == Some("enumerate"));
    if named {
        names.last().copied().into_iter().filter(|_| names.len() > 1).collect()
    } else {
        names.into_iter().skip(usize::from(counted)).collect()
    }
}

fn in_loop(context: &Context<'_>, looped: &Statement, findings: &mut Findings<'_>) {
    let names = parameters(looped);
    if names.is_empty() {
        return;
    }
    let mut assigned = Vec::new();
    for statement in &looped.body {
        statement.visit(&mut |found| {
            if found.kind == StatementKind::Assign
                && let [target] = &found.targets[..]
                && let (Some(name), Some(value)) = (target.name(), found.values.first())
                && names.contains(&name)
                && value.mentions(name)
                && computes(value)
            {
                assigned.push((found, name));
            }
        });
    }
    for (statement, name) in assigned {
        let read_later = follows(&looped.body, statement).iter().any(|later| later.mentions(name));
        // The last value is there when the loop is over.
        let function = context.facts.functions.iter().rev().find(|function| {
            function.span.start <= looped.span.start && looped.span.end <= function.span.end
        });
        let end = function.map_or(context.facts.text.len(), |function| function.span.end as usize);
        let rest = context.facts.text.get(looped.span.end as usize..end).unwrap_or_default();
        let read_after =
            crate::query::words(rest.split("for ").next().unwrap_or(rest)).any(|word| word == name);
        if read_later || read_after {
            continue;
        }
        findings
            .report(
                statement.span,
                format!("this binds the name `{name}` to a new tensor, and does not change the parameter"),
            )
            .help(format!("write into it under `torch.no_grad()`: `{name}.copy_(…)`"));
    }
}

/// Returns `true` for arithmetic, and for methods of tensors that compute a new one.
fn computes(value: &Expression) -> bool {
    let methods = ["mul", "add", "sub", "div", "lerp", "addcmul", "addcdiv", "clamp", "copy"];
    match &value.kind {
        ExpressionKind::Binary { .. } => true,
        ExpressionKind::Call { callee, .. } => match &callee.kind {
            ExpressionKind::Attribute { name, .. } => methods.contains(&name.as_str()),
            _ => false,
        },
        _ => false,
    }
}
