//! # empty-cache-in-loop
//!
//! ## What it does
//! Finds `torch.cuda.empty_cache()` in every iteration of a loop over batches, in a training step that is a
//! method, and in a helper that a training loop calls. Tests and measurements of times or memory are left
//! alone.
//!
//! ## Why
//! It returns cached blocks to the driver, and the next iteration allocates them again: `cudaFree`,
//! `cudaMalloc` and a synchronisation in each iteration. Measured: four iterations ask the driver 4 times,
//! and 1 time without it. The call makes no more memory available to PyTorch than it had.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//!     torch.cuda.empty_cache()
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//! ```
//!
//! ## Fix safety
//! Unsafe: another process on the same GPU may need the memory that is returned.
//!
//! ## References
//! - [Memory management](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)

use memfit_source::{Call, Facts, FunctionId, LoopId, Op, OpKind};

use crate::query::{catches_all, catches_memory, is_batch_loop};
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "empty-cache-in-loop", severity: Severity::Warning, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    in_steps(context, findings);
    for call in facts.calls.iter().filter(|call| empties(call) || empties_within(context, call)) {
        // The step of a loop is in it, though its micro-batches may be in a loop of their own.
        let steps = |looped: memfit_source::LoopId| {
            let is_own = |op: &Op| op.site.looped == Some(looped) && op.via.is_none() && !op.deep;
            facts.ops.iter().any(|op| is_own(op) && matches!(op.kind, OpKind::Step { .. }))
        };
        let is_batch = |looped: &memfit_source::LoopId| is_batch_loop(facts, *looped) || steps(*looped);
        let Some(looped) = call.site.looped.filter(is_batch) else { continue };
        // A helper may free memory between runs that are measured.
        if !empties(call) && !steps(looped) {
            continue;
        }
        // In an error handler it is appropriate; under a condition it does not run in every iteration.
        let guarded = facts.guards_of(call.site.guard).any(|id| {
            // Code after `if done: break` runs in each iteration.
            let is_rest = facts.guard(id).is_rest && facts.guard(id).what.counted.is_none();
            facts.guard(id).looped == Some(looped)
                && !is_rest
                && !device_test(context.slice(facts.guard(id).test))
        });
        if guarded || call.site.handler.is_some() || measures(facts, call.site.function, looped) {
            continue;
        }
        // A search for the largest batch size empties the cache before each attempt.
        let searches = facts.handlers.iter().any(|handler| {
            facts.within(&handler.site, looped)
                && (catches_memory(handler) || catches_all(handler) && handler.reads_message)
        });
        if searches {
            continue;
        }
        // A loop around the loop over batches, here or in a called function, iterates over epochs or phases.
        // Its own step may add up the gradients of micro-batches in a loop.
        let is_step = |inner: memfit_source::LoopId| steps(looped) && facts.trains(inner);
        let nested = facts
            .ops
            .iter()
            .filter_map(|op| op.site.looped)
            .filter(|id| facts.looped(*id).parent == Some(looped));
        let micro = nested.clone().next().is_some() && nested.clone().all(is_step);
        // What steps by itself is a loop over batches, whatever loops it has besides.
        let outer = !micro && !steps(looped) && facts.loops.iter().any(|inner| inner.parent == Some(looped))
            || facts.ops_in(looped).any(|op| op.deep && matches!(op.kind, OpKind::Step { .. }));
        if outer {
            continue;
        }
        findings
            .report(
                call.span,
                "the cache is emptied in every iteration, so every iteration allocates its memory again",
            )
            .label(facts.looped(looped).header, "in this loop")
            .help("remove it: PyTorch reuses cached memory")
            .fix(
                facts
                    .whole_lines(call.span)
                    .and_then(|line| alone(context, call.span).then(|| Edit::delete(line)))
                    .and_then(|edit| Fix::unsafe_("Leave it out", vec![edit])),
            );
    }
}

