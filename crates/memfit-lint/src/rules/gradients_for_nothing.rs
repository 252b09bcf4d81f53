//! # gradients-for-nothing
//!
//! ## What it does
//! Finds backward passes that compute gradients which no optimizer uses: for a teacher called with gradients
//! enabled, for a generator whose fakes are not detached for the discriminator's loss, for a target that the
//! trained model computes in evaluation mode, or that it computes before a loop that steps and keeps its
//! graph, and for parts of a model of which the optimizer holds others. A teacher is any model that a
//! training step calls on inputs without a graph, that is only evaluated, loaded, or overwritten with the
//! weights of another model, that no optimizer holds, and whose parameters nothing freezes; its name plays
//! no part. Models and optimizers may come from functions of other modules, and the passes and losses of a
//! step may be in methods. A function that gets its models from another file is told there which of them an
//! optimizer holds.
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

use memfit_source::{Call, Facts, FunctionId, Grad, Kind, Op, OpKind, Overlap, Span, Weights};

use crate::callers::is_made_by;
use crate::query::{backwards, is_detached, is_given_unknown, is_handed_on, mode_at, optimizers_of, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "gradients-for-nothing", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    teachers(context, findings);
    passes(context, findings);
    if !hides(context.facts) {
        parts(context, findings);
        targets(context, findings);
        kept_targets(context, findings);
        crate::fakes::report(context, findings);
        crate::untrained::report(context, findings);
    }
}

/// Returns `true` if the text reads or reverses gradients, or adds parameters to an optimizer later.
fn hides(facts: &Facts) -> bool {
    let reverses = |call: &Call| {
        words(facts.slice(call.callee)).any(|word| {
            let lower = word.to_ascii_lowercase().replace('_', "");
            ["gradientreversal", "gradientreversallayer", "gradreverse", "reverselayerf"]
                .contains(&lower.as_str())
        })
    };
    facts.reads_gradients
        || facts.calls.iter().any(|call| call.is_method("add_param_group") || reverses(call))
        || facts
            .classes
            .iter()
            .any(|class| class.bases.iter().any(|base| base.ends_with("autograd.Function")))
}

/// Operations that set parameters to require no gradients, or may do so.
fn freezing(facts: &Facts) -> impl Iterator<Item = &Op> {
    facts.ops.iter().filter(|op| matches!(op.kind, OpKind::RequireGrad { on } if on != Some(true)))
}

/// Finds backward passes into models whose gradients no optimizer uses.
fn passes(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let differentiates = facts.ops.iter().any(|op| op.kind == OpKind::AutogradGrad);
    if hides(facts)
        || differentiates
        || words(&facts.text).any(|word| word == "requires_grad" || word == "requires_grad_")
    {
        return;
    }
    let optimizers: Vec<&Call> =
        facts.calls.iter().filter(|call| matches!(call.result.kind, Kind::Optimizer)).collect();
    let exact = |made: &&Call| made.result.weights.is_exact() && !is_given_unknown(facts, made);
    if optimizers.is_empty() || !optimizers.iter().all(exact) {
        return;
    }
    for (op, backward) in backwards(facts) {
        // A second pass through the graph may serve its gradients, as in per-sample clipping.
        if op.via.is_some() || backward.managed || backward.retain.is_some() || op.site.looped.is_none() {
            continue;
        }
        for (index, pass) in backward.passes.iter().enumerate().filter(|(_, pass)| facts.are_parameters(pass))
        {
            let holders: Vec<_> = optimizers
                .iter()
                .filter(|made| facts.overlap(&made.result.weights, pass) != Overlap::No)
                .collect();
            let why = match holders.as_slice() {
                [] => "no optimizer holds them",
                [made]
                    if facts.covers(pass, &made.result.weights)
                        && facts.exceeds(pass, &made.result.weights)
                        && leaves_out(facts, made, pass)
                        && !cuts_inside(context) =>
                {
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
                    && forward.via != Some(FunctionId::MODULE)
                    && forward.site.order < op.site.order
                    && forward.weights == *pass
            });
            let Some(forward) = forward else { continue };
            let name = forward.own_receiver();
            // Its optimizer is what leaves a part out.
            let made = holders.first().filter(|_| why.contains("a part")).map(|made| made.span);
            let found = findings.report(
                made.unwrap_or(forward.span),
                format!("gradients of `{name}` are computed for nothing: {why}"),
            );
            if made.is_some() {
                found.label(forward.span, "the whole model is called here");
            }
            found
                .label(op.span, "by this backward pass")
                .help(format!(
                    "call it under `torch.no_grad()`, detach its output, or freeze it: `{name}.requires_grad_(False)`"
                ));
        }
    }
}

