//! Queries on facts that several rules share.

use memfit_source::{
    Argument, Backward, Call, ClassId, Facts, Flags, FunctionId, Grad, Handler, Kind, Loop, LoopId, Op,
    OpKind, Overlap, Site, Span, Store, StoreKind, Value, Weights, Window,
};

use crate::rule::Context;

impl Context<'_> {
    /// Text of a span.
    pub(crate) fn slice(&self, span: Span) -> &str {
        self.facts.slice(span)
    }

    /// Returns `true` if a function may be called while gradients are off.
    pub(crate) fn may_be_without_grad(&self, id: FunctionId) -> bool {
        let function = self.facts.function(id);
        let name = function.name.rsplit('.').next().unwrap_or_default();
        if name.is_empty() || self.facts.called_without_grad.iter().any(|known| known == name) {
            return !name.is_empty();
        }
        // A call of this file with gradients on is one, whatever a function of the same name elsewhere is.
        let is_on =
            |call: &Call| call.function == Some(id) && call.site.grad == Grad::On && call.site.function != id;
        self.project.called_without_grad.contains(name)
            && !self.facts.calls.iter().any(is_on)
            && !self.is_recorded_by_others(id)
    }
}

/// Calls that cast a model to float16 of which an optimizer holds parameters.
pub(crate) fn trained_in_half<'a>(context: &'a Context<'_>) -> impl Iterator<Item = &'a Call> {
    let facts = context.facts;
    facts.calls.iter().filter(move |call| {
        let Some(receiver) = call.receiver.as_ref().filter(|receiver| {
            (call.is_method("half") || call.is_method("to"))
                && receiver.value.is_module()
                && call.result.is(Flags::HALF)
                && !receiver.value.is(Flags::HALF)
        }) else {
            return false;
        };
        // A model converted at its creation has the name that it is bound to.
        let model = facts.bound_to(call.span).unwrap_or_else(|| context.slice(receiver.span));
        facts.calls.iter().any(|other| {
            matches!(other.result.kind, Kind::Optimizer)
                && other
                    .arguments
                    .iter()
                    .any(|argument| context.slice(argument.value_span).starts_with(&format!("{model}.")))
        })
    })
}

/// Calls that make an optimizer of parameters of a model.
pub(crate) fn optimizers_of<'a>(
    facts: &'a Facts,
    name: &'a str,
    weights: &'a Weights,
) -> impl Iterator<Item = &'a Call> {
    facts
        .calls
        .iter()
        .filter(move |call| matches!(call.result.kind, Kind::Optimizer) && holds(facts, call, name, weights))
}

/// Returns `true` if an optimizer is made of parameters of a model, by their owner or by the model's name.
fn holds(facts: &Facts, optimizer: &Call, name: &str, weights: &Weights) -> bool {
    match facts.overlap(&optimizer.result.weights, weights) {
        Overlap::Yes => return true,
        Overlap::No => return false,
        Overlap::Unknown => {}
    }
    let inside = |span: Span| optimizer.span.start < span.start && span.end <= optimizer.span.end;
    let given = facts.calls.iter().filter(|call| inside(call.span)).filter_map(|call| {
        let listed = ["parameters", "named_parameters"].iter().any(|method| call.is_method(method));
        call.receiver.as_ref().filter(|_| listed)
    });
    // `params` may have been bound to the list before.
    let mut given = given.map(|receiver| facts.slice(receiver.span));
    given.any(|text| text == name)
}

/// Maximum number of names that are followed to what they are bound to.
const MAX_OPERANDS: usize = 8;

/// Names in an expression, with their attributes, that are neither called nor keys nor keywords.
fn operands(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    text.split(move |c: char| !is_part(c)).filter(|name| {
        let end = name.as_ptr() as usize - text.as_ptr() as usize + name.len();
        !name.is_empty() && !text[end..].starts_with(['(', '"', '\'', '='])
    })
}

