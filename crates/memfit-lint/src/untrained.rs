//! Models that no optimizer holds and that a training step calls with gradients on: teachers, reference
//! models, frozen encoders whose parameters still require gradients.

use memfit_source::{Call, Facts, Grad, Graph, Kind, Op, OpKind, Overlap, Span, StoreKind};

use crate::callers::{freezes, may_hold_parts, optimizers};
use crate::passes::is_pass;
use crate::query::{backwards, is_detached, is_given_unknown, is_handed_on, optimizers_of, words};
use crate::rule::{Context, Findings};

/// Reports passes of models that are not trained, on inputs without a graph.
pub(crate) fn report(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    // Lightning runs the forward pass of a module in its training step.
    let recorded = |op: &&Op| {
        let function = facts.function(op.site.function);
        op.site.grad == Grad::On
            || op.site.grad == Grad::Unknown
                && function.name.ends_with(".forward")
                && trains_parts(facts, function.class)
    };
    for op in facts.ops.iter().filter(recorded).filter(|op| is_pass(context, op)) {
        let model = op.receiver.strip_suffix(".forward").unwrap_or(&op.receiver);
        let at = op.call.unwrap_or(op.span);
        let known = findings.found.iter().any(|found| found.span == at || found.span == op.span);
        let Some(call) = facts.calls.iter().find(|call| call.span == at).filter(|_| !known) else { continue };
        // A gradient may have to reach the inputs.
        let feeds = call.arguments.iter().any(|argument| argument.value.graph.is_certain());
        // In a forward pass of a Lightning module, what it is given; a loss gets what models computed.
        let function = facts.function(op.site.function);
        let by_parts = function.name.ends_with(".forward") && trains_parts(facts, function.class);
        let derived = || {
            call.arguments.iter().any(|argument| {
                let name = context.slice(argument.value_span);
                !function.parameters.iter().any(|parameter| parameter == name)
            })
        };
        if by_parts && derived() || !is_handed_on(facts, op) {
            continue;
        }
        if feeds || model == "self" || call.is_statement || is_dropped_at_once(facts, op, call) {
            continue;
        }
        let Some(trained) = training_step(context, op) else { continue };
        if !(is_untrained(context, op, model) || is_copied(facts, op, model) && reaches_loss(facts, op, call))
            || is_trained_or_frozen(context, op, model)
            || context.may_be_without_grad(op.site.function)
        {
            continue;
        }
        let found = findings.report(
            at,
            format!("`{model}` is not trained, and its activations are saved for gradients that nobody uses"),
        );
        found.help(format!("call it under `torch.no_grad()`, or freeze it: `{model}.requires_grad_(False)`"));
        if let Some(span) = trained {
            found.label(span, "the backward pass of this training step");
        }
    }
}

/// Returns `true` for an output that is detached in the same expression, or bound to its own detached value:
/// the graph is gone before anything else is computed.
fn is_dropped_at_once(facts: &Facts, op: &Op, call: &Call) -> bool {
    let rest = &facts.text[(call.span.end as usize).min(facts.text.len())..];
    let next = rest.lines().nth(1).unwrap_or_default().trim();
    let rebound = facts.bound_to(call.span).is_some_and(|name| {
        next.strip_prefix(name).is_some_and(|rest| {
            rest.trim_start().starts_with('=') && rest.contains(&format!("{name}.detach()"))
        })
    });
    is_detached(facts, op.span) || is_detached(facts, call.span) || rest.starts_with(".data") || rebound
}

/// Backward pass of the training step that an operation belongs to; `Some(None)` if a framework or another
/// file runs it.
#[expect(clippy::option_option, reason = "a step that others run has no backward pass in the text")]
fn training_step(context: &Context<'_>, op: &Op) -> Option<Option<Span>> {
    let facts = context.facts;
    let function = facts.function(op.site.function);
    let passes = |other: &&Op| matches!(other.kind, OpKind::Backward(_)) && other.via.is_none();
    let same = |other: &&Op| {
        other.site.function == op.site.function
            && other.site.order > op.site.order
            && other.site.looped == op.site.looped
    };
    // What is computed of the output may be detached before.
    let output = op.call.unwrap_or(op.span);
    let output = facts.calls.iter().find(|call| call.span == output).map(|call| &call.result.graph);
    let reaches = |pass: &Op, graph: &Graph| match &pass.kind {
        OpKind::Backward(backward) => backward.loss.graph.may_share(graph),
        _ => false,
    };
    if let Some(pass) = facts.ops.iter().filter(passes).find(same) {
        let mut later = facts.ops.iter().filter(passes).filter(same);
        let is_reached = output.is_none_or(|output| later.any(|pass| reaches(pass, output)));
        return is_reached.then_some(Some(pass.span));
    }
    let name = function.name.rsplit('.').next().unwrap_or_default();
    let is_managed = function.class.is_some_and(|class| facts.class(class).is_managed);
    let steps = ["compute_loss", "training_step"].contains(&name)
        || name == "forward" && trains_parts(facts, function.class);
    if is_managed && steps {
        return Some(None);
    }
    // A caller differentiates what it returns.
    let called = |call: &&Call| call.site.grad == Grad::On;
    if !function.hands_on || output.is_some_and(|output| !function.returned.may_share(output)) {
        return None;
    }
    let here = facts.calls_of(op.site.function).filter(called).find_map(|call| {
        let mut own = facts
            .ops
            .iter()
            .filter(passes)
            .filter(|pass| pass.site.function == call.site.function && pass.site.order > call.site.order);
        own.find(|pass| reaches(pass, &call.result.graph)).map(|pass| Some(pass.span))
    });
    here.or_else(|| context.is_differentiated_by_callers(op.site.function).then_some(None))
}

