//! # optimizer-before-replacement
//!
//! ## What it does
//! Finds optimizers that are made before the parameters they hold are replaced: the model is sharded by FSDP,
//! a part of it or all of it is made anew. Finds schedulers whose optimizer is made anew as well.
//!
//! ## Why
//! An optimizer holds the parameters that it was given. FSDP puts other parameters into the model, and a new
//! layer has its own: the optimizer steps on those of before, and the model is not trained, or its new part
//! is not. A scheduler changes the learning rate of the optimizer that it was given, not of the new one.
//! Measured: after a step, 0 of 2 parameters of the new layer have changed.
//!
//! ## Example
//! ```python
//! optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
//! model.fc = torch.nn.Linear(4, 4)
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//! ```
//! Use instead:
//! ```python
//! model.fc = torch.nn.Linear(4, 4)
//! optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//! ```
//!
//! ## Fix safety
//! No fix: statements have to change places.
//!
//! ## References
//! - [FSDP](https://docs.pytorch.org/docs/stable/fsdp.html)

use memfit_source::{Call, Facts, Kind, Op, OpKind, Overlap, Span, StoreKind};

use crate::query::words;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "optimizer-before-replacement",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for optimizer in facts.calls.iter().filter(|call| makes_optimizer(facts, call)) {
        let Some(name) = facts.bound_to(optimizer.span).filter(|name| is_path(name)) else { continue };
        if !is_stepped(facts, name, optimizer) || is_extended(facts, name) {
            continue;
        }
        let Some((at, what)) = replaced(context, optimizer) else { continue };
        // Another optimizer of the same name is made after it.
        let again = facts.calls.iter().any(|call| {
            matches!(call.result.kind, Kind::Optimizer)
                && call.span.start > at.start
                && facts.bound_to(call.span) == Some(name)
        });
        if !again {
            findings
                .report(at, format!("`{name}` holds the parameters of before: {what}"))
                .label(optimizer.span, "the optimizer is made here")
                .help("make the optimizer after this");
        }
    }
    of_schedulers(context, findings);
}

/// Returns `true` for a call that makes an optimizer, perhaps one of several in a function of another file.
fn makes_optimizer(facts: &Facts, call: &Call) -> bool {
    let by_name = || {
        let callee = facts.slice(call.callee).to_ascii_lowercase();
        callee.rsplit('.').next().is_some_and(|name| name.contains("optim"))
            && call.arguments.iter().any(|argument| argument.value.is_module())
            && call.result.is_unknown()
            && facts.bound_to(call.span).is_some_and(|name| {
                let steps = |op: &Op| matches!(op.kind, OpKind::Step { .. }) && op.own_receiver() == name;
                facts.ops.iter().any(steps)
            })
    };
    matches!(call.result.kind, Kind::Optimizer) || by_name()
}

fn is_path(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.')
}

/// Returns `true` if an optimizer is stepped somewhere after it was made: by its name, or by a function that
/// gets it.
fn is_stepped(facts: &Facts, name: &str, made: &Call) -> bool {
    let steps = |op: &Op| {
        matches!(op.kind, OpKind::Step { .. })
            && (op.own_receiver() == name || op.receiver == name)
            && op.span.start > made.span.start
    };
    let given = |call: &Call| {
        call.span.start > made.span.end
            && call.arguments.iter().any(|argument| facts.slice(argument.value_span) == name)
            && !matches!(call.result.kind, Kind::Scheduler)
    };
    facts.ops.iter().any(steps) || facts.calls.iter().any(given)
}

/// Returns `true` if parameters are added to an optimizer.
fn is_extended(facts: &Facts, name: &str) -> bool {
    facts.calls.iter().any(|call| {
        call.is_method("add_param_group")
            && call.receiver.as_ref().is_some_and(|of| facts.slice(of.span) == name)
    })
}

/// Wrappers that put other parameters into a model.
fn shards(call: &Call) -> bool {
    call.path.as_deref().is_some_and(|path| {
        path.starts_with("torch.distributed")
            && (path.ends_with(".FullyShardedDataParallel") || path.ends_with(".fully_shard"))
    })
}

/// Names of models whose parameters an optimizer is given: `model` of `model.parameters()`.
fn models_of<'a>(facts: &'a Facts, optimizer: &Call) -> Vec<&'a str> {
    let Some(first) = optimizer.arguments.first() else { return Vec::new() };
    let inside = |call: &&Call| {
        first.value_span.start <= call.span.start
            && call.span.end <= first.value_span.end
            && (call.is_method("parameters") || call.is_method("named_parameters"))
    };
    let mut found: Vec<&str> = facts
        .calls
        .iter()
        .filter(inside)
        .filter_map(|call| call.receiver.as_ref())
        .map(|of| facts.slice(of.span))
        .filter(|name| is_path(name))
        .collect();
    // `make_optimizer(config, model)`
    found.extend(
        optimizer
            .arguments
            .iter()
            .filter(|argument| argument.value.is_module())
            .map(|argument| facts.slice(argument.value_span))
            .filter(|name| is_path(name)),
    );
    found
}