/// Returns `true` if an optimizer is given what an unknown function returns: parameters of any model.
pub(crate) fn is_given_unknown(facts: &Facts, optimizer: &Call) -> bool {
    let is_params = |given: &&Argument| given.name.as_deref().is_none_or(|name| name == "params");
    let Some(given) = optimizer.arguments.iter().find(is_params) else { return false };
    let span = given.value_span;
    let text = facts.slice(span);
    let mut names: Vec<&str> = operands(text).collect();
    // A list of parameters may be made up before.
    let function = facts.slice(facts.function(optimizer.site.function).span);
    for index in 0..MAX_OPERANDS {
        let Some(name) = names.get(index).copied() else { break };
        for line in function.lines() {
            let bound = line.trim_start().strip_prefix(name).map(str::trim_start);
            let value = bound.and_then(|rest| rest.strip_prefix("= ").or_else(|| rest.strip_prefix("+= ")));
            names.extend(value.into_iter().flat_map(operands));
        }
    }
    facts.calls.iter().filter(|call| call.result.is_unknown()).any(|call| {
        let inside = span.start <= call.span.start && call.span.end <= span.end;
        let takes_model = || call.arguments.iter().any(|argument| argument.value.is_module());
        let bound = || {
            call.site.function == optimizer.site.function
                && names.iter().any(|name| facts.is_bound_to(call.span, name))
        };
        if inside { takes_model() } else { bound() }
    })
}

/// Mode of a model at a site: that of the last `eval()` or `train()` before it in the function. `None` if one
/// test chooses between the two, as for the phases of a loop.
pub(crate) fn mode_at<'a>(facts: &'a Facts, site: &Site, model: &str) -> Option<&'a Op> {
    let around: Vec<_> = facts.guards_of(site.guard).collect();
    let modes = facts.ops.iter().filter(|op| {
        op.site.function == site.function
            && op.site.order < site.order
            && op.receiver == model
            && op.via.is_none()
            && matches!(op.kind, OpKind::EvalMode | OpKind::TrainMode)
    });
    let modes: Vec<&Op> = modes.collect();
    let last = *modes.last()?;
    let chosen = facts.guards_of(last.site.guard).filter(|id| !around.contains(id)).any(|id| {
        let test = facts.guard(id).test;
        let opposite = |op: &&&Op| {
            op.kind != last.kind
                && facts.guards_of(op.site.guard).any(|other| other != id && facts.guard(other).test == test)
        };
        modes.iter().any(|op| opposite(&op))
    });
    (!chosen).then_some(last)
}

/// Names and numbers of a text.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// Backward pass of an operation, if it is one.
pub(crate) fn backward(op: &Op) -> Option<&Backward> {
    match &op.kind {
        OpKind::Backward(backward) => Some(backward),
        _ => None,
    }
}

/// All backward passes.
pub(crate) fn backwards(facts: &Facts) -> impl Iterator<Item = (&Op, &Backward)> {
    facts.ops.iter().filter_map(|op| Some((op, backward(op)?)))
}

/// Returns `true` if a backward pass begins at the result of a call, by its name, or goes through it.
pub(crate) fn is_differentiated(facts: &Facts, call: &Call) -> bool {
    let bound = facts.bound_to(call.span);
    backwards(facts).any(|(op, pass)| {
        op.site.function == call.site.function
            && op.site.order > call.site.order
            && (bound == Some(facts.slice(pass.loss_span)) || pass.loss.graph.contains(&call.result.graph))
    })
}

/// Texts of what a backward pass begins at: that of its loss, and of what the function binds to that name.
pub(crate) fn loss_texts<'a>(context: &'a Context<'_>, op: &Op, pass: &Backward) -> Vec<&'a str> {
    let facts = context.facts;
    let loss = context.slice(pass.loss_span);
    let body = match op.site.function {
        FunctionId::MODULE => facts.text.as_ref(),
        id => context.slice(facts.function(id).span),
    };
    // `loss=losses` on a line of its own is an argument.
    let is_bound =
        |line: &&str| line.trim_start().strip_prefix(loss).is_some_and(|rest| rest.starts_with([' ', ':']));
    let bound = body.lines().filter(is_bound).filter_map(|line| memfit_source::assigned_text(line, loss));
    std::iter::once(loss).chain(bound).collect()
}