/// Finds optimizers that hold some parts of a model of which all are trained through.
fn parts(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let optimizers: Vec<&Call> =
        facts.calls.iter().filter(|call| matches!(call.result.kind, Kind::Optimizer)).collect();
    let inside = |outer: Span, span: Span| outer.start < span.start && span.end <= outer.end;
    // Names of the models whose parameters an optimizer is given.
    let given = |optimizer: &Call| -> Vec<&str> {
        let listed = facts.calls.iter().filter(|call| inside(optimizer.span, call.span));
        let listed = listed.filter(|call| call.is_method("parameters") && call.arguments.is_empty());
        listed.filter_map(|call| Some(facts.slice(call.receiver.as_ref()?.span))).collect()
    };
    let all: Vec<Vec<&str>> = optimizers.iter().map(|optimizer| given(optimizer)).collect();
    let known = optimizers.iter().zip(&all).all(|(optimizer, given)| {
        let first = optimizer.arguments.first().map_or("", |first| facts.slice(first.value_span));
        !given.is_empty()
            && first.matches("parameters()").count() == given.len()
            && !is_given_unknown(facts, optimizer)
    });
    if !known || freezing(facts).next().is_some() {
        return;
    }
    let names: Vec<&str> = all.into_iter().flatten().collect();
    let mut models: Vec<&str> = names.iter().filter_map(|name| Some(name.rsplit_once('.')?.0)).collect();
    models.sort_unstable();
    models.dedup();
    for model in models {
        parts_of(context, model, &names, &optimizers, findings);
    }
}

/// Finds the optimizers that hold some parts of one model. `names` are of all that optimizers hold.
fn parts_of(
    context: &Context<'_>,
    model: &str,
    names: &[&str],
    optimizers: &[&Call],
    findings: &mut Findings<'_>,
) {
    let facts = context.facts;
    let of_model =
        |name: &&&str| name.strip_prefix(model).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let all: Vec<&str> = names.iter().filter(of_model).copied().collect();
    let held: Vec<(&str, &str)> = all.iter().filter_map(|name| name.rsplit_once('.')).collect();
    let is_own = |(_, part): &(&str, &str)| *part == "module" || *part == "model";
    // The model itself, and parts of its parts.
    let others = held.len() < all.len() || held.iter().any(|(of, _)| *of != model);
    let made = optimizers.iter().find(|made| facts.slice(made.span).contains(&format!("{model}.")));
    let Some(made) = made.filter(|_| !others && model != "self" && !held.iter().any(is_own)) else { return };
    let frozen = words(model).any(|word| context.project.frozen.contains(word));
    let passed = facts.ops.iter().find_map(|op| {
        // In the training phase, a pass of unknown mode is one with gradients.
        let is_it = op.kind == OpKind::Forward && op.receiver == model && op.site.grad != Grad::Off;
        let called = facts.calls.iter().find(|call| is_it && call.span == op.span)?;
        let mut trained = backwards(facts);
        let (pass, _) = trained.find(|(_, pass)| pass.loss.graph.overlaps(&called.result.graph))?;
        Some((op, pass))
    });
    let (Some((forward, pass)), false) = (passed, frozen) else { return };
    let is_said = |at: Span| {
        let mut own = findings.found.iter().filter(|found| found.rule.name == RULE.name);
        own.any(|found| found.span == at || found.labels.iter().any(|label| label.span == at))
    };
    if is_said(made.span) || is_said(forward.span) {
        return;
    }
    // Another part of the model is in the text of its class, or is used in this one.
    let prefix = format!("{model}.");
    let is_part = |name: &str| !held.iter().any(|(_, part)| *part == name);
    let listed = facts.parts(&forward.weights).find(|part| is_part(part)).map(str::to_owned);
    let used = || {
        let arguments = facts.calls.iter().flat_map(|call| &call.arguments);
        let receivers = facts.calls.iter().filter_map(|call| {
            let of_model = ["parameters", "modules", "named_parameters", "children"];
            call.receiver.as_ref().filter(|_| of_model.iter().any(|name| call.is_method(name)))
        });
        let spans = arguments.map(|argument| argument.value_span).chain(receivers.map(|of| of.span));
        let names = spans.filter_map(|span| facts.slice(span).strip_prefix(&prefix));
        let layered = |name: &&str| LAYERED.contains(name) && is_part(name);
        names.map(|name| name.split('.').next().unwrap_or(name)).find(layered).map(str::to_owned)
    };
    let (what, advice) = match listed.or_else(used) {
        Some(other) => (
            format!("`{model}.{other}`"),
            format!(
                "give the optimizer its parameters, or freeze it: `{model}.{other}.requires_grad_(False)`"
            ),
        ),
        None if held.iter().all(|(_, part)| is_head(part)) && is_pretrained(facts, forward) => (
            format!("the rest of `{model}`"),
            format!(
                "freeze it: call `{model}.requires_grad_(False)`, and `requires_grad_(True)` on the parts that are trained"
            ),
        ),
        None => return,
    };
    findings
        .report(
            made.span,
            format!("gradients of {what} are computed for nothing: the optimizer holds only other parts of `{model}`"),
        )
        .label(pass.span, "by this backward pass")
        .label(forward.span, "the whole model is called here")
        .help(advice);
}

