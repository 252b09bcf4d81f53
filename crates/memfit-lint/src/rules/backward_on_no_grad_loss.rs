//! # backward-on-no-grad-loss
//!
//! ## What it does
//! Finds `backward()` on a loss that was computed while gradients were off, or of detached values, and loss
//! functions that make their result of numbers, or of a detached scalar with `requires_grad=True`.
//!
//! ## Why
//! Such a loss has no graph, so `backward()` raises `RuntimeError: element 0 of tensors does not require
//! grad`. Measured: after the error, 0 of 2 parameters have a gradient. (A loss computed outside of `no_grad`
//! may go through `backward()` inside it: 2 of 2.)
//!
//! ## Example
//! ```python
//! with torch.no_grad():
//!     loss = criterion(model(x), y)
//! loss.backward()
//! ```
//! Use instead:
//! ```python
//! loss = criterion(model(x), y)
//! loss.backward()
//! ```
//!
//! ## Fix safety
//! No fix: which code belongs under `no_grad` depends on the program.
//!
//! ## References
//! - [torch.no_grad](https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html)

use memfit_source::{Call, Flags, FunctionId, Grad, Kind, Op};

use crate::query::{backwards, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "backward-on-no-grad-loss",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    made_anew(context, findings);
    handed_on(context, findings);
    of_numbers(context, findings);
    for (op, backward) in backwards(context.facts) {
        if op.via.is_some() || !backward.loss.graph.is_none() {
            continue;
        }
        let loss = context.slice(backward.loss_span);
        if backward.loss.is(Flags::DETACHED) && !backward.loss.is(Flags::NO_GRAD_BUILT) {
            findings
                .report(
                    op.span,
                    format!("`{loss}` was computed of detached values: it has no graph, and this raises `RuntimeError`"),
                )
                .help("compute the loss of values with a graph");
            continue;
        }
        if !backward.loss.is(Flags::NO_GRAD_BUILT) || depends_on_caller(context, op) {
            continue;
        }
        findings
            .report(
                op.span,
                format!(
                    "`{loss}` was computed without gradients: it has no graph, and this raises `RuntimeError`"
                ),
            )
            .help("compute the loss outside of `no_grad`");
    }
}

/// Returns `true` for a pass of a function that only its callers run without gradients, and that one of its
/// parameters chooses: they may choose not to run it.
fn depends_on_caller(context: &Context<'_>, op: &Op) -> bool {
    let facts = context.facts;
    let function = facts.function(op.site.function);
    let is_decorated = function.decorators.iter().any(|path| path.starts_with("torch."));
    let is_parameter = |word: &str| function.parameters.iter().any(|name| name == word);
    function.grad == Grad::Off
        && !is_decorated
        && facts
            .guards_of(op.site.guard)
            .any(|id| words(context.slice(facts.guard(id).test)).any(is_parameter))
}

/// Finds losses that are made trainable by force: a new tensor with `requires_grad=True` is a leaf, and its
/// backward pass reaches no parameter. The function that makes one may return it to the one that trains.
fn made_anew(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let makes = ["torch.tensor", "torch.as_tensor", "torch.autograd.Variable"];
    // What a call makes a leaf.
    let forced = |call: &Call| {
        let requires = call.keyword("requires_grad").is_some_and(|given| given.value.truth() == Some(true));
        if requires && makes.iter().any(|path| call.is(path)) {
            return facts.bound_to(call.span);
        }
        let marks = call.is_method("requires_grad_") && call.is_statement;
        call.receiver.as_ref().filter(|_| marks).map(|receiver| facts.slice(receiver.span))
    };
    for (op, backward) in backwards(facts).filter(|(op, _)| op.via.is_none()) {
        let loss = context.slice(backward.loss_span);
        let here = |call: &&Call| call.site.function == op.site.function && call.site.order < op.site.order;
        let Some(call) = facts.calls.iter().filter(here).rfind(|call| forced(call) == Some(loss)) else {
            continue;
        };
        findings
            .report(
                call.span,
                format!("`{loss}` is cut from its graph here: its backward pass reaches no parameter, and nothing is trained"),
            )
            .label(op.span, "the backward pass")
            .help("call `backward()` on the loss as it is; if it has no graph, find where that is lost");
    }
    for call in &facts.calls {
        let Some(loss) = forced(call).filter(|_| call.site.function != FunctionId::MODULE) else { continue };
        let returned = facts.function(call.site.function).returns.iter();
        let mut returned = returned.filter_map(|parts| match parts.as_slice() {
            [one] => Some(context.slice(one.span)),
            _ => None,
        });
        // What it computed of another tensor had a graph, or has lost it.
        let is_computed = call.receiver.is_none()
            || facts.calls.iter().any(|other| facts.bound_to(other.span) == Some(loss));
        if is_computed
            && returned.any(|name| name == loss)
            && context.is_differentiated_by_callers(call.site.function)
        {
            findings
                .report(
                    call.span,
                    format!("`{loss}` is cut from its graph here: the backward pass of the caller reaches no parameter, and nothing is trained"),
                )
                .help("return the loss as it is, with its graph");
        }
    }
}

