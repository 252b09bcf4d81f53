//! # collective-on-one-rank
//!
//! ## What it does
//! Finds collectives of `torch.distributed` that only one process calls, by itself or in a function.
//!
//! ## Why
//! A collective returns when all processes of the group have called it. Under `if rank == 0:` the others
//! never do: the first process waits until the timeout of the group, with all its memory, and the run ends
//! with an error. Measured with two processes and a timeout of 2 seconds: the call on one rank ends with an
//! error; the same call on both returns.
//!
//! ## Example
//! ```python
//! if rank == 0:
//!     dist.all_reduce(loss)
//!     print(loss.item())
//! ```
//! Use instead:
//! ```python
//! dist.all_reduce(loss)
//! if rank == 0:
//!     print(loss.item())
//! ```
//!
//! ## Fix safety
//! No fix: statements have to change places.
//!
//! ## References
//! - [Collective functions](https://docs.pytorch.org/docs/stable/distributed.html#collective-functions)

use memfit_source::{Call, Facts, FunctionId, Guard, GuardId};

use crate::query::words;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "collective-on-one-rank", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

const COLLECTIVES: &[&str] = &[
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
];

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in &facts.calls {
        let Some(name) = collective(context, call) else { continue };
        let Some(guard) = facts.guards_of(call.site.guard).find(|id| on_one_rank(context, *id)) else {
            continue;
        };
        if answered(context, call, guard) || crate::evaluation::is_tested(facts, call.site.function) {
            continue;
        }
        findings
            .report(
                call.span,
                format!("only one process calls `{name}`: it waits for the others, which never do"),
            )
            .label(facts.guard(guard).test, "this holds on one rank")
            .help("call it on all ranks, outside of the condition");
    }
}

/// Name of the collective that a call is, or that the function of this file that it calls runs in any case.
fn collective<'a>(context: &'a Context<'_>, call: &'a Call) -> Option<&'a str> {
    let facts = context.facts;
    if let Some(name) = of_library(call) {
        return Some(name);
    }
    let function = call.function.filter(|id| *id != FunctionId::MODULE)?;
    // What a decorated function does is not certain: a cache may have its result.
    if !facts.function(function).decorators.is_empty() {
        return None;
    }
    let inner = facts.calls.iter().find(|inner| {
        inner.site.function == function && inner.site.guard.is_none() && of_library(inner).is_some()
    })?;
    // A function that returns early on its own condition is not followed.
    let body = facts.slice(facts.function(function).span);
    let before = &body[..(inner.span.start - facts.function(function).span.start) as usize];
    let leaves = before.lines().any(|line| line.trim_start().starts_with("return"));
    of_library(inner).filter(|_| !leaves)
}

/// Collective of the default group.
fn of_library(call: &Call) -> Option<&str> {
    let (module, name) = call.path.as_deref()?.rsplit_once('.')?;
    let known = module == "torch.distributed" && COLLECTIVES.contains(&name);
    // The group may be given by its position.
    let first = if name.ends_with("barrier") { 0 } else { 2 };
    let may_have_group = call.keyword("group").is_some()
        || call.arguments.iter().filter(|given| given.name.is_none()).count() > first;
    (known && !may_have_group && !call.is_open()).then_some(name)
}

/// Returns `true` for a branch that one process of all takes: `rank == 0`, `is_main_process()`.
fn on_one_rank(context: &Context<'_>, id: GuardId) -> bool {
    let guard = context.facts.guard(id);
    says_one_rank(context.slice(guard.test)) == Some(!guard.negated)
}

/// `true` for a test that holds on one rank, `false` for one that holds on all others.
fn says_one_rank(test: &str) -> Option<bool> {
    let parts: Vec<&str> = test.split(" and ").collect();
    if words(test).any(|word| word == "or") {
        return None;
    }
    parts.iter().find_map(|part| {
        let part = part.trim().trim_matches(['(', ')', ' ']);
        let (part, is_not) = part.strip_prefix("not ").map_or((part, false), |rest| (rest.trim(), true));
        // `local_rank == 0` holds on one process of each node.
        let is_rank = |text: &str| {
            let last = text.trim().trim_end_matches("()").rsplit('.').next().unwrap_or_default();
            ["rank", "global_rank", "local_rank", "get_rank", "world_rank", "proc_id"].contains(&last)
                || last.trim_end_matches('(').ends_with("get_rank")
        };
        let compared = |sign: &str| {
            part.split_once(sign).is_some_and(|(rank, number)| is_rank(rank) && number.trim() == "0")
        };
        let named = part.trim_end_matches("()").rsplit('.').next().unwrap_or_default();
        let is_main =
            ["is_main_process", "is_master", "is_main", "is_rank_zero", "is_primary", "main_process"]
                .contains(&named);
        let one = if compared("==") || is_main {
            true
        } else if compared("!=") || compared(">") && !part.contains(">=") {
            false
        } else {
            return None;
        };
        // Together with another condition, the opposite is not that of all others.
        let holds = one != is_not;
        (holds || parts.len() == 1).then_some(holds)
    })
}

/// Returns `true` if other processes may call a collective at the same time: in another branch on the rank.
fn answered(context: &Context<'_>, call: &Call, guard: GuardId) -> bool {
    let facts = context.facts;
    let own: &Guard = facts.guard(guard);
    facts.calls.iter().any(|other| {
        let is_other = other.span != call.span && other.site.function == call.site.function;
        is_other
            && collective(context, other).is_some()
            && facts.guards_of(other.site.guard).any(|id| {
                let test = context.slice(facts.guard(id).test);
                facts.guard(id).test != own.test && says_one_rank(test).is_some() && !on_one_rank(context, id)
                    || facts.guard(id).test == own.test && facts.guard(id).negated != own.negated
            })
    }) || waits_elsewhere(facts, call)
}

/// Returns `true` for the second half of `if rank != 0: barrier()`, `if rank == 0: barrier()` around what the
/// first process does before the others, when the first half is in another form.
fn waits_elsewhere(facts: &Facts, call: &Call) -> bool {
    let text = facts.slice(facts.function(call.site.function).span);
    let text = if call.site.function == FunctionId::MODULE { &facts.text } else { text };
    text.contains("rank not in [-1, 0]") || text.contains("rank not in (-1, 0)")
}