/// Attributes that models have for their parts with most of the parameters.
const LAYERED: &[&str] = &[
    "backbone",
    "encoder",
    "features",
    "trunk",
    "base",
    "body",
    "stem",
    "base_model",
    "feature_extractor",
    "embedding",
    "decoder",
    "head",
    "classifier",
    "fc",
];

/// Returns `true` for the name of a part that stands behind the others of its model, or beside them.
fn is_head(part: &str) -> bool {
    let lower = part.rsplit('.').next().unwrap_or(part).to_ascii_lowercase();
    ["head", "decoder", "classifier", "adapter", "proj", "prompt", "lora"]
        .iter()
        .any(|word| lower.contains(word))
        || lower == "fc"
}

/// Returns `true` for a model that a library makes with weights of its own: it has more than a head.
fn is_pretrained(facts: &Facts, forward: &Op) -> bool {
    facts.calls.iter().any(|call| {
        let path = call.path.as_deref().unwrap_or_default();
        (path.ends_with(".from_pretrained")
            || path.starts_with("torchvision.models.")
            || path == "timm.create_model")
            && facts.covers(&call.result.weights, &forward.weights)
    })
}

/// Finds passes in evaluation mode that compute the target of the same model's loss.
fn targets(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let graph_of =
        |op: &Op| facts.calls.iter().find(|call| call.span == op.span).map(|call| &call.result.graph);
    for (pass, backward) in backwards(facts).filter(|(pass, _)| pass.via.is_none()) {
        let forwards = || {
            facts.ops.iter().filter(|op| {
                op.kind == OpKind::Forward
                    && op.via.is_none()
                    && op.site.function == pass.site.function
                    && op.site.order < pass.site.order
                    && op.site.grad == Grad::On
                    && graph_of(op).is_some_and(|graph| backward.loss.graph.overlaps(graph))
            })
        };
        for target in forwards() {
            let mode = mode_at(facts, &target.site, &target.receiver);
            let evaluates = |op: &Op| {
                mode_at(facts, &op.site, &op.receiver).is_some_and(|mode| mode.kind == OpKind::EvalMode)
            };
            let restored = facts.ops.iter().any(|op| {
                op.kind == OpKind::TrainMode
                    && op.receiver == target.receiver
                    && op.site.looped == target.site.looped
                    && (target.site.order..pass.site.order).contains(&op.site.order)
            });
            let predicts = forwards().any(|op| op.receiver == target.receiver && !evaluates(op));
            let is_set = mode.is_some_and(|mode| mode.site.looped == target.site.looped);
            if evaluates(target)
                && is_set
                && restored
                && predicts
                && !context.may_be_without_grad(target.site.function)
            {
                findings
                    .report(target.span, format!("gradients of this pass of `{}` in evaluation mode are added to those of the prediction: a target needs none", target.receiver))
                    .label(pass.span, "by this backward pass")
                    .help("call it under `torch.no_grad()`, or detach its output");
            }
        }
    }
}

