//! # method-not-called
//!
//! ## What it does
//! Finds methods of a training that are named and not called: `model.eval`, and `state_dict` in a checkpoint.
//!
//! ## Why
//! A name without parentheses does nothing, and raises nothing: the model stays in training mode, the
//! optimizer does not step. A `state_dict` that is saved without a call is the method: the file has the whole
//! object in it, and `load_state_dict` cannot take it when the training is resumed. Measured: after
//! `model.eval`, the model is in training mode; a loaded `scheduler.state_dict` raises 1 error.
//!
//! ## Example
//! ```python
//! model.eval
//! torch.save({"model": model.state_dict(), "scheduler": scheduler.state_dict}, path)
//! ```
//! Use instead:
//! ```python
//! model.eval()
//! torch.save({"model": model.state_dict(), "scheduler": scheduler.state_dict()}, path)
//! ```
//!
//! ## Fix safety
//! No fix: the call changes the results.
//!
//! ## References
//! - [Saving and loading](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html)

use memfit_source::{Expression, ExpressionKind, Statement, StatementKind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};
use crate::tree::tree;

pub(super) static RULE: Rule =
    Rule { name: "method-not-called", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

/// Methods that a statement of a training calls for what they do.
const METHODS: &[&str] = &[
    "eval",
    "train",
    "zero_grad",
    "step",
    "backward",
    "cuda",
    "synchronize",
    "empty_cache",
    "barrier",
    "detach_",
];

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let text = &context.facts.text;
    let ends = |word: &str| {
        text.match_indices(word).any(|(at, _)| {
            let rest = &text[at + word.len()..];
            text[..at].ends_with('.')
                && !rest.starts_with(['(', '_'])
                && !rest.starts_with(char::is_alphanumeric)
        })
    };
    if !METHODS.iter().chain(&["state_dict"]).any(|name| ends(name)) {
        return;
    }
    for statement in &tree(context) {
        statement.visit(&mut |found| in_statement(context, found, findings));
    }
}

fn in_statement(context: &Context<'_>, statement: &Statement, findings: &mut Findings<'_>) {
    if statement.kind == StatementKind::Expression
        && let [expression] = &statement.values[..]
        && let ExpressionKind::Attribute { of, name } = &expression.kind
        && METHODS.contains(&name.as_str())
        && of.path().is_some()
    {
        findings
            .report(expression.span, format!("`{name}` is not called: this does nothing"))
            .help(format!("call `{}()`", context.slice(expression.span)));
    }
    // A file, or a dictionary that is saved, has the values.
    let whole = context.slice(statement.span);
    let is_saved = |text: &str| {
        ["save", "checkpoint", "ckpt", "state"].iter().any(|word| text.to_ascii_lowercase().contains(word))
    };
    if !whole.contains("state_dict") || !is_saved(whole.split("state_dict").next().unwrap_or_default()) {
        return;
    }
    for expression in statement.expressions() {
        expression.visit(&mut |part| in_display(context, part, findings));
    }
}

/// Finds `state_dict` without a call among the items of a dictionary, and as an argument of `torch.save` or
/// `dict`.
fn in_display(context: &Context<'_>, part: &Expression, findings: &mut Findings<'_>) {
    let items: Vec<&Expression> = match &part.kind {
        ExpressionKind::Other(items) if context.slice(part.span).starts_with('{') => items.iter().collect(),
        ExpressionKind::Call { callee, arguments } => {
            let name = callee.last_name().unwrap_or_default();
            let saves = name == "save" || name.starts_with("save_") || name == "dict";
            arguments.iter().filter(|_| saves).map(|argument| &argument.value).collect()
        }
        _ => return,
    };
    for item in items {
        if let ExpressionKind::Attribute { of, name } = &item.kind
            && name == "state_dict"
            && of.path().is_some()
            && !context.facts.text.contains(&format!("{} =", context.slice(item.span)))
        {
            findings
                .report(item.span, "the checkpoint gets the method, and not the state: it cannot be loaded")
                .help(format!("save `{}()`", context.slice(item.span)));
        }
    }
}
