//! # unscaled-accumulation
//!
//! ## What it does
//! Finds gradient accumulation that does not divide the loss by the length of the window, or divides it by
//! another number, such as the size of a batch, over iterations or in a loop over micro-batches or the parts
//! of a batch. Fabric does not divide it; Accelerate does.
//!
//! ## Why
//! The mean over a batch of `k` micro-batches is the sum of their means divided by `k`. Without the division
//! the gradient is `k` times as large, which acts like a `k` times larger learning rate. Measured with four
//! micro-batches: 4.0 times the gradient of the whole batch.
//!
//! ## Example
//! ```python
//! for i, (x, y) in enumerate(loader):
//!     criterion(model(x), y).backward()
//!     if (i + 1) % k == 0:
//!         optimizer.step()
//!         optimizer.zero_grad()
//! ```
//! Use instead:
//! ```python
//! for i, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / k).backward()
//!     if (i + 1) % k == 0:
//!         optimizer.step()
//!         optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)

use memfit_source::{
    Backward, Call, Divisor, ExpressionKind, Facts, Flags, FunctionId, Kind, Loop, Op, OpKind, Operator,
    Residue, StatementKind, Window,
};

use crate::divisors::{divides_by, is_window};
use crate::query::{backward, backwards, step_of, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};
use crate::tree::tree;

pub(super) static RULE: Rule =
    Rule { name: "unscaled-accumulation", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    micro_steps(context, findings);
    for window in &facts.windows {
        // If gradients are cleared in each iteration, nothing accumulates.
        if !window.clears_each_iteration.is_empty()
            || window.counted.rounds == Some(1)
            || window.counted.residue == Residue::Other
        {
            continue;
        }
        // The gradients themselves or the learning rate may be divided, and a step elsewhere makes the window
        // ambiguous.
        let written = facts.ops.iter().any(|op| matches!(op.kind, OpKind::WriteGrad { clears: false, .. }));
        if written || window.steps_elsewhere || has_divided_rate(facts, window) {
            continue;
        }
        for index in &window.backwards {
            let op = &facts.ops[*index];
            let Some(found) = backward(op) else { continue };
            // Windows of several optimizers may have it.
            let is_it = |said: &crate::rule::Finding| said.span == op.span && said.rule.name == RULE.name;
            if findings.found.iter().any(is_it) {
                continue;
            }
            if op.via.is_none()
                && all_divided_alike(facts, window)
                && window.backwards.first() == Some(index)
                && let Some(by) = wrong_divisor(context, window, found)
            {
                let period = context.slice(window.counted.period);
                findings
                    .report(found.loss.divided_at.unwrap_or(op.span), format!("the loss is divided by {by}, but the window has `{period}` iterations: the gradients are not a mean"))
                    .label(op.span, "its backward pass")
                    .label(window.counted.span, "the window")
                    .help(format!("divide the loss by `{period}`"));
                continue;
            }
            let loss = &found.loss;
            if op.via.is_none()
                && !found.managed
                && !loss.is(Flags::SUMMED)
                && is_left_out(context, window, op, found)
            {
                let period = context.slice(window.counted.period);
                findings
                    .report(op.span, format!("this loss is not divided by `{period}`, as the other one of the loop is: its gradients are summed, not averaged"))
                    .label(window.counted.span, "the window")
                    .help(format!("divide the loss by `{period}`"));
                continue;
            }
            let is_followed = loss.is(Flags::SCALAR) && !loss.is(Flags::OPAQUE) && !loss.is_unknown();
            let plain = !loss.is(Flags::DIVIDED)
                && !loss.is(Flags::SUMMED)
                && !found.managed
                && op.via.is_none()
                && !is_left_to_function(context, found)
                && (is_followed || is_divided_nowhere(context, window));
            if !plain {
                continue;
            }
            let period = context.slice(window.counted.period);
            findings
                .report(op.span, format!("the gradients of `{period}` micro-batches are summed, not averaged: they are `{period}` times too large"))
                .label(window.counted.span, "the window")
                .help(format!("divide the loss by `{period}`"));
        }
    }
}

