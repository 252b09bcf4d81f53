//! # hook-in-loop
//!
//! ## What it does
//! Finds hooks that are registered in every iteration of a training or evaluation loop, and are never
//! removed.
//!
//! ## Why
//! A hook stays until its handle is removed. Each iteration adds one more: all of them run in every pass from
//! then on, and each keeps what its function refers to. Measured: after three iterations, a pass runs 3
//! hooks.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     model[0].register_forward_hook(keep)
//!     criterion(model(x), y).backward()
//! ```
//! Use instead:
//! ```python
//! handle = model[0].register_forward_hook(keep)
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//! handle.remove()
//! ```
//!
//! ## Fix safety
//! No fix: statements have to change places.
//!
//! ## References
//! - [register_forward_hook](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_forward_hook)

use memfit_source::{Call, FunctionId, LoopId};

use crate::query::{is_batch_loop, is_guarded, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "hook-in-loop", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

const REGISTERS: &[&str] = &[
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
];

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let registers = |call: &&Call| REGISTERS.iter().any(|name| call.is_method(name));
    for hook in facts.calls.iter().filter(registers) {
        if let Some(looped) =
            batch_loop(context, hook, hook.receiver.as_ref().map(|of| context.slice(of.span)))
        {
            report(context, hook, looped, findings);
            continue;
        }
        // A function that registers, for a model that it is given, and returns no handle.
        let id = hook.site.function;
        let function = facts.function(id);
        let removes = context.slice(function.span).contains("remove(");
        // `copy = make_model()` in the function
        let makes = hook.receiver.as_ref().is_some_and(|of| {
            words(context.slice(of.span)).next().is_some_and(|root| {
                function.binds.iter().any(|name| name == root)
                    && facts
                        .calls
                        .iter()
                        .any(|call| call.site.function == id && facts.bound_to(call.span) == Some(root))
            })
        });
        if id == FunctionId::MODULE
            || function.name.ends_with("__init__")
            || !hook.is_statement
            || removes
            || makes
        {
            continue;
        }
        let from_loop = facts.calls_of(id).find_map(|call| {
            let given = call.arguments.first().map(|first| context.slice(first.value_span));
            batch_loop(context, call, given).map(|looped| (call, looped))
        });
        if let Some((call, looped)) = from_loop {
            report(context, call, looped, findings);
        }
    }
}

/// Loop over batches whose iterations all run a call on something that the loop does not make.
fn batch_loop(context: &Context<'_>, call: &Call, of: Option<&str>) -> Option<LoopId> {
    let facts = context.facts;
    let looped = facts.enclosing(call.site.looped).find(|id| is_batch_loop(facts, *id))?;
    let guarded = is_guarded(facts, &call.site, looped);
    let around = facts.looped(looped);
    let made = of.and_then(|text| words(text).next()).is_some_and(|root| {
        facts.enclosing(call.site.looped).any(|id| {
            let names = facts.looped(id);
            let is_inner = id != looped;
            names.assigned.iter().any(|name| name == root)
                || !is_inner && names.targets.iter().any(|name| name == root)
        })
    });
    let removed = context.slice(around.span).contains("remove(");
    (!guarded && !made && !removed).then_some(looped)
}

fn report(context: &Context<'_>, call: &Call, looped: LoopId, findings: &mut Findings<'_>) {
    if findings.found.iter().any(|found| found.span == call.span && found.rule.name == RULE.name) {
        return;
    }
    findings
        .report(call.span, "each iteration registers one more hook, and all of them stay")
        .label(context.facts.looped(looped).header, "in this loop")
        .help("register it once before the loop, or remove its handle at the end of the iteration");
}