/// Returns `true` if a window is simple: each iteration of its loop does one micro-batch. Rules about windows
/// only look at these.
pub(crate) fn is_plain(facts: &Facts, window: &Window) -> bool {
    window
        .backwards
        .iter()
        .all(|index| backward(&facts.ops[*index]).is_some_and(|backward| !backward.managed))
}

/// Optimizer step of a window.
pub(crate) fn step_of<'a>(facts: &'a Facts, window: &Window) -> &'a Op {
    &facts.ops[window.step]
}

/// Loop whose iterations accumulate a store's values in a container.
pub(crate) fn grows<'a>(facts: &'a Facts, store: &'a Store) -> Option<LoopId> {
    let looped = store.grows?;
    if let Kind::Container { bounded: true } = store.target_value.kind {
        return None;
    }
    let bounded = facts
        .enclosing(store.site.looped)
        .take_while(|id| Some(*id) != facts.looped(looped).parent)
        .any(|id| {
            let found = facts.looped(id);
            found.emptied.contains(&store.target) || found.assigned.contains(&store.target)
        });
    (!bounded).then_some(looped)
}

/// Returns `true` for a container of an object that a method adds to and that no method empties: it grows
/// with every call.
pub(crate) fn grows_in_object(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    let function = facts.function(store.site.function);
    let Some(class) = function.class.filter(|_| store.target.starts_with("self.")) else { return false };
    let is_init = |name: &str| name.ends_with("__init__");
    !is_init(&function.name)
        && matches!(store.target_value.kind, Kind::Container { bounded: false })
        && !is_emptied(context, class, &store.target)
}

/// Returns `true` for a container of the caller, or of the module, to which a function adds in each call. The
/// function gets or names it, and no loop around a call makes the container anew.
pub(crate) fn grows_by_calls(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    let id = store.site.function;
    // A training step that another file calls.
    let is_called_elsewhere = || is_step(facts, id) && facts.calls_of(id).next().is_none();
    let root = words(&store.target).next().unwrap_or_default();
    let by_others = || context.is_kept_by_others(id, root);
    is_of_caller(facts, store) && by_others().unwrap_or_else(is_called_elsewhere)
        || loop_of_calls(context, store).is_some()
}

/// Returns `true` for a container that a function gets, or that is one of the module.
fn is_of_caller(facts: &Facts, store: &Store) -> bool {
    let root = words(&store.target).next().unwrap_or_default();
    let id = store.site.function;
    // A name that the function binds is a container of its own.
    id != FunctionId::MODULE && root != "self" && !facts.function(id).binds.iter().any(|name| name == root)
}

/// Loop that calls a function which adds to a container of its caller, and that does not make it anew.
pub(crate) fn loop_of_calls(context: &Context<'_>, store: &Store) -> Option<LoopId> {
    let facts = context.facts;
    let id = store.site.function;
    let function = facts.function(id);
    let root = words(&store.target).next().unwrap_or_default();
    if !is_of_caller(facts, store) {
        return None;
    }
    let position = function.parameters.iter().position(|name| name == root);
    facts.calls_of(id).find_map(|call| {
        let looped = call.site.looped?;
        let given = match position {
            None => root,
            Some(position) => context.slice(facts.given(call, id, position)?.value_span),
        };
        outlives_iterations(facts, given, looped).then_some(looped)
    })
}

/// Returns `true` for a name that no iteration of a loop binds or empties.
pub(crate) fn outlives_iterations(facts: &Facts, given: &str, looped: LoopId) -> bool {
    let around = facts.looped(looped);
    words(given).next().is_some_and(|name| {
        name.len() == given.len()
            && ![&around.assigned, &around.emptied, &around.targets]
                .iter()
                .any(|names| names.iter().any(|known| known == name))
    })
}

