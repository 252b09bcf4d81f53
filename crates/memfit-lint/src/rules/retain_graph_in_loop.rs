//! # retain-graph-in-loop
//!
//! ## What it does
//! Finds `backward(retain_graph=True)` in a loop without a second pass through the graph.
//!
//! ## Why
//! The graph stays alive until the name that holds it is bound again, after the next forward pass: the
//! activations of two iterations are alive at once. Measured over four iterations: a peak of 72 MiB instead
//! of 57 MiB.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     loss = criterion(model(x), y)
//!     loss.backward(retain_graph=True)
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     loss = criterion(model(x), y)
//!     loss.backward()
//! ```
//!
//! ## Fix safety
//! Unsafe: if a later iteration does use this graph, it raises an error without the argument, and the carried
//! state needs a `detach()`.
//!
//! ## References
//! - [torch.Tensor.backward](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html)

use memfit_source::{Facts, Op, OpKind};

use crate::query::backwards;
use crate::rule::{Context, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "retain-graph-in-loop", severity: Severity::Warning, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for (op, backward) in backwards(facts) {
        let (Some(retain), Some(looped)) = (backward.retain, op.site.looped) else { continue };
        // The next iteration may use the part of the graph that was built before the loop.
        if op.deep || backward.create.is_some() || backward.has_outer_graph || backward.carried {
            continue;
        }
        // A second pass through the same graph in the iteration is the purpose of the argument.
        let again = |other: &&Op| match &other.kind {
            OpKind::Backward(second) => {
                // The graph of an iteration is gone in the next, so an earlier pass does not repeat.
                let is_over = backward.built_this_iteration
                    && second.built_this_iteration
                    && other.via.is_none()
                    && other.site.looped == op.site.looped
                    && other.site.order < op.site.order;
                second.loss_span != backward.loss_span
                    && !is_over
                    && !are_exclusive(facts, op, other)
                    && (second.loss.graph.may_share(&backward.loss.graph)
                        || takes_unknown_graph(op) && takes_unknown_graph(other))
            }
            OpKind::AutogradGrad => true,
            _ => false,
        };
        if facts.ops_in(looped).any(|other| again(&other))
            || backward.loss.graph.is_none()
                && op.via.is_none()
                && backward.loss.is(memfit_source::Flags::NO_GRAD_BUILT)
        {
            continue;
        }
        // Without a forward pass in the iteration, every iteration uses the same graph.
        let root =
            context.slice(backward.loss_span).split(|c: char| !(c.is_alphanumeric() || c == '_')).next();
        let bound = facts.enclosing(Some(looped)).any(|id| {
            let found = facts.looped(id);
            found.assigned.iter().chain(&found.targets).any(|name| Some(name.as_str()) == root)
        });
        let forward = facts.ops_in(looped).any(|other| matches!(other.kind, OpKind::Forward))
            || bound
                && backward.loss.is(memfit_source::Flags::SCALAR)
                && Some(context.slice(backward.loss_span)) == root;
        if !forward {
            continue;
        }
        let call = facts.calls.iter().find(|call| call.span == op.span);
        let fix = call
            .filter(|call| call.arguments.iter().any(|argument| argument.span == retain))
            .map(|call| facts.remove_argument(call, retain))
            .and_then(|edit| Fix::unsafe_("Let the graph go", vec![edit]));
        // What a function builds is gone when it returns, before the next iteration.
        let (message, effect) = if op.via.is_some() {
            (
                "the graph is kept after the backward pass, but never used again",
                "each iteration keeps the activations until the called function returns",
            )
        } else {
            (
                "the graph is kept into the next iteration, but never used again",
                "each iteration holds the activations of two",
            )
        };
        findings
            .report(retain, message)
            .label(facts.looped(looped).header, effect)
            .help("remove `retain_graph=True`; if a state is carried over, `detach()` it")
            .fix(fix);
    }
}

/// Returns `true` for a backward pass through models whose inputs may have a graph of their own: that of a
/// model whose code is not known, for example.
fn takes_unknown_graph(op: &Op) -> bool {
    op.weights.is_known() && !op.weights.is_exact()
}

/// Returns `true` if two operations are in different branches of one `if`.
fn are_exclusive(facts: &Facts, one: &Op, other: &Op) -> bool {
    facts.guards_of(one.site.guard).any(|a| {
        facts.guards_of(other.site.guard).any(|b| {
            let (a, b) = (facts.guard(a), facts.guard(b));
            a.test == b.test && a.negated != b.negated
        })
    })
}
