//! # missing-zero-grad
//!
//! ## What it does
//! Finds training loops that never clear the gradients, and training steps in functions and methods whose
//! optimizer nothing in the file clears, while it may clear others. A function that gets its optimizer from
//! another file is judged by what that file clears. Found as well: an optimizer whose step also uses the
//! gradients that another optimizer's loss left, such as a discriminator's after the generator's.
//!
//! ## Why
//! `backward()` accumulates into the existing gradients. Measured: after the same batch twice they are 2
//! times as large, after five times 5 times. Without `zero_grad()`, each step uses the sum of all gradients
//! since the beginning.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//!     optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [zero_grad](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html)

use memfit_source::{Call, Facts, Flags, FunctionId, LoopId, Op, OpKind, Overlap};

use crate::query::{backward, repeats, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "missing-zero-grad", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    of_others(context, findings);
    of_other_losses(context, findings);
    of_branches(context, findings);
    never_cleared(context, findings);
    // Gradients that are cleared anywhere in the file may be those of this loop.
    let clears = |op: &&Op| matches!(op.kind, OpKind::ZeroGrad { .. } | OpKind::WriteGrad { .. });
    if facts.ops.iter().filter(clears).any(|op| op.via.is_none())
        || facts.text.contains(".grad = None")
        || facts.text.contains("zero_grad")
        || facts.text.contains("grad.zero_")
    {
        return;
    }
    // Accelerate skips `zero_grad()` within a window, and leaves it to the loop.
    let is_left = facts.withs.iter().any(|with| context.slice(with.item).contains("accelerator.accumulate("));
    let mut seen: Vec<LoopId> = Vec::new();
    for step in &facts.ops {
        let plain = matches!(step.kind, OpKind::Step { closure: false, .. })
            && !step.deep
            && (!step.site.managed || is_left)
            && step.via.is_none();
        let Some(looped) = step.site.looped.filter(|id| plain && !seen.contains(id)) else { continue };
        // A called function clears the gradients of its own optimizer.
        let of_others = |op: &Op| {
            op.receiver != step.receiver && facts.overlap(&op.weights, &step.weights) == Overlap::No
        };
        if !facts.ops.iter().filter(clears).all(of_others) {
            continue;
        }
        let ops = || facts.ops_in(looped);
        let passes = || ops().filter_map(backward);
        // Accelerate and Fabric leave the gradients to the loop; other frameworks clear them.
        let cleared = ops().any(|op| {
            let callee = context.slice(op.span).split("backward").next().unwrap_or_default();
            let known = callee.contains("accelerator") || callee.contains("fabric");
            backward(op).is_some_and(|pass| pass.managed) && !known
        });
        // A call of unknown code with the optimizer as an argument may clear them.
        let handed = facts.calls.iter().any(|call| {
            facts.within(&call.site, looped)
                && call.span != step.span
                && !call.is_followed
                && !call.is_method("scale")
                && !(call.is_method("step") || call.is_method("unscale_"))
                && call.arguments.iter().any(|argument| context.slice(argument.value_span) == step.receiver)
        });
        // So may the function that computes the loss, if no model call is visible.
        let unseen = !facts.ops_in(looped).any(|op| op.kind == OpKind::Forward)
            && passes().any(|pass| pass.loss.is(Flags::OPAQUE) && !pass.loss.graph.is_known());
        let remade = facts.looped(looped).assigned.contains(&step.receiver);
        if passes().count() == 0 || cleared || handed || unseen || remade {
            continue;
        }
        seen.push(looped);
        if findings.found.iter().any(|found| found.span == step.span) {
            continue;
        }
        findings
            .report(
                step.span,
                format!("`{}` uses the sum of all gradients so far: they are never cleared", step.receiver),
            )
            .label(facts.looped(looped).header, "in this loop")
            .help(format!("call `{}.zero_grad()` after the step", step.receiver));
    }
}