/// Returns `true` for `__init__`, for what only it calls, and for a method that makes the object's models or
/// optimizers, as `initialize` does in some projects.
fn is_constructor(facts: &Facts, id: FunctionId) -> bool {
    let makes = |call: &&Call| {
        call.site.function == id && call.site.looped.is_none() && matches!(call.result.kind, Kind::Optimizer)
    };
    let trains = || facts.ops.iter().any(|op| op.site.function == id && op.kind.updates());
    facts.is_construction(id) || facts.calls.iter().any(|call| makes(&call)) && !trains()
}

/// Returns `true` if a method other than `__init__` clears or rebinds a container of its object.
pub(crate) fn is_emptied(context: &Context<'_>, class: ClassId, target: &str) -> bool {
    let facts = context.facts;
    let own = |site: &Site| facts.function(site.function).class == Some(class);
    let bound = facts.stores.iter().any(|other| {
        own(&other.site)
            && other.kind == StoreKind::Assign
            && other.target == target
            && !is_constructor(facts, other.site.function)
    });
    let emptied = facts.calls.iter().any(|call| {
        own(&call.site)
            && ["clear", "pop", "popleft"].iter().any(|way| call.is_method(way))
            && call.receiver.as_ref().is_some_and(|receiver| context.slice(receiver.span) == target)
    });
    bound || emptied || facts.text.contains(&format!("del {target}"))
}

/// Returns `true` for an `except` clause that catches out-of-memory errors by their class.
pub(crate) fn catches_memory(handler: &Handler) -> bool {
    handler.types.iter().any(|name| name.ends_with("OutOfMemoryError"))
}

/// Returns `true` for an `except` clause that catches them along with other errors.
pub(crate) fn catches_all(handler: &Handler) -> bool {
    handler.types.is_empty()
        || handler
            .types
            .iter()
            .any(|name| ["RuntimeError", "Exception", "BaseException"].contains(&name.as_str()))
}

/// Returns `true` if a site is in a branch that not all iterations of a loop take. After a test of the batch
/// that leaves it out, such as `if x is None: continue`, all others take the rest.
pub(crate) fn is_guarded(facts: &Facts, site: &Site, looped: LoopId) -> bool {
    let leaves_out = |guard: &memfit_source::Guard| {
        let test = facts.slice(guard.test);
        let targets = &facts.looped(looped).targets;
        guard.is_rest
            && guard.what.counted.is_none()
            && !test.contains(" in ")
            && words(test).any(|word| targets.iter().any(|target| target == word))
            && facts
                .looped(looped)
                .index
                .as_ref()
                .is_none_or(|(index, _)| !words(test).any(|word| word == index))
    };
    facts
        .guards_of(site.guard)
        .map(|id| facts.guard(id))
        .any(|guard| guard.looped == Some(looped) && !leaves_out(guard))
}

/// Returns `true` if a loop iterates over batches or trains, rather than over epochs.
pub(crate) fn is_batch_loop(facts: &Facts, looped: LoopId) -> bool {
    facts.over_batches(looped)
        || facts.ops.iter().any(|op| {
            op.site.looped == Some(looped)
                && !op.deep
                && matches!(op.kind, OpKind::Backward(_) | OpKind::Forward)
        })
}

/// Returns `true` if a value is on a GPU and is not a scalar.
pub(crate) fn is_large_on_gpu(value: &Value) -> bool {
    value.device.is_gpu() && !value.is(Flags::SCALAR)
}

/// Returns `true` if a function computes gradients and steps with them, outside of its loops: a training
/// step, which a loop calls.
pub(crate) fn is_step(facts: &Facts, id: FunctionId) -> bool {
    let own = |op: &&Op| op.site.function == id && op.site.looped.is_none();
    id != FunctionId::MODULE
        && facts.ops.iter().filter(own).any(|op| op.kind.differentiates())
        && facts.ops.iter().filter(own).any(|op| matches!(op.kind, OpKind::Step { .. }))
}