/// Returns `true` if the text shows that a model is not trained: it is only evaluated, or it is loaded and
/// stands beside the model that the optimizer holds.
fn is_untrained(context: &Context<'_>, op: &Op, model: &str) -> bool {
    let facts = context.facts;
    let of = |mode: OpKind| {
        facts.ops.iter().any(|other| {
            other.kind == mode
                && (other.receiver == model || facts.overlap(&other.weights, &op.weights) == Overlap::Yes)
        })
    };
    let function = facts.function(op.site.function);
    // A trainer of Hugging Face trains `self.model` alone.
    let managed = function.class.filter(|class| {
        facts.class(*class).bases.iter().any(|base| base.ends_with("Trainer"))
            && facts.class(*class).is_managed
    });
    let beside = managed.is_some() && model.starts_with("self.") && model != "self.model";
    let last = words(model).last().unwrap_or_default();
    let loaded = facts.calls.iter().any(|call| {
        let bound = facts.bound_to(call.span).is_some_and(|target| words(target).last() == Some(last));
        let made = call
            .path
            .as_deref()
            .is_some_and(|path| path.ends_with(".from_pretrained") || path == "copy.deepcopy");
        bound && made && context.slice(call.span).lines().count() < 12
    });
    let evaluated = of(OpKind::EvalMode)
        || is_evaluated_in_step(facts, op, model)
        || op.via.is_none() && model.starts_with("self.") && trains_parts(facts, function.class)
        || made_evaluating(facts, last)
        || context.given_model(op.site.function, model).is_some_and(|given| given.evaluated);
    !of(OpKind::TrainMode) && (evaluated || beside || loaded && trains_another(facts, last))
}

/// Returns `true` if the optimizers of a Lightning module hold some of its attributes, and not all of it.
fn trains_parts(facts: &Facts, class: Option<memfit_source::ClassId>) -> bool {
    let Some(class) = class.filter(|class| facts.class(*class).is_managed) else { return false };
    let mut made = facts
        .calls
        .iter()
        .filter(|call| {
            let function = facts.function(call.site.function);
            function.class == Some(class) && function.name.ends_with(".configure_optimizers")
        })
        .filter(|call| matches!(call.result.kind, Kind::Optimizer))
        .peekable();
    made.peek().is_some()
        && made.all(|call| {
            let text = facts.slice(call.span);
            text.contains("self.") && text.contains(".parameters()") && !text.contains("self.parameters()")
        })
}

/// Returns `true` if the weights of a model are overwritten with those of another one, as for a target
/// network or a moving average.
fn is_copied(facts: &Facts, op: &Op, model: &str) -> bool {
    let last = words(model).last().unwrap_or_default();
    facts.ops.iter().any(|other| {
        other.kind == OpKind::CopyWeights
            && (other.receiver == model
                || facts.overlap(&other.weights, &op.weights) == Overlap::Yes
                || other.receiver.starts_with("self.") && words(&other.receiver).nth(1) == Some(last))
    })
}

/// Returns `true` if a backward pass of the same function certainly goes through a pass.
fn reaches_loss(facts: &Facts, op: &Op, call: &Call) -> bool {
    backwards(facts).any(|(pass, backward)| {
        pass.site.function == op.site.function && backward.loss.graph.contains(&call.result.graph)
    })
}

/// Returns `true` for `teacher = make().eval()`.
fn made_evaluating(facts: &Facts, last: &str) -> bool {
    facts
        .calls
        .iter()
        .filter(|call| call.is_method("eval") && call.arguments.is_empty())
        .any(|call| facts.bound_to(call.span).is_some_and(|target| words(target).last() == Some(last)))
}

/// Returns `true` if an optimizer of the text holds parameters of a model of another name.
fn trains_another(facts: &Facts, last: &str) -> bool {
    facts.calls.iter().any(|call| {
        matches!(call.result.kind, Kind::Optimizer)
            && facts.slice(call.span).contains(".parameters()")
            && !words(facts.slice(call.span)).any(|word| word == last)
    })
}

/// Returns `true` if a function binds a name to what another expression is: `teacher = models[-1]`.
fn is_name_of(facts: &Facts, op: &Op, name: &str, expression: &str) -> bool {
    let function = facts.slice(facts.function(op.site.function).span);
    let is_plain = |text: &str| !text.is_empty() && !text.contains(['(', ' ', '=']);
    is_plain(name)
        && expression.ends_with(']')
        && function.lines().any(|line| line.trim().split_once(" = ") == Some((name, expression)))
}