/// Returns `true` if the optimizer of a window gets a learning rate that was divided, as for losses that are
/// sums: `SGD(parameters, lr=rate / batch_size)`.
fn has_divided_rate(facts: &Facts, window: &Window) -> bool {
    let made = |call: &&Call| matches!(call.result.kind, Kind::Optimizer);
    let step = step_of(facts, window);
    let is_own = |call: &Call| facts.bound_to(call.span) == Some(step.receiver.as_str());
    // An optimizer that is made elsewhere, or gets another name, may be any of them.
    let is_known = facts.calls.iter().filter(made).any(is_own);
    let mut optimizers = facts.calls.iter().filter(made).filter(|call| !is_known || is_own(call));
    optimizers.any(|call| call.keyword("lr").is_some_and(|rate| facts.slice(rate.value_span).contains('/')))
}

/// Returns `true` if nothing that the loss of a window may come from divides by its length: what computes the
/// loss may be in a library.
fn is_divided_nowhere(context: &Context<'_>, window: &Window) -> bool {
    let facts = context.facts;
    let period = context.slice(window.counted.period);
    let name = period.split('(').next().and_then(|name| words(name).last()).unwrap_or_default();
    let first = window.backwards.first().map(|index| &facts.ops[*index]);
    // What computes the loss may be given the window.
    let is_given = facts.calls.iter().any(|call| {
        first.is_some_and(|pass| {
            pass.site.function == call.site.function && pass.site.looped == call.site.looped
        }) && call.arguments.iter().any(|argument| {
            let given = context.slice(argument.value_span);
            given == period || argument.name.as_deref().is_some_and(is_window)
        })
    });
    let is_name = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
    is_name && is_window(name) && !is_given && !divides_by(facts, &context.project.divisors, name)
}

/// Returns `true` for a loss that is made of nothing that the window's length is in, in a function that
/// divides another loss of the loop by it.
fn is_left_out(context: &Context<'_>, window: &Window, op: &Op, found: &Backward) -> bool {
    let facts = context.facts;
    let period = context.slice(window.counted.period);
    let own = context.slice(found.loss_span);
    let is_path = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    let another = || {
        backwards(facts).any(|(other, pass)| {
            other.site.function == op.site.function
                && other.span != op.span
                && facts.enclosing(other.site.looped).any(|id| Some(id) == op.site.looped)
                && context.slice(pass.loss_span) != own
        })
    };
    if window.counted.rounds.is_some() || !is_path(period) || !is_path(own) || !another() {
        return false;
    }
    let Some(length) = words(period).last().and_then(|name| name.rsplit('.').next()) else { return false };
    let body = match op.site.function {
        FunctionId::MODULE => memfit_source::Span::new(0, facts.text.len() as u32),
        id => facts.function(id).span,
    };
    let mut bindings: Vec<(Vec<String>, memfit_source::Expression)> = Vec::new();
    for outer in &tree(context) {
        outer.visit(&mut |statement| {
            let inside = body.start <= statement.span.start && statement.span.end <= body.end;
            let binds = matches!(statement.kind, StatementKind::Assign | StatementKind::Augment(_));
            if let Some(value) = statement.values.first().filter(|_| inside && binds) {
                let names = statement.targets.iter().map(|target| context.slice(target.span).to_owned());
                bindings.push((names.collect(), value.clone()));
            }
        });
    }
    let divides = |value: &memfit_source::Expression| {
        value.any(&|part| {
            matches!(&part.kind, ExpressionKind::Binary { right, operator: Operator::Divide, .. }
                if right.last_name() == Some(length))
        })
    };
    // All that the loss is made of, by the names in the function.
    let mut names = vec![own.to_owned()];
    let mut next = 0;
    while let Some(name) = names.get(next).cloned() {
        next += 1;
        for (_, value) in bindings.iter().filter(|(targets, _)| targets.contains(&name)) {
            if next > 40 || value.any(&|part| part.last_name() == Some(length)) {
                return false;
            }
            value.visit(&mut |part| {
                let path = part.path().filter(|path| !names.contains(path));
                names.extend(path.filter(|path| bindings.iter().any(|(targets, _)| targets.contains(path))));
            });
        }
    }
    let losses = bindings.iter().filter(|(targets, value)| {
        divides(value) && targets.iter().any(|target| target.to_ascii_lowercase().contains("loss"))
    });
    next > 1 && losses.count() > 0
}