/// Returns `true` if a site is run again and again: it is in a loop, a loop of a file of the project calls
/// its function, or it is in a training step whose callers are not known.
pub(crate) fn repeats(context: &Context<'_>, site: &Site) -> bool {
    let facts = context.facts;
    let unknown = || facts.calls_of(site.function).next().is_none();
    !facts.loops_around(site).is_empty()
        || is_step(facts, site.function) && unknown()
        || context.is_looped_by_others(site.function)
}

/// Returns `true` for a function that the text gives to other code, which calls it: as an argument, in an
/// attribute, or in a dictionary of hooks.
pub(crate) fn is_callback(facts: &Facts, id: FunctionId) -> bool {
    let is_it = |value: &Value| match &value.kind {
        Kind::Function(given) => *given == id,
        Kind::Partial(partial) => partial.of.kind == Kind::Function(id),
        _ => false,
    };
    let given = |call: &Call| {
        let of_partial = call.is("functools.partial");
        !of_partial && call.arguments.iter().any(|argument| is_it(&argument.value))
    };
    facts.calls.iter().any(given)
        || facts.stores.iter().any(|store| store.kind != StoreKind::Add && is_it(&store.value))
}

/// Returns `true` for `x["last"] = v`, which each iteration overwrites.
pub(crate) fn has_constant_key(context: &Context<'_>, store: &Store) -> bool {
    let text = context.slice(store.span);
    let is_constant =
        |key: &str| key.starts_with(['"', '\'']) || key.starts_with(|c: char| c.is_ascii_digit());
    let Some(mut rest) = text.strip_prefix(store.target.as_str()).filter(|rest| rest.starts_with('[')) else {
        return is_constant(text.split('[').nth(1).unwrap_or_default());
    };
    // Each key of `losses["train"][step]`.
    while let Some((key, after)) = rest.strip_prefix('[').and_then(|keys| keys.split_once(']')) {
        if !is_constant(key) {
            return false;
        }
        rest = after;
    }
    true
}

/// Returns `true` for a batch of a loader that accelerate or Fabric prepares: they move the batches.
pub(crate) fn is_prepared(facts: &Facts, batch: &Value) -> bool {
    let prepares = ["prepare", "setup_dataloaders"];
    let is_it = |kind: &Kind| matches!(kind, Kind::Loader(id) if id.is_some() && *id == batch.loader);
    facts
        .calls
        .iter()
        .filter(|call| prepares.iter().any(|name| call.is_method(name)))
        .any(|call| call.arguments.iter().any(|argument| is_it(&argument.value.kind)))
}

/// Returns `true` for a value that is detached in the same expression: `target(x).max(1)[0].detach()`.
pub(crate) fn is_detached(facts: &Facts, span: Span) -> bool {
    is_followed_by(facts, span, &["detach"])
}

/// Returns `true` unless a called function runs the pass, and returns nothing with the graph of its output.
pub(crate) fn is_handed_on(facts: &Facts, op: &Op) -> bool {
    let Some(called) = op.via.filter(|id| *id != FunctionId::MODULE) else { return true };
    let mut own = facts
        .ops
        .iter()
        .filter(|other| other.site.function == called && other.span == op.span && other.kind == op.kind);
    own.next().is_none_or(|own| facts.function(called).returned.may_share(&own.graph))
}

/// Returns `true` for a part of what one of these methods is called on.
pub(crate) fn is_followed_by(facts: &Facts, span: Span, methods: &[&str]) -> bool {
    let holds = |call: &Call| {
        call.receiver.as_ref().is_some_and(|of| of.span.start <= span.start && span.end <= of.span.end)
    };
    facts.calls.iter().any(|call| methods.iter().any(|name| call.is_method(name)) && holds(call))
}