/// Finds optimizers of a loop that clears the gradients of other models only.
fn of_others(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let is_clear = |op: &&Op| matches!(op.kind, OpKind::ZeroGrad { .. } | OpKind::WriteGrad { .. });
    if facts.text.contains(".grad = None") || facts.text.contains("grad.zero_") {
        return;
    }
    let mut seen: Vec<&str> = Vec::new();
    for step in facts.ops.iter().filter(|op| op.via.is_none() && !op.deep && !op.site.managed) {
        let plain = matches!(step.kind, OpKind::Step { closure: false, .. }) && step.weights.is_exact();
        let Some(looped) = step.site.looped.filter(|_| plain && !seen.contains(&step.receiver.as_str()))
        else {
            continue;
        };
        let apart = |op: &Op| {
            op.receiver != step.receiver && facts.overlap(&op.weights, &step.weights) == Overlap::No
        };
        let trained = facts.ops_in(looped).any(|op| {
            matches!(op.kind, OpKind::Backward(_))
                && facts.overlap(&op.weights, &step.weights) == Overlap::Yes
        });
        let handed = handed(context, step, looped).next().is_some();
        if facts.ops_in(looped).any(|op| is_clear(&op))
            && facts.ops.iter().filter(is_clear).all(apart)
            && trained
            && !handed
        {
            seen.push(&step.receiver);
            report_sum(
                context,
                findings,
                (step, looped),
                "only those of other models are cleared",
                "before its backward pass",
            );
        }
    }
}

/// Calls within a loop that get a step's optimizer as an argument, besides those of a scaler.
fn handed<'c>(context: &Context<'c>, step: &Op, looped: LoopId) -> impl Iterator<Item = &'c Call> {
    let facts = context.facts;
    facts.calls.iter().filter(move |call| {
        facts.within(&call.site, looped)
            && !["step", "scale", "unscale_"].iter().any(|way| call.is_method(way))
            && call.arguments.iter().any(|argument| context.slice(argument.value_span) == step.receiver)
    })
}

/// Reports a step that uses the sum of all gradients so far, for a reason, and where to clear them.
fn report_sum(
    context: &Context<'_>,
    findings: &mut Findings<'_>,
    (step, looped): (&Op, LoopId),
    why: &str,
    place: &str,
) {
    findings
        .report(step.span, format!("`{}` uses the sum of all gradients so far: {why}", step.receiver))
        .label(context.facts.looped(looped).header, "in this loop")
        .help(format!("call `{}.zero_grad()` {place}", step.receiver));
}

/// Finds a step in one branch of an `if`, where the gradients are cleared in the other branch only, which
/// steps as well: the paths with and without a scaler.
fn of_branches(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    if facts.text.contains(".grad = None") || facts.text.contains("grad.zero_") {
        return;
    }
    let steps = || facts.ops.iter().filter(|op| matches!(op.kind, OpKind::Step { closure: false, .. }));
    for step in steps().filter(|op| !op.deep && op.via.is_none() && !op.site.managed) {
        let Some(looped) = step.site.looped.filter(|_| step.site.guard.is_some()) else { continue };
        let is_own = |op: &Op| {
            op.receiver == step.receiver || facts.overlap(&op.weights, &step.weights) != Overlap::No
        };
        let is_clear =
            |op: &&Op| matches!(op.kind, OpKind::ZeroGrad { .. } | OpKind::WriteGrad { .. }) && is_own(op);
        let is_other = |op: &Op| {
            op.site.function == step.site.function
                && facts.within(&op.site, looped)
                && facts.are_alternatives(&op.site, &step.site)
        };
        let is_cleared = facts.ops.iter().any(|op| is_clear(&op));
        if !is_cleared || !facts.ops.iter().filter(is_clear).all(is_other) {
            continue;
        }
        let both_step = steps().any(|op| op.receiver == step.receiver && is_other(op));
        let own_pass = facts.ops_in(looped).any(|op| {
            backward(op).is_some_and(|pass| !pass.managed)
                && op.site.function == step.site.function
                && op.site.order < step.site.order
                && !is_other(op)
        });
        // Unknown code with the optimizer as an argument may clear the gradients.
        let handed = handed(context, step, looped).any(|call| !call.is_followed);
        if !both_step || !own_pass || handed || facts.looped(looped).assigned.contains(&step.receiver) {
            continue;
        }
        let why = "they are cleared in the other branch only";
        report_sum(context, findings, (step, looped), why, "after the step");
    }
}