/// Returns `true` if the backward passes of a window, in branches of their own, have losses with one divisor.
fn all_divided_alike(facts: &Facts, window: &Window) -> bool {
    let divisor = |index: &usize| backward(&facts.ops[*index]).map(|pass| pass.loss.divisor);
    let first = window.backwards.first().and_then(divisor);
    window.backwards.iter().all(|index| divisor(index) == first)
}

/// Divisor of a loss that is a mean, if it is not the length of the window.
fn wrong_divisor(context: &Context<'_>, window: &Window, backward: &Backward) -> Option<String> {
    let loss = &backward.loss;
    if backward.managed || loss.is(Flags::SUMMED) {
        return None;
    }
    if loss.is(Flags::OPAQUE) && !is_divided_nowhere(context, window) {
        return None;
    }
    match loss.divisor? {
        Divisor::Number(by) => {
            window.counted.rounds.filter(|rounds| by > 1 && *rounds != by).map(|_| by.to_string())
        }
        // The window may be as long as a batch is large.
        Divisor::BatchSize => {
            let period = context.slice(window.counted.period).to_ascii_lowercase();
            (!period.contains("batch")).then(|| "the size of a batch".to_owned())
        }
        // A window may be as long as the loader.
        Divisor::Length => {
            let period = context.slice(window.counted.period);
            let known = window.counted.rounds.is_some() || !period.contains("len");
            known.then(|| "the number of batches".to_owned())
        }
    }
}

/// Finds a loop over the micro-batches of a step, `for _ in range(accumulation_steps)`, whose losses are not
/// divided.
fn micro_steps(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for op in facts.ops.iter().filter(|op| op.via.is_none()) {
        let (Some(found), Some(looped)) = (backward(op), op.site.looped) else { continue };
        let inner = facts.looped(looped);
        let over = context.slice(inner.iterable);
        let counts = || words(over).filter(|word| is_window(word));
        let parts = counted_parts(facts, inner);
        let named = over.contains("range(") && counts().next().is_some()
            || iterates_parts(facts, inner.iterable)
            || parts.is_some();
        // A divisor may reach the loss through the model: `model(**batch, scale=1 / accumulation_steps)`.
        let body = context.slice(inner.span);
        let number = parts.and_then(|parts| words(parts).last());
        let divides = counts().chain(number).any(|count| {
            body.lines().any(|line| line.contains('/') && words(line).any(|word| word == count))
        });
        let steps = |other: &Op| {
            matches!(other.kind, OpKind::Step { .. })
                && other.site.function == op.site.function
                && other.site.looped == inner.parent
                && other.site.order > op.site.order
        };
        // The gradients may be divided after the loop.
        let written = facts.ops.iter().any(|other| {
            other.site.function == op.site.function
                && matches!(other.kind, OpKind::WriteGrad { clears: false, .. })
        });
        if written {
            continue;
        }
        let inside = facts.ops_in(looped).any(|other| {
            matches!(other.kind, OpKind::Step { .. } | OpKind::ZeroGrad { .. } | OpKind::WriteGrad { .. })
        });
        let loss = &found.loss;
        let is_followed = loss.is(Flags::SCALAR) && !loss.is(Flags::OPAQUE) && !loss.is_unknown();
        // What computes the loss may be given the number, or know it.
        let name = words(context.slice(found.loss_span)).next().unwrap_or_default();
        let is_given = || {
            facts.calls.iter().filter(|call| facts.is_bound_to(call.span, name)).any(|call| {
                call.arguments.iter().any(|given| words(context.slice(given.span)).any(is_window))
            })
        };
        let others = &context.project.divisors;
        let plain = !loss.is(Flags::DIVIDED)
            && !loss.is(Flags::SUMMED)
            && !found.managed
            && !is_left_to_function(context, found)
            && (is_followed
                || counts().next().is_some_and(|count| !divides_by(facts, others, count)) && !is_given());
        if named
            && !divides
            && !found.managed
            && loss.divisor == Some(Divisor::BatchSize)
            && !inside
            && facts.ops.iter().any(steps)
        {
            findings
                .report(op.span, "the loss is divided by the size of a batch, and not by the number of micro-batches: the gradients are not a mean")
                .label(inner.header, "the micro-batches of one step")
                .help("divide the loss by their number");
            continue;
        }
        if named && !divides && plain && !inside && facts.ops.iter().any(steps) {
            findings
                .report(op.span, "the gradients of the micro-batches are summed, not averaged: they are as many times too large")
                .label(inner.header, "the micro-batches of one step")
                .help("divide the loss by their number");
        }
    }
}