/// Finds passes before a loop that each backward pass of the loop goes through again, with
/// `retain_graph=True`, though the loop changes the weights of the model: a target that was computed once,
/// such as a return or an advantage.
fn kept_targets(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let graph_of =
        |op: &Op| facts.calls.iter().find(|call| call.span == op.span).map(|call| &call.result.graph);
    for (pass, backward) in backwards(facts).filter(|(pass, _)| pass.via.is_none()) {
        let Some(looped) = pass.site.looped.filter(|_| backward.retain.is_some()) else { continue };
        let is_stepped = |op: &Op| {
            facts.ops_in(looped).any(|step| {
                matches!(step.kind, OpKind::Step { .. })
                    && facts.overlap(&step.weights, &op.weights) == Overlap::Yes
            })
        };
        let target = facts.ops.iter().find(|op| {
            op.kind == OpKind::Forward
                && op.via.is_none()
                && op.site.function == pass.site.function
                && op.site.order < pass.site.order
                && op.site.grad == Grad::On
                && !facts.within(&op.site, looped)
                && graph_of(op).is_some_and(|graph| backward.loss.graph.overlaps(graph))
                && is_stepped(op)
        });
        let Some(target) = target else { continue };
        if findings.found.iter().any(|found| found.span == target.span) {
            continue;
        }
        findings
            .report(
                target.span,
                format!(
                    "each iteration differentiates through this pass of `{}` again, though the step changes its weights: a target needs no gradients",
                    target.receiver
                ),
            )
            .label(pass.span, "by this backward pass")
            .label(facts.looped(looped).header, "in this loop")
            .help("call it under `torch.no_grad()`, or detach its output");
    }
}

/// Finds teachers and target networks, by their names, through which a loss is differentiated.
fn teachers(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let lines: Vec<&str> = facts.text.lines().collect();
    let is_frozen = |op: &Op, name: &str| {
        context.project.frozen.contains(name)
            || freezing(facts).any(|set| {
                facts.overlap(&set.weights, &op.weights) == Overlap::Yes
                    || words(&set.receiver).any(|word| word == name)
            })
    };
    let held = |receiver: &str, op: &Op| optimizers_of(facts, receiver, &op.weights).next().is_some();
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
        // Another function of this text may call it, and hand its output on.
        let is_here = op.via != Some(FunctionId::MODULE);
        let is_known =
            findings.found.iter().any(|found| found.rule.name == RULE.name && found.span == op.span);
        if op.kind != OpKind::Forward
            || !is_here
            || op.site.grad != Grad::On
            || !named
            || is_known
            || is_detached(facts, op.span)
            || !is_handed_on(facts, op)
        {
            continue;
        }
        let at = op.call.unwrap_or(op.span);
        let Some(call) = facts.calls.iter().find(|call| call.span == at) else { continue };
        let trains = backwards(facts).find(|(pass, backward)| {
            pass.site.function == op.site.function
                && pass.via.is_none()
                && pass.site.order > op.site.order
                && backward.loss.graph.contains(&call.result.graph)
        });
        let model = op.receiver.strip_suffix(".forward").unwrap_or(&op.receiver);
        let function = facts.function(op.site.function);
        // A caller that trains another model differentiates what the function returns.
        let by_callers = || {
            let given = context.given_model(op.site.function, model);
            given.is_some_and(|given| given.loose && given.built && !given.held && !given.frozen)
                && function.returned.contains(&call.result.graph)
                && context.is_differentiated_by_callers(op.site.function)
        };
        if trains.is_none() && !by_callers() {
            continue;
        }
        // Whoever built a teacher may have frozen it.
        // The caller of a function that gets its teacher is searched for what freezes it, too.
        let is_given = function.parameters.iter().any(|name| name == last);
        let is_built =
            lower.contains("target") || is_given || lines.iter().any(|line| is_made_by(line, last));
        if held(model, op)
            || !is_built
            || is_frozen(op, last)
            || context.may_be_without_grad(op.site.function)
        {
            continue;
        }
        let found = findings
            .report(op.span, format!("gradients of `{model}` are computed for nothing: it is not trained"));
        if let Some((pass, _)) = trains {
            found.label(pass.span, "by this backward pass");
        }
        found.help("call it under `torch.no_grad()`, or detach its output");
    }
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

/// Returns `true` if an optimizer is not given all parts of a model: several of them may be all, unless the
/// model's class lists others.
fn leaves_out(facts: &Facts, optimizer: &Call, model: &Weights) -> bool {
    let text = facts.slice(optimizer.span);
    let is_missing = |part: &str| !words(text).any(|word| word == part);
    text.matches(".parameters()").count() < 2 || facts.parts(model).any(is_missing)
}