/// Finds optimizers whose step also uses the gradients of another optimizer's loss: a discriminator that the
/// generator's loss went through, and that is not cleared after it.
fn of_other_losses(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let is_step = |op: &Op| matches!(op.kind, OpKind::Step { .. }) && op.site.looped.is_some();
    if facts.ops.iter().filter(|op| is_step(op)).count() < 2
        || facts.ops.iter().any(|op| matches!(op.kind, OpKind::RequireGrad { .. }))
        || facts.text.contains(".grad = None")
        || facts.text.contains("grad.zero_")
        || facts.text.contains("requires_grad")
    {
        return;
    }
    for step in &facts.ops {
        let plain = matches!(step.kind, OpKind::Step { closure: false, .. })
            && step.weights.is_exact()
            && !step.deep
            && step.via.is_none()
            && !step.site.managed;
        let Some(looped) = step.site.looped.filter(|_| plain) else { continue };
        // Operations of an iteration in order, from the one after the step on.
        let here = |op: &&Op| op.site.looped == Some(looped) && op.site.function == step.site.function;
        let mut ops: Vec<&Op> = facts.ops.iter().filter(here).collect();
        ops.sort_by_key(|op| (op.site.order <= step.site.order, op.site.order));
        let is_step = |op: &Op| matches!(op.kind, OpKind::Step { .. });
        let next_step = |at: usize| ops[at..].iter().find(|op| is_step(op));
        let reaches = |op: &Op| {
            let through = |weights| facts.overlap(weights, &step.weights) == Overlap::Yes;
            backward(op).is_some_and(|pass| through(&op.weights) || pass.passes.iter().any(through))
        };
        let clears = |op: &Op| {
            matches!(op.kind, OpKind::ZeroGrad { .. } | OpKind::WriteGrad { .. })
                && facts.overlap(&op.weights, &step.weights) != Overlap::No
        };
        let passes: Vec<usize> = (0..ops.len()).filter(|at| reaches(ops[*at])).collect();
        let own = passes.iter().any(|at| next_step(*at).is_some_and(|next| next.span == step.span));
        // Passes before the step in the same iteration may share their gradients with it on purpose.
        let foreign = passes.iter().find(|at| {
            ops[**at].site.order > step.site.order
                && next_step(**at).is_some_and(|next| {
                    next.span != step.span && facts.overlap(&next.weights, &step.weights) == Overlap::No
                })
                && !ops[**at..].iter().any(|op| clears(op))
        });
        let Some(foreign) = foreign.filter(|_| own).map(|at| ops[*at]) else { continue };
        // Branches may alternate between the two.
        if ops.iter().any(|op| is_step(op) && op.site.guard != step.site.guard)
            || foreign.site.guard != step.site.guard
            || findings.found.iter().any(|found| found.span == step.span)
        {
            continue;
        }
        findings
            .report(
                step.span,
                format!("`{}` also uses the gradients of another optimizer's loss", step.receiver),
            )
            .label(foreign.span, "this backward pass leaves them")
            .help(format!("call `{}.zero_grad()` before its own backward pass", step.receiver));
    }
}