/// Returns `true` for a name under which the text makes layers or models of libraries that return one tensor.
pub(crate) fn returns_tensor(facts: &Facts, name: &str) -> bool {
    let name = name.split('[').next().unwrap_or(name);
    let made = |call: &&Call| facts.bound_to(call.span) == Some(name) && call.result.is_module();
    let mut made = facts.calls.iter().filter(made).peekable();
    // `make().to(device)` is what is made.
    let is_one = |call: &Call| {
        let mut there = facts.calls.iter().filter(|other| other.span.start == call.span.start);
        there.any(makes_one_tensor)
    };
    made.peek().is_some() && made.all(is_one)
}

/// Returns `true` for a call that makes a layer or a model of a library whose result is a tensor.
fn makes_one_tensor(call: &Call) -> bool {
    // These return tuples, dictionaries or lists.
    let several = ["LSTM", "GRU", "RNN", "MultiheadAttention"];
    let others = ["detection.", "segmentation.", "inception_v3", "googlenet"];
    call.path.as_deref().is_some_and(|path| {
        path.starts_with("torch.nn.") && !several.iter().any(|layer| path.ends_with(layer))
            || path.starts_with("torchvision.models.") && !others.iter().any(|part| path.contains(part))
    })
}

/// Returns `true` if a loop gives the elements of a container to a model later: they are needed on the
/// device.
pub(crate) fn is_fed_to_models(context: &Context<'_>, target: &str) -> bool {
    let facts = context.facts;
    let is_path = |c: char| c.is_alphanumeric() || "_.".contains(c);
    let over = |looped: &&Loop| {
        context.slice(looped.iterable).split(|c: char| !is_path(c)).any(|word| word == target)
    };
    facts.loops.iter().filter(over).any(|looped| {
        facts.calls.iter().any(|call| {
            let inside = looped.span.start <= call.span.start && call.span.end <= looped.span.end;
            let given = call
                .arguments
                .iter()
                .any(|given| looped.targets.iter().any(|name| name == context.slice(given.value_span)));
            inside && given && facts.ops.iter().any(|op| op.kind == OpKind::Forward && op.span == call.span)
        })
    })
}

/// Functions that join the tensors of a container.
const JOINS: &[&str] = &["torch.cat", "torch.stack", "torch.concat", "torch.vstack", "torch.hstack"];

/// Calls that join the tensors of a container.
pub(crate) fn joins<'a>(facts: &'a Facts, container: &'a str) -> impl Iterator<Item = &'a Call> {
    facts.calls.iter().filter(move |call| {
        call.path.as_deref().is_some_and(|path| JOINS.contains(&path))
            && call.arguments.first().is_some_and(|first| {
                // `torch.stack(history["losses"])`
                let rest = facts.slice(first.value_span).strip_prefix(container);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
            })
    })
}

/// Returns `true` if the container is concatenated on the GPU, so that it is needed there. What is moved to
/// the host in the same statement, or by its name later in the function, is not, nor what is only saved or
/// logged.
pub(crate) fn joined_on_device(facts: &Facts, container: &str) -> bool {
    let to_host = ["cpu", "numpy", "tolist"];
    let writes = ["add_histogram", "add_embedding", "add_pr_curve", "add_image", "add_images"];
    let is_written = |join: &Call| {
        facts.calls.iter().any(|call| {
            (call.is("torch.save") || writes.iter().any(|way| call.is_method(way)))
                && call.arguments.iter().any(|given| given.value_span == join.span)
        })
    };
    let is_moved_later = |join: &Call| {
        let Some(name) = facts.bound_to(join.span) else { return false };
        facts.calls.iter().any(|call| {
            call.site.function == join.site.function
                && call.site.order > join.site.order
                && to_host.iter().any(|way| call.is_method(way))
                && call.receiver.as_ref().is_some_and(|of| facts.slice(of.span) == name)
        })
    };
    joins(facts, container)
        .any(|call| !is_followed_by(facts, call.span, &to_host) && !is_moved_later(call) && !is_written(call))
}