/// Returns `true` for a loop of a test, and for one that measures and trains nothing: it empties the cache so
/// that each measurement begins alike.
fn measures(facts: &Facts, function: FunctionId, looped: LoopId) -> bool {
    let here = |call: &&Call| facts.within(&call.site, looped);
    let named = |names: &'static [&str]| {
        facts
            .calls
            .iter()
            .filter(here)
            .any(|call| call.path.as_deref().is_some_and(|path| names.contains(&path)))
    };
    let trains = facts.ops_in(looped).any(|op| matches!(op.kind, OpKind::Step { .. }));
    let times = named(CLOCKS) && named(&["torch.cuda.synchronize"]);
    crate::evaluation::is_tested(facts, function) || !trains && (times || named(METERS))
}

/// Functions that tell the time.
const CLOCKS: &[&str] = &[
    "time.time",
    "time.perf_counter",
    "time.monotonic",
    "time.time_ns",
    "time.perf_counter_ns",
    "timeit.default_timer",
];

/// Functions with which a measurement of times or of memory begins.
const METERS: &[&str] = &[
    "torch.cuda.Event",
    "torch.cuda.reset_peak_memory_stats",
    "torch.cuda.reset_max_memory_allocated",
    "timeit.timeit",
    "timeit.repeat",
];

fn device_test(test: &str) -> bool {
    test.contains("is_available") || test.contains("cuda")
}

/// Returns `true` if the block contains another statement, so that removing this one leaves a valid body.
fn alone(context: &Context<'_>, span: memfit_source::Span) -> bool {
    let facts = context.facts;
    let (start, blank) = facts.line_start(span.start);
    let above = facts.text[..start as usize].lines().rev().find(|line| !line.trim().is_empty());
    above.is_some_and(|line| line.starts_with(blank) && !line.trim_end().ends_with(':'))
}

fn empties(call: &Call) -> bool {
    call.is("torch.cuda.empty_cache") || call.is("torch.cuda.memory.empty_cache")
}

/// Returns `true` for a call without results of a function that empties the cache, and does little else.
fn empties_within(context: &Context<'_>, call: &Call) -> bool {
    let facts = context.facts;
    let name = match (call.function, &call.path) {
        (Some(id), _) => facts.function(id).name.as_str(),
        (None, Some(path)) => path.rsplit('.').next().unwrap_or(path),
        _ => return false,
    };
    call.is_statement && call.arguments.is_empty() && context.project.empties.contains(name)
}

/// Functions of a file that do nothing but free memory.
pub(crate) fn emptying(facts: &Facts) -> impl Iterator<Item = String> + '_ {
    facts.calls.iter().filter(|call| empties(call)).filter_map(|call| {
        let function = facts.function(call.site.function);
        let is_short = function.class.is_none() && facts.slice(function.span).lines().count() < 12;
        let others = facts.calls.iter().any(|other| {
            other.site.function == call.site.function
                && !empties(other)
                && !other
                    .path
                    .as_deref()
                    .is_some_and(|path| path.starts_with("gc.") || path.starts_with("torch.cuda."))
        });
        (!function.name.is_empty() && is_short && !others).then(|| function.name.clone())
    })
}

/// Finds training steps of a class that empty the cache themselves.
fn in_steps(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in facts.calls.iter().filter(|call| empties(call) && call.site.looped.is_none()) {
        let guarded =
            facts.guards_of(call.site.guard).any(|id| !device_test(context.slice(facts.guard(id).test)));
        let plain = |op: &Op| {
            op.site.function == call.site.function && op.site.looped.is_none() && !op.deep && op.via.is_none()
        };
        let passes = facts.ops.iter().filter(|op| plain(op)).any(|op| op.kind.differentiates());
        let steps = facts.ops.iter().filter(|op| plain(op)).any(|op| matches!(op.kind, OpKind::Step { .. }));
        if passes && steps && !guarded && call.site.handler.is_none() {
            findings
                .report(
                    call.span,
                    "the cache is emptied in every training step, so every step allocates its memory again",
                )
                .help("remove it: PyTorch reuses cached memory");
        }
    }
}