/// Finds optimizers that step in a function, and that no line of the file clears: each that it clears is
/// another one, which steps, too.
fn never_cleared(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let is_clear = |op: &&Op| matches!(op.kind, OpKind::ZeroGrad { .. } | OpKind::WriteGrad { .. });
    if facts.text.contains(".grad = None") || facts.text.contains("grad.zero_") {
        return;
    }
    let is_step = |op: &&Op| matches!(op.kind, OpKind::Step { closure: false, .. });
    let steps: Vec<&Op> = facts.ops.iter().filter(is_step).collect();
    for step in steps.iter().filter(|op| !op.site.managed && op.via != Some(FunctionId::MODULE)) {
        let name = step.receiver.as_str();
        let root = words(name).next().unwrap_or_default();
        let last = words(name).last().unwrap_or_default();
        let function = facts.function(step.site.function);
        let is_given = function.parameters.iter().any(|parameter| parameter == root && root != "self");
        // The callers of a function know the optimizer that they give it.
        let has_callers = facts.calls_of(step.site.function).next().is_some();
        let known = match (is_given, has_callers) {
            (true, true) => false,
            (true, false) => context.given_uncleared(step.site.function, name),
            (false, _) => !name.contains(['(', '[']) && is_made(context, step),
        };
        // A test steps once.
        let is_once = step.site.looped.is_none() && crate::evaluation::is_tested(facts, step.site.function);
        if !known
            || is_once
            || !repeats(context, &step.site)
            || findings.found.iter().any(|found| found.span == step.span)
        {
            continue;
        }
        let here = |op: &&Op| op.site.function == step.site.function;
        // Gradients that are computed once do not add up.
        let again = |op: &&Op| {
            op.site.order < step.site.order
                && step.site.looped.is_none_or(|looped| facts.within(&op.site, looped))
        };
        let mut passes = facts.ops.iter().filter(here).filter(again).filter_map(backward).peekable();
        // The function that computes the loss may clear them, if no model call is visible.
        let sees = facts.ops.iter().filter(here).any(|op| op.kind == OpKind::Forward);
        let seen = |pass: &memfit_source::Backward| {
            !pass.managed && (sees || !pass.loss.is(Flags::OPAQUE) || pass.loss.graph.is_known())
        };
        let trained = passes.peek().is_some() && passes.all(seen);
        // Other optimizers, by their names.
        let of_another = |clear: &Op| {
            clear.receiver != name
                && steps.iter().any(|other| other.receiver == clear.receiver)
                && facts.overlap(&clear.weights, &step.weights) != Overlap::Yes
        };
        let cleared = !facts.ops.iter().filter(is_clear).all(of_another)
            || words_before_zero_grad(&facts.text).any(|word| word == last)
            || !name.starts_with("self.") && name.contains('.')
            || context.project.cleared.contains(last) && name.starts_with("self.");
        let handed = facts.calls.iter().any(|call| {
            let is_own =
                ["step", "scale", "unscale_", "update", "backward"].iter().any(|way| call.is_method(way));
            let callee = context.slice(call.callee).to_ascii_lowercase();
            let given = call.arguments.iter().any(|argument| context.slice(argument.value_span) == name);
            // `np.zeros(…)` and `other_optimizer.zero_grad()` are known.
            let is_of_library = call
                .path
                .as_deref()
                .is_some_and(|path| ["torch.", "numpy.", "builtins."].iter().any(|of| path.starts_with(of)));
            let is_known = is_of_library || facts.ops.iter().any(|op| op.span == call.span);
            call.site.function == step.site.function
                && call.span != step.call.unwrap_or(step.span)
                && (given && !is_own && call.function.is_none()
                    || call.function.is_none()
                        && !is_known
                        && ["zero", "reset", "clear"].iter().any(|word| callee.contains(word)))
        });
        if !trained || cleared || handed {
            continue;
        }
        findings
            .report(
                step.span,
                format!("`{name}` uses the sum of all gradients so far: they are never cleared"),
            )
            .help(format!("call `{name}.zero_grad()` after the step"));
    }
}

/// Returns `true` for `opt_g, opt_d = model.make_optimizers()`.
fn makes_several(facts: &Facts, call: &Call) -> bool {
    let last = words(facts.slice(call.callee)).last().unwrap_or_default();
    last.to_ascii_lowercase().contains("optim")
        && facts.bound_to(call.span).is_some_and(|targets| targets.contains(','))
}

/// Names on which `zero_grad` is called in a text.
fn words_before_zero_grad(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("zero_grad").map(|(at, _)| {
        let before = text[..at].trim_end_matches('.');
        before.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
    })
}

/// Returns `true` if the file makes an optimizer of PyTorch under this name, outside of the function that
/// steps, or clears another optimizer in the same function.
fn is_made(context: &Context<'_>, step: &Op) -> bool {
    let facts = context.facts;
    let makers = || facts.calls.iter().filter(|call| facts.is_bound_to(call.span, step.own_receiver()));
    // The function that steps, where a caller runs it.
    let own = facts.ops.iter().find(|op| op.span == step.span && op.via.is_none()).unwrap_or(step);
    let known = |call: &Call| {
        (call.site.function != own.site.function || own.site.looped.is_some())
            && call.site.looped.is_none()
            && (call.path.as_deref().is_some_and(|path| path.starts_with("torch.optim."))
                || makes_several(facts, call))
            && (call.site.function != step.site.function
                || step.site.looped.is_some() && call.site.looped.is_none())
    };
    let beside = facts.ops.iter().any(|op| {
        matches!(op.kind, OpKind::ZeroGrad { .. })
            && op.site.function == step.site.function
            && op.receiver != step.receiver
            && facts
                .ops
                .iter()
                .any(|other| matches!(other.kind, OpKind::Step { .. }) && other.receiver == op.receiver)
    });
    match makers().next() {
        Some(_) => makers().all(known),
        None => beside,
    }
}
