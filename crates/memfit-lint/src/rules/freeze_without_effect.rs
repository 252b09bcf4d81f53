//! # freeze-without-effect
//!
//! ## What it does
//! Finds `requires_grad` that is set on a module, and names that are misspelt: `p.require_grad = False`.
//!
//! ## Why
//! Python creates an attribute of any name. A module has no `requires_grad` of its own, and a tensor no
//! `require_grad`: nothing is frozen, the parameters keep their gradients, and the optimizer its state for
//! them. Measured: after `model.requires_grad = False`, 2 of 2 parameters require gradients; after
//! `model.requires_grad_(False)`, 0 of 2.
//!
//! ## Example
//! ```python
//! model.requires_grad = False
//! ```
//! Use instead:
//! ```python
//! model.requires_grad_(False)
//! ```
//!
//! ## Fix safety
//! No fix: the parameters are frozen after it, which changes the results.
//!
//! ## References
//! - [requires_grad_](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.requires_grad_)

use memfit_source::{Expression, ExpressionKind, Kind, OpKind, Statement, StatementKind, StoreKind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};
use crate::tree::{bound_names, tree};

pub(super) static RULE: Rule =
    Rule { name: "freeze-without-effect", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

const RIGHT: &str = "requires_grad";

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let text = &context.facts.text;
    if !text.contains(".requires_grad =") && !crate::query::words(text).any(is_misspelt) {
        return;
    }
    for statement in &tree(context) {
        in_statement(context, statement, &mut Vec::new(), findings);
    }
}

fn in_statement<'a>(
    context: &Context<'_>,
    statement: &'a Statement,
    parameters: &mut Vec<&'a str>,
    findings: &mut Findings<'_>,
) {
    let known = parameters.len();
    if statement.kind == StatementKind::Loop
        && statement.values.iter().any(|over| context.slice(over.span).contains("parameters("))
    {
        parameters.extend(statement.targets.iter().flat_map(bound_names));
    }
    if statement.kind == StatementKind::Assign
        && let [target] = &statement.targets[..]
        && let ExpressionKind::Attribute { of, name } = &target.kind
        && let Some(value) = statement.values.first()
    {
        if name == RIGHT {
            of_module(context, statement, of, value, findings);
        } else if is_misspelt(name) && is_parameter(context, of, parameters) {
            findings
                .report(
                    target.span,
                    format!(
                        "`{name}` is no attribute of parameters: they still require gradients, or do not"
                    ),
                )
                .help(format!("set `{RIGHT}`"));
        }
    }
    for suite in statement.suites() {
        for inner in suite {
            in_statement(context, inner, parameters, findings);
        }
    }
    parameters.truncate(known);
}

/// Returns `true` for a name that is one or two letters away from the right one.
fn is_misspelt(name: &str) -> bool {
    // `_requires_grad` is a name of its own, in libraries.
    name != RIGHT
        && !name.starts_with('_')
        && name != "requires_grad_"
        && name.contains("grad")
        && strsim::levenshtein(name, RIGHT) <= 2
        || name == "requires_gradient"
        || name == "require_gradient"
}

/// Returns `true` for a variable of a loop over parameters, and for a tensor with a name of one:
/// `layer.weight`.
fn is_parameter(context: &Context<'_>, of: &Expression, parameters: &[&str]) -> bool {
    let is_looped = of.name().is_some_and(|name| parameters.contains(&name));
    let last = of.last_name().unwrap_or_default();
    is_looped
        || ["weight", "bias", "param", "parameter"].contains(&last)
        || is_module(context, context.slice(of.span))
}

/// Returns `true` for an expression that is a model at some place of the text.
fn is_module(context: &Context<'_>, text: &str) -> bool {
    let facts = context.facts;
    // Another branch may make a parameter of that name.
    let set = || facts.stores.iter().filter(|store| store.kind == StoreKind::Assign && store.target == text);
    if set().any(|store| matches!(store.value.kind, Kind::Tensor)) {
        return false;
    }
    let runs = facts.ops.iter().any(|op| {
        op.via.is_none()
            && op.receiver == text
            && matches!(op.kind, OpKind::Forward | OpKind::EvalMode | OpKind::TrainMode)
    });
    runs || facts.calls.iter().any(|call| {
        call.result.is_module()
            && call.path.as_deref().is_some_and(makes_models)
            && facts.bound_to(call.span) == Some(text)
    }) || set().any(|store| store.value.is_module())
}

/// Returns `true` for the full name of what makes layers or models in libraries.
fn makes_models(path: &str) -> bool {
    let last = path.rsplit('.').next().unwrap_or_default();
    path.starts_with("torch.nn.") && last.starts_with(char::is_uppercase) && last != "Parameter"
        || path.starts_with("torchvision.models.")
        || path == "timm.create_model"
        || path.ends_with(".from_pretrained")
}

fn of_module(
    context: &Context<'_>,
    statement: &Statement,
    of: &Expression,
    value: &Expression,
    findings: &mut Findings<'_>,
) {
    let text = context.slice(of.span);
    // A class may define the attribute.
    let is_own = text == "self" || context.facts.text.contains("def requires_grad(");
    if is_own || of.path().is_none() || !is_module(context, text) {
        return;
    }
    let set = context.slice(value.span);
    findings
        .report(
            statement.span,
            format!("a module has no `{RIGHT}` of its own: the parameters of `{text}` are as they were"),
        )
        .help(format!("call `{text}.requires_grad_({set})`"));
}
