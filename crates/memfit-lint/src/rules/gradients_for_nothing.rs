//! # gradients-for-nothing
//!
//! ## What it does
//! Finds backward passes that compute gradients which no optimizer uses: for a teacher called with gradients
//! enabled, for a generator whose fakes are not detached for the discriminator's loss, for a frozen backbone
//! below a trained head.
//!
//! ## Why
//! The activations of that model are saved for the backward pass, and its gradients take as many bytes as its
//! parameters; neither is used. Measured with a teacher of 4 MiB: 4 MiB of gradients that nobody reads.
//!
//! ## Example
//! ```python
//! teacher = nn.Linear(4, 3)
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     loss = criterion(model(x), teacher(x))
//!     loss.backward()
//!     optimizer.step()
//! ```
//! Use instead:
//! ```python
//! teacher = nn.Linear(4, 3)
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     with torch.no_grad():
//!         target = teacher(x)
//!     loss = criterion(model(x), target)
//!     loss.backward()
//!     optimizer.step()
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [Locally disabling gradient computation](https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation)

use memfit_source::{Call, Facts, Grad, Kind, Op, OpKind, Overlap, Span, Weights};

use crate::query::{backwards, optimizers_of, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "gradients-for-nothing", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    teachers(context, findings);
    passes(context, findings);
    if !hides(&context.facts.text) {
        crate::fakes::report(context, findings);
    }
}

/// Returns `true` if the text reads gradients, or adds parameters to an optimizer later.
fn hides(text: &str) -> bool {
    ["add_param_group", ".grad.", "GradientReversal"].iter().any(|word| text.contains(word))
}

/// Finds backward passes into models whose gradients no optimizer uses.
fn passes(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    if hides(&facts.text) || ["requires_grad", "autograd.grad"].iter().any(|word| facts.text.contains(word)) {
        return;
    }
    let optimizers: Vec<&Weights> = facts
        .calls
        .iter()
        .filter(|call| matches!(call.result.kind, Kind::Optimizer))
        .map(|call| &call.result.weights)
        .collect();
    if optimizers.is_empty() || !optimizers.iter().all(|held| held.is_exact()) {
        return;
    }
    for (op, backward) in backwards(facts) {
        // A second pass through the graph may serve its gradients, as in per-sample clipping.
        if op.via.is_some() || backward.managed || backward.retain.is_some() || op.site.looped.is_none() {
            continue;
        }
        for (index, pass) in backward.passes.iter().enumerate().filter(|(_, pass)| facts.are_parameters(pass))
        {
            let holders: Vec<_> =
                optimizers.iter().filter(|held| facts.overlap(held, pass) != Overlap::No).collect();
            let why = match holders.as_slice() {
                [] => "no optimizer holds them",
                [held] if facts.covers(pass, held) && facts.exceeds(pass, held) && !cuts_inside(context) => {
                    "the optimizer holds only a part of them"
                }
                _ if is_cleared_unused(facts, op, pass, &backward.passes[index + 1..]) => {
                    "they are cleared before their optimizer steps"
                }
                _ => continue,
            };
            let forward = facts.ops.iter().rfind(|forward| {
                forward.kind == OpKind::Forward
                    && forward.site.function == op.site.function
                    && forward.via.is_none()
                    && forward.site.order < op.site.order
                    && forward.weights == *pass
            });
            let Some(forward) = forward else { continue };
            let name = &forward.receiver;
            let at: Span = forward.span;
            findings
                .report(at, format!("gradients of `{name}` are computed for nothing: {why}"))
                .label(op.span, "by this backward pass")
                .help(format!(
                    "call it under `torch.no_grad()`, detach its output, or freeze it: `{name}.requires_grad_(False)`"
                ));
        }
    }
}

/// Lines that freeze parameters.
fn freezes(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter(|(_, line)| {
        line.contains("requires_grad") && (line.contains("False") || line.contains("requires_grad("))
    })
}

