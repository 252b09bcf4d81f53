//! # compile-in-loop
//!
//! ## What it does
//! Finds `torch.compile` in a loop over batches, and in a loop over epochs that compiles the same model again
//! in each of them.
//!
//! ## Why
//! Each iteration wraps the model again, and the compiled code is looked up or compiled again. Measured over
//! three iterations: with one backend for all of them, the model is compiled 1 time; with a backend created
//! in each iteration (a `partial`, a `lambda`), 3 times.
//!
//! ## Example
//! ```python
//! for x in loader:
//!     fast = torch.compile(model)
//!     fast(x)
//! ```
//! Use instead:
//! ```python
//! fast = torch.compile(model)
//! for x in loader:
//!     fast(x)
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [torch.compile](https://docs.pytorch.org/docs/stable/generated/torch.compile.html)

use memfit_source::{Call, Facts, IterableKind, LoopId};

use crate::query::{is_guarded, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "compile-in-loop", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in facts.calls.iter().filter(|call| call.is("torch.compile")) {
        // A function that compiles may be called by the loop.
        let around = facts.loops_around(&call.site);
        let found = around.iter().find_map(|(site, looped)| {
            let over_batches = facts.over_batches(*looped);
            let is_same = site.function == call.site.function;
            let outside = is_same || call.site.guard.is_none() && is_outside(facts, call);
            let again = outside && (over_batches || compiles_again(facts, call, *looped));
            (again && !is_guarded(facts, site, *looped)).then_some((*looped, over_batches))
        });
        if let Some((looped, over_batches)) = found {
            let (what, over) = if over_batches { ("iteration", "batches") } else { ("epoch", "epochs") };
            findings
                .report(call.span, format!("the model is compiled in every {what}"))
                .label(facts.looped(looped).header, format!("in this loop over {over}"))
                .help("compile it once, before the loop");
        }
    }
}

/// Returns `true` if a function compiles what is there before it is called: an attribute of its object, or a
/// name of the module.
fn is_outside(facts: &Facts, call: &Call) -> bool {
    let function = facts.function(call.site.function);
    let root = call.arguments.first().and_then(|given| words(facts.slice(given.value_span)).next());
    root.is_some_and(|root| {
        root == "self" && !function.is_constructor()
            || root != "self" && !function.binds.iter().chain(&function.parameters).any(|name| name == root)
    })
}

/// Returns `true` for a loop around a loop over batches, in which nothing makes what is compiled anew, such
/// as the model of each fold.
fn compiles_again(facts: &Facts, call: &Call, looped: LoopId) -> bool {
    let Some(model) = call.arguments.first().map(|given| facts.slice(given.value_span)) else { return false };
    let found = facts.looped(looped);
    let inner = facts
        .loops
        .iter()
        .any(|inner| inner.parent == Some(looped) && matches!(inner.iterable_kind, IterableKind::Loader(_)));
    // `self.net` of `self.net.step`; `model = torch.compile(model)` wraps what it has wrapped before.
    let made = facts.bound_to(call.span);
    let holds = |bound: &String| {
        made != Some(bound.as_str())
            && model.strip_prefix(bound.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let is_path = model.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    inner && is_path && !found.assigned.iter().chain(&found.targets).any(holds)
}