/// Finds scalars of detached values that a function makes trainable by force and returns first: whoever calls
/// it differentiates a leaf.
fn handed_on(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let makes = ["torch.tensor", "torch.as_tensor", "torch.autograd.Variable"];
    let forced = facts.calls.iter().filter(|call| {
        let requires = call.keyword("requires_grad").is_some_and(|given| given.value.truth() == Some(true));
        let of_detached = call.arguments.first().is_some_and(|first| {
            let value = &first.value;
            value.is(Flags::SCALAR) && value.is(Flags::DETACHED) && !value.graph.has_passes()
        });
        requires && of_detached && makes.iter().any(|path| call.is(path))
    });
    for call in forced {
        let function = facts.function(call.site.function);
        let Some(name) = facts.bound_to(call.span).filter(|name| name.to_ascii_lowercase().contains("loss"))
        else {
            continue;
        };
        let returned = function.returned_first().any(|value| context.slice(value) == name);
        let is_said = findings.found.iter().any(|found| found.span == call.span);
        if returned && !is_said {
            findings
                .report(
                    call.span,
                    format!("`{name}` is cut from its graph here: a backward pass reaches no parameter, and nothing is trained by it"),
                )
                .help("return the loss as it is, with its graph");
        }
    }
}

/// Finds losses that the forward pass of a loss makes of numbers that it read from others.
fn of_numbers(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let makes = ["torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor"];
    let is_read = |call: &&Call| call.result.is(Flags::READ) && matches!(call.result.kind, Kind::Tensor);
    for call in facts.calls.iter().filter(is_read).filter(|call| makes.iter().any(|path| call.is(path))) {
        let function = facts.function(call.site.function);
        let is_loss = function.class.is_some_and(|class| {
            let class = facts.class(class);
            class.is_module && (class.name.ends_with("Loss") || class.name.ends_with("Criterion"))
        });
        let name = facts.bound_to(call.span).or_else(|| {
            // `loss = torch.tensor(losses).mean()`
            let outer = facts.calls.iter().find(|other| {
                other.receiver.as_ref().is_some_and(|of| of.span == call.span)
                    && ["mean", "sum"].iter().any(|way| other.is_method(way))
            })?;
            facts.bound_to(outer.span)
        });
        let Some(name) = name.filter(|_| call.result.is(Flags::READ) && call.result.graph.is_none()) else {
            continue;
        };
        let returned =
            function.returned_first().any(|value| words(context.slice(value)).any(|word| word == name));
        let again = facts.calls.iter().any(|other| {
            other.site.function == call.site.function
                && other.span != call.span
                && other.site.order > call.site.order
                && !(other.span.start <= call.span.start && call.span.end <= other.span.end)
                && facts.bound_to(other.span) == Some(name)
        });
        if is_loss && function.name.ends_with(".forward") && returned && !again {
            findings
                .report(
                    call.span,
                    format!("`{name}` is made of numbers: it has no graph, and nothing is trained by it"),
                )
                .help("keep the losses as tensors, and join them with `torch.stack(losses).mean()`");
        }
    }
}
