//! # scaler-call-missing
//!
//! ## What it does
//! Finds training with a gradient scaler without a call of `scale()` or `update()`, and optimizers that step
//! by themselves although the loss was scaled or their gradients were unscaled: the scaler would skip
//! infinite ones. A function may get the scaler from another file of the project.
//!
//! ## Why
//! Measured over three rounds: without `scale()` the first step raises ("Attempted step but _scale is None"),
//! and without `update()` the second ("has already been called since the last update").
//!
//! ## Example
//! ```python
//! scaler = torch.amp.GradScaler("cuda")
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     scaler.scale(criterion(model(x), y)).backward()
//!     scaler.step(optimizer)
//! ```
//! Use instead:
//! ```python
//! scaler = torch.amp.GradScaler("cuda")
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     scaler.scale(criterion(model(x), y)).backward()
//!     scaler.step(optimizer)
//!     scaler.update()
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [Automatic mixed precision examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html)

use memfit_source::{Call, Flags, FunctionId, Kind, Op, OpKind, Span};

use crate::query::{backward, repeats};
use crate::rule::{Context, Finding, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "scaler-call-missing", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    // Only for scalers created in this file are all uses known, and whether they are enabled.
    let made: Vec<_> = facts
        .calls
        .iter()
        .filter(|call| {
            matches!(call.result.kind, Kind::Scaler(Some(_)))
                && call.path.as_deref().is_some_and(|path| path.ends_with("GradScaler"))
        })
        .collect();
    // A metric object has an `update()` as well.
    let of_scaler = |call: &Call| of_scaler(context, call);
    let scales = facts
        .calls
        .iter()
        .any(|call| call.is_method("scale") && of_scaler(call) || call.is_method("scale_loss"));
    let updates = facts.calls.iter().any(|call| call.is_method("update") && of_scaler(call));
    // What a function gets from calls of this text is known.
    let is_given = |id: &FunctionId| {
        facts.function(*id).parameters.iter().any(|name| names_scaler(name))
            && facts.calls_of(*id).next().is_none()
    };
    // Unknown code that gets the scaler may do the rest.
    let is_passed = |call: &Call| {
        let takes = |given: &memfit_source::Argument| matches!(given.value.kind, Kind::Scaler(Some(_)));
        !call.is_followed && call.arguments.iter().any(takes)
    };
    let handed = facts.function_ids().any(|id| is_given(&id)) || facts.calls.iter().any(is_passed);
    let first = made.first().map(|call| call.span);
    // A function may get a scaler that another file makes.
    let given = made.is_empty() && handed && !context.project.scalers.off;
    if first.is_none() && !given || made.iter().any(|call| is_off(call)) {
        return;
    }
    unchecked_steps(context, first, findings);
    steps_unscaled(context, first, findings);
    let elsewhere = (handed || made.is_empty()) && context.project.scalers.updated;
    if given && !context.project.scalers.made
        || scales && (updates || elsewhere)
        || handed && !given && !made.is_empty()
    {
        return;
    }
    for step in &facts.ops {
        let plain = matches!(step.kind, OpKind::Step { scaled: true, .. }) && step.via.is_none();
        if !plain || !repeats(context, &step.site) || !scales && given {
            continue;
        }
        let (message, help) = if scales {
            ("`update()` is never called: the second step raises", "call `scaler.update()` after the step")
        } else {
            ("no loss is scaled: this raises", "call `scaler.scale(loss).backward()`")
        };
        label(findings.report(step.span, message), first).help(help);
    }
}

/// `scaler`, `self.grad_scaler`, `loss_scaler`
fn names_scaler(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    last.split('_').any(|word| ["scaler", "gradscaler"].contains(&word))
}