/// Place at which parameters of an optimizer are replaced after it was made, and how.
fn replaced(context: &Context<'_>, optimizer: &Call) -> Option<(Span, String)> {
    let facts = context.facts;
    let models = models_of(facts, optimizer);
    let later = |call: &&Call| {
        call.site.function == optimizer.site.function
            && call.site.order > optimizer.site.order
            && call.span.start > optimizer.span.end
            && call.site.looped == optimizer.site.looped
            && !facts.are_exclusive(&call.site, &optimizer.site)
    };
    let sharded = facts.calls.iter().filter(later).filter(|call| shards(call)).find_map(|call| {
        let given = call.argument(0, "module")?;
        let name = facts.slice(given.value_span);
        models.contains(&name).then(|| (call.span, format!("FSDP puts others into `{name}`")))
    });
    if sharded.is_some() {
        return sharded;
    }
    let is_new = |call: &Call| {
        call.result.is_module()
            && facts.are_parameters(&call.result.weights)
            && facts.overlap(&call.result.weights, &optimizer.result.weights) != Overlap::Yes
            && !call.arguments.iter().any(|argument| {
                words(facts.slice(argument.value_span)).any(|word| models.contains(&word))
                    && argument.value.is_module()
            })
    };
    let whole = facts.calls.iter().filter(later).find_map(|call| {
        let name = facts.bound_to(call.span).filter(|name| models.contains(name))?;
        // `deepcopy(model)`, `torch.compile(model)`
        let layer = makes_layers(call, facts);
        (layer && is_new(call)).then(|| (call.span, format!("`{name}` is made anew here")))
    });
    if whole.is_some() {
        return whole;
    }
    facts.stores.iter().find_map(|store| {
        let after = store.kind == StoreKind::Assign
            && store.site.function == optimizer.site.function
            && store.site.order > optimizer.site.order
            && store.span.start > optimizer.span.end
            && store.site.looped == optimizer.site.looped
            && !facts.are_exclusive(&store.site, &optimizer.site);
        let part = |name: &&&str| {
            store.target.strip_prefix(**name).is_some_and(|rest| rest.starts_with('.')) && **name != "self"
        };
        let model = models.iter().find(part).filter(|_| after && store.value.is_module())?;
        let call = facts.calls.iter().find(|call| call.span == store.value_span)?;
        (makes_layers(call, facts) && is_new(call))
            .then(|| (store.span, format!("this part of `{model}` is made anew")))
    })
}

/// Returns `true` for a call that makes layers of PyTorch, and for a chain of calls on one, such as
/// `nn.Linear(4, 4).to(device)`.
fn makes_layers(call: &Call, facts: &Facts) -> bool {
    facts.calls.iter().any(|other| {
        let inside = call.span.start <= other.span.start && other.span.end <= call.span.end;
        inside
            && other.path.as_deref().is_some_and(|path| {
                path.starts_with("torch.nn.")
                    && !path.contains("parallel")
                    && !path.contains("Parallel")
                    && path.rsplit('.').next().is_some_and(|last| last.starts_with(char::is_uppercase))
                    && !path.ends_with("Parameter")
                    && facts.are_parameters(&other.result.weights)
            })
    })
}

/// Finds schedulers whose optimizer is made anew, and that are stepped after that.
fn of_schedulers(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    // Those of other libraries take an optimizer first, and are named for what they are.
    let named = |call: &Call| {
        let name = facts.slice(call.callee).rsplit('.').next().unwrap_or_default();
        name.ends_with("Scheduler")
            || name.ends_with("LR")
            || name.starts_with("get_") && name.contains("schedule")
    };
    let made = |call: &&Call| {
        matches!(call.result.kind, Kind::Scheduler)
            || named(call)
                && call.arguments.first().is_some_and(|first| matches!(first.value.kind, Kind::Optimizer))
    };
    for scheduler in facts.calls.iter().filter(made) {
        let (Some(name), Some(given)) = (facts.bound_to(scheduler.span), scheduler.argument(0, "optimizer"))
        else {
            continue;
        };
        let optimizer = context.slice(given.value_span);
        if !is_path(name) || !is_path(optimizer) {
            continue;
        }
        // A method may replace what the constructor of its object made.
        let later = |call: &&Call| {
            (call.site.function == scheduler.site.function
                || facts.constructs(scheduler.site.function, call.site.function))
                && call.span.start > scheduler.span.end
                && call.site.looped == scheduler.site.looped
                && !facts.are_exclusive(&call.site, &scheduler.site)
        };
        let anew = facts.calls.iter().filter(later).find(|call| {
            matches!(call.result.kind, Kind::Optimizer) && facts.bound_to(call.span) == Some(optimizer)
        });
        let Some(anew) = anew else { continue };
        // The scheduler is made anew as well, under this name or another.
        let again = facts.calls.iter().filter(made).any(|call| {
            call.span.start > anew.span.start
                && (facts.bound_to(call.span) == Some(name)
                    || call.arguments.iter().any(|given| context.slice(given.value_span) == optimizer))
        });
        let later_step = facts.calls.iter().find(|call| {
            call.is_method("step")
                && call.site.function == anew.site.function
                && call.receiver.as_ref().is_some_and(|of| context.slice(of.span) == name)
                && call.span.start > anew.span.end
        });
        // Steps of before may have been meant for the first optimizer, as in phases of a training.
        let earlier = facts.ops.iter().any(|op| {
            [scheduler.site.function, anew.site.function].contains(&op.site.function)
                && op.span.start > scheduler.span.end
                && op.span.end < anew.span.start
                && matches!(op.kind, OpKind::Step { .. } | OpKind::Backward(_))
        });
        let Some(step) = later_step.filter(|_| !again && !earlier) else { continue };
        findings
            .report(
                anew.span,
                format!("`{name}` changes the learning rate of the optimizer of before, and not of this one"),
            )
            .label(scheduler.span, "the scheduler is made here")
            .label(step.span, "stepped here")
            .help("make the scheduler after the optimizer");
    }
}