/// Finds teachers and target networks, by their names, through which a loss is differentiated.
fn teachers(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let lines: Vec<&str> = facts.text.lines().collect();
    // A loop over its parameters freezes it.
    let is_frozen = |name: &str| {
        freezes(&facts.text).any(|(at, _)| {
            lines[at.saturating_sub(2)..=at].iter().any(|line| words(line).any(|word| word == name))
        })
    };
    let held = |receiver: &str| {
        let parameters = format!("{receiver}.parameters");
        optimizers_of(facts, &parameters).next().is_some()
    };
    // An optimizer of unknown parameters may hold them.
    let is_told = |call: &Call| {
        // `Adam([self.log_alpha])`
        let listed = call.arguments.first().is_some_and(|first| {
            let text = context.slice(first.value_span);
            text.starts_with('[') && !text.contains('(')
        });
        listed || call.result.weights.is_exact() || context.slice(call.span).contains(".parameters()")
    };
    if facts.calls.iter().any(|call| matches!(call.result.kind, Kind::Optimizer) && !is_told(call)) {
        return;
    }
    for op in &facts.ops {
        let last = op.receiver.rsplit('.').find(|part| *part != "forward").unwrap_or(&op.receiver);
        let lower = last.to_ascii_lowercase();
        let named = lower.contains("teacher") || lower.contains("target") || lower == "q_next";
        if op.kind != OpKind::Forward || op.via.is_some() || op.site.grad != Grad::On || !named {
            continue;
        }
        let Some(call) = facts.calls.iter().find(|call| call.span == op.span) else { continue };
        let trains = backwards(facts).find(|(pass, backward)| {
            pass.site.function == op.site.function
                && pass.via.is_none()
                && pass.site.order > op.site.order
                && backward.loss.graph.contains(&call.result.graph)
        });
        let Some((pass, _)) = trains else { continue };
        let model = op.receiver.strip_suffix(".forward").unwrap_or(&op.receiver);
        // Whoever built a teacher may have frozen it.
        let is_built = lower.contains("target") || lines.iter().any(|line| is_made_by(line, last));
        if held(model) || !is_built || is_frozen(last) || context.may_be_without_grad(op.site.function) {
            continue;
        }
        findings
            .report(op.span, format!("gradients of `{model}` are computed for nothing: it is not trained"))
            .label(pass.span, "by this backward pass")
            .help("call it under `torch.no_grad()`, or detach its output");
    }
}

/// Returns `true` for a line that binds a name to a model of a class, or to a copy of one.
fn is_made_by(line: &str, name: &str) -> bool {
    let Some((target, made)) = line.split_once('=') else { return false };
    let class = |word: &str| word.starts_with(|c: char| c.is_ascii_uppercase());
    let callee = made.split('(').next().unwrap_or_default().trim();
    words(target).any(|word| word == name)
        && (made.contains("deepcopy(") || callee.rsplit('.').next().is_some_and(class))
}

/// Returns `true` if these gradients are cleared before the next step of their optimizer, and the pass serves
/// another optimizer's step, for a model after this one. The output of this model could then be detached.
fn is_cleared_unused(facts: &Facts, op: &Op, weights: &Weights, later: &[Weights]) -> bool {
    let same = |other: &&Op| other.site.looped == op.site.looped && !other.deep;
    let order = |other: &Op| {
        // Iterations repeat: operations at the start follow those at the end.
        let at = other.site.order;
        if at > op.site.order { (0, at) } else { (1, at) }
    };
    let mut ops: Vec<&Op> = facts.ops.iter().filter(same).collect();
    ops.sort_by_key(|other| order(other));
    let Some(next) = ops.iter().find(|other| matches!(other.kind, OpKind::Step { .. })) else { return false };
    if facts.overlap(&next.weights, weights) != Overlap::No
        || !later.iter().any(|pass| facts.overlap(pass, &next.weights) == Overlap::Yes)
    {
        return false;
    }
    let first = ops.iter().find(|other| {
        matches!(other.kind, OpKind::Step { .. } | OpKind::ZeroGrad { .. })
            && facts.overlap(&other.weights, weights) != Overlap::No
    });
    first.is_some_and(|first| {
        matches!(first.kind, OpKind::ZeroGrad { .. })
            && facts.overlap(&first.weights, weights) == Overlap::Yes
    })
}

/// Returns `true` if a model of this file records only a part of its forward pass.
fn cuts_inside(context: &Context<'_>) -> bool {
    let facts = context.facts;
    let in_model = |site: &memfit_source::Site| {
        facts.function(site.function).class.is_some_and(|class| facts.class(class).is_module)
    };
    facts.calls.iter().any(|call| {
        in_model(&call.site)
            && (call.is_method("detach") || call.is_method("detach_") || call.site.grad == Grad::Off)
    })
}