/// Finds steps that use scaled gradients: the loss is scaled, and the optimizer steps by itself.
fn steps_unscaled(context: &Context<'_>, made: Option<Span>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    // The step after both branches of an `if` is run after either.
    let together = |op: &Op, other: &Op| {
        let around = other.site.guard.is_none_or(|id| facts.guards_of(op.site.guard).any(|own| own == id));
        op.site.function == other.site.function
            && op.site.looped == other.site.looped
            && (around || op.site.guard == other.site.guard)
            && !other.deep
    };
    for op in &facts.ops {
        if op.via.is_some() || !backward(op).is_some_and(|pass| pass.loss.is(Flags::SCALED)) {
            continue;
        }
        let steps: Vec<&Op> = facts
            .ops
            .iter()
            .filter(|other| together(op, other) && matches!(other.kind, OpKind::Step { .. }))
            .collect();
        let unscales = facts.ops.iter().any(|other| {
            other.site.function == op.site.function && matches!(other.kind, OpKind::Unscale)
                || together(op, other) && matches!(other.kind, OpKind::Step { scaled: true, .. })
        });
        let Some(step) = steps.iter().find(|step| step.site.order > op.site.order && step.via.is_none())
        else {
            continue;
        };
        if !unscales {
            label(findings.report(step.span, "the optimizer steps with scaled gradients: they are as much too large as the loss was scaled"), made)
                .help(format!("call `scaler.step({})`", step.receiver));
        }
    }
}

/// Finds an optimizer that steps by itself after `scaler.unscale_(optimizer)`: its gradients may be infinite.
fn unchecked_steps(context: &Context<'_>, made: Option<Span>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    if ["found_inf", "isinf", "isfinite", "isnan"].iter().any(|word| facts.text.contains(word)) {
        return;
    }
    let steps = |name: &str, function: FunctionId| {
        let own = facts.ops.iter().filter(move |op| op.site.function == function && op.via.is_none());
        own.filter_map(|op| match op.kind {
            OpKind::Step { scaled, .. } => Some((op, scaled)),
            _ => None,
        })
        .filter(|(op, _)| op.receiver == name)
        .collect::<Vec<_>>()
    };
    for call in facts.calls.iter().filter(|call| call.is_method("unscale_")) {
        let (Some(optimizer), true) = (call.arguments.first(), of_scaler(context, call)) else { continue };
        let name = context.slice(optimizer.value_span);
        let found = steps(name, call.site.function);
        // The scaler steps in the same branch or in one within it; what another branch does is for itself.
        let follows = |op: &Op| {
            op.site.order > call.site.order
                && call.site.guard.is_none_or(|own| facts.guards_of(op.site.guard).any(|id| id == own))
        };
        if found.iter().any(|(op, scaled)| *scaled && follows(op)) {
            continue;
        }
        let same = |op: &Op| op.site.order > call.site.order && op.site.guard == call.site.guard;
        let Some((step, _)) = found.iter().find(|(op, _)| same(op)) else { continue };
        let message = "the scaler would skip this step after an overflow: now infinite gradients are applied";
        label(findings.report(step.span, message), made)
            .label(call.span, "the gradients are unscaled here")
            .help(format!("call `scaler.step({name})`"));
    }
}

/// Returns `true` for the call of a method of a scaler. That of another object is known by its name only.
fn of_scaler(context: &Context<'_>, call: &Call) -> bool {
    call.receiver.as_ref().is_some_and(|receiver| {
        matches!(receiver.value.kind, Kind::Scaler(_)) || names_scaler(context.slice(receiver.span))
    })
}

/// Returns `true` if the scaler is disabled, so that it needs no calls.
fn is_off(call: &Call) -> bool {
    call.is_open() || call.keyword("enabled").is_some_and(|argument| argument.value.truth() == Some(false))
}

/// Points at the call that makes the scaler, if it is in this file.
fn label(found: &mut Finding, made: Option<Span>) -> &mut Finding {
    match made {
        Some(made) => found.label(made, "the scaler is made here"),
        None => found,
    }
}

/// Adds what a file does with scalers.
pub(crate) fn add_scalers(facts: &memfit_source::Facts, scalers: &mut crate::rule::Scalers) {
    let mut makes = facts.calls.iter().filter(|call| {
        matches!(call.result.kind, Kind::Scaler(Some(_)))
            && call.path.as_deref().is_some_and(|path| path.ends_with("GradScaler"))
    });
    scalers.off |= makes.clone().any(is_off);
    scalers.made |= makes.next().is_some();
    scalers.updated |= facts.calls.iter().any(|call| {
        call.is_method("update")
            && call.receiver.as_ref().is_some_and(|receiver| {
                matches!(receiver.value.kind, Kind::Scaler(_)) || names_scaler(facts.slice(receiver.span))
            })
    });
}