/// Number of the parts of a batch over which a loop counts: `k` of `for i in range(k): model(parts[i])`,
/// where `parts = x.chunk(k)`.
fn counted_parts<'a>(facts: &'a Facts, looped: &Loop) -> Option<&'a str> {
    let over = facts.slice(looped.iterable);
    let number = over.strip_prefix("range(")?.strip_suffix(')')?;
    let target = looped.targets.first()?;
    let body = facts.slice(looped.span);
    facts.calls.iter().filter(|call| call.site.function == looped.function).find_map(|call| {
        let place = match (&call.path, call.method.as_deref()) {
            (Some(path), _) if ["torch.chunk", "torch.tensor_split"].contains(&&**path) => 1,
            (None, Some("chunk" | "tensor_split")) => 0,
            _ => return None,
        };
        let chunks = facts.slice(call.argument(place, "chunks")?.value_span);
        let parts = facts.bound_to(call.span)?;
        let is_counted = number == chunks || number == format!("len({parts})");
        (is_counted && body.contains(&format!("{parts}[{target}]"))).then_some(chunks)
    })
}

/// Returns `true` if a function of the text computes a loss and has to do with the length of the window: what
/// it calls may divide.
fn is_left_to_function(context: &Context<'_>, pass: &Backward) -> bool {
    let facts = context.facts;
    let name = words(context.slice(pass.loss_span)).next().unwrap_or_default();
    let made = facts.calls.iter().filter(|call| facts.is_bound_to(call.span, name));
    made.filter_map(|call| call.function)
        .filter(|id| *id != FunctionId::MODULE)
        .any(|id| words(context.slice(facts.function(id).span)).any(is_window))
}

/// Returns `true` for a loop over the parts of a batch: `zip(images.chunk(k), labels.chunk(k))`.
fn iterates_parts(facts: &Facts, over: memfit_source::Span) -> bool {
    let splits = |call: &&Call| {
        call.is_method("chunk")
            || call.is_method("split")
                && !call
                    .receiver
                    .as_ref()
                    .is_some_and(|of| matches!(of.value.kind, memfit_source::Kind::Str(_)))
            || call.is("torch.chunk")
            || call.is("torch.split")
    };
    let text = facts.slice(over);
    facts.calls.iter().filter(splits).any(|call| {
        let inside = over.start <= call.span.start && call.span.end <= over.end;
        inside || facts.bound_to(call.span).is_some_and(|name| words(text).any(|word| word == name))
    })
}