/// Returns `true` if the function that trains another model puts this one into evaluation mode.
fn is_evaluated_in_step(facts: &Facts, op: &Op, model: &str) -> bool {
    let here = |other: &&Op| other.site.function == op.site.function && other.via.is_none();
    let ops = || facts.ops.iter().filter(here);
    let mode = |kind: OpKind| ops().filter(move |other| other.kind == kind);
    // `models[-1].eval()`, where the name is bound to `models[-1]`
    let by_place = |call: &Call| {
        call.site.function == op.site.function
            && call.is_method("eval")
            && call.is_statement
            && call.receiver.as_ref().is_some_and(|of| is_name_of(facts, op, model, facts.slice(of.span)))
    };
    (mode(OpKind::EvalMode).any(|mode| mode.receiver == model) || facts.calls.iter().any(by_place))
        && !mode(OpKind::TrainMode).any(|mode| mode.receiver == model)
        && mode(OpKind::TrainMode).any(|mode| mode.receiver != model)
        && ops().any(|other| matches!(other.kind, OpKind::Step { .. }))
}

/// Returns `true` for `render = renderer.bind(net)`: a call with a model may return one that has its
/// parameters.
fn wraps_another(facts: &Facts, model: &str) -> bool {
    let makers = facts.calls.iter().filter(|call| facts.bound_to(call.span) == Some(model));
    makers.into_iter().any(|made| {
        facts.calls.iter().any(|call| {
            let inside = made.span.start <= call.span.start && call.span.end <= made.span.end;
            inside
                && !call.is("copy.deepcopy")
                && call.arguments.iter().any(|given| {
                    let name = facts.slice(given.value_span);
                    let is_own = call.arguments.iter().any(|own| facts.slice(own.value_span) == model);
                    let is_option = name.contains('.') && !name.starts_with("self.");
                    given.value.is_module() && !is_own && !name.contains('(') && !is_option
                })
        })
    })
}

/// Returns `true` if an optimizer may hold a model, or its parameters may require no gradients.
fn is_trained_or_frozen(context: &Context<'_>, op: &Op, model: &str) -> bool {
    let facts = context.facts;
    let last = words(model).last().unwrap_or_default();
    if context.project.frozen.contains(last)
        || optimizers_of(facts, model, &op.weights).next().is_some()
        || wraps_another(facts, model)
    {
        return true;
    }
    // Without an optimizer in the text, another file may hold the parameters; a framework holds its own.
    let given = context.given_model(op.site.function, model);
    if given.is_some_and(|given| given.frozen || given.held) {
        return true;
    }
    // `Adam(self.parameters())` of the same object.
    let class = facts.function(op.site.function).class;
    let holds_all = |call: &Call| {
        facts.function(call.site.function).class == class
            && facts.slice(call.span).contains("self.parameters()")
    };
    if class.is_some() && model.starts_with("self.") && optimizers(facts).any(holds_all) {
        return true;
    }
    let mut made = optimizers(facts).peekable();
    let is_managed =
        facts.function(op.site.function).class.is_some_and(|class| facts.class(class).is_managed);
    if optimizers(facts).any(|made| may_hold_parts(facts, made) || is_given_unknown(facts, made)) {
        return true;
    }
    let known = given.is_some_and(|given| given.loose) || is_evaluated_in_step(facts, op, model);
    if made.peek().is_none() && !is_managed && !known {
        return true;
    }
    // `Adam(params)`, where the list is made elsewhere.
    let told = |call: &Call| {
        call.result.weights.is_exact()
            || facts.slice(call.span).contains(".parameters()")
            || call.result.is_unknown()
    };
    let named =
        |call: &Call| call.result.is_unknown() && words(facts.slice(call.span)).any(|word| word == last);
    if !made.all(|call| told(call) && !named(call)) {
        return true;
    }
    let frozen = facts.ops.iter().any(|other| {
        matches!(other.kind, OpKind::RequireGrad { on } if on != Some(true))
            && (other.receiver == model
                || words(&other.receiver).any(|word| word == last)
                || facts.overlap(&other.weights, &op.weights) == Overlap::Yes)
    });
    // `freeze(teacher)`, `set_requires_grad(vae, False)`, a list of parameters.
    let handed = facts.calls.iter().any(|call| {
        let own = call.receiver.as_ref().is_some_and(|of| words(context.slice(of.span)).last() == Some(last));
        let listed = call.is_method("parameters") || call.is_method("named_parameters");
        freezes(facts, call, last) || own && listed && !is_read(facts, call)
    });
    let shared = facts.stores.iter().any(|store| {
        store.kind == StoreKind::Assign
            && words(&store.target).last() == Some(last)
            && words(context.slice(store.value_span)).any(|word| word == "requires_grad" || word == "freeze")
    });
    frozen || handed || shared || facts.text.contains(&format!("{last}.requires_grad"))
}

/// Returns `true` for `p` of `for p in model.parameters():` that a loop only reads, as a moving average does.
fn is_read(facts: &Facts, call: &Call) -> bool {
    let line = facts.before_on_line(call.span);
    line.trim_start().starts_with("for ") && line.contains("zip(")
}
