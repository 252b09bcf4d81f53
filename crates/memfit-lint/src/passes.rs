//! Passes of models that a function runs: by itself, in functions that it calls, and in methods that only
//! other files of the project define.

use memfit_source::{
    Call, Facts, FunctionId, Grad, LoopId, Op, OpKind, Overlap, Site, Span, StoreKind, Weights,
};

use crate::query::words;
use crate::rule::{Context, Methods};

/// Adds the functions of a file.
pub(crate) fn add_methods(facts: &Facts, methods: &mut Methods) {
    // Methods of objects that get a model.
    let handed: Vec<(FunctionId, &str)> = facts
        .calls
        .iter()
        .filter(|call| call.function.is_none() && call.arguments.iter().any(|given| given.value.is_module()))
        .filter(|call| call.receiver.as_ref().is_some_and(|of| !of.value.is_module()))
        .filter_map(|call| Some((call.site.function, call.method.as_deref()?)))
        .collect();
    for id in facts.function_ids().filter(|id| *id != FunctionId::MODULE) {
        let function = facts.function(id);
        let text = facts.slice(function.span);
        let ops = || facts.ops.iter().filter(move |op| op.site.function == id);
        let passes = ops().any(|op| runs_model(op) && op.site.grad != Grad::Off);
        if !passes && is_abstract(facts, id) {
            continue;
        }
        let of_this = handed.iter().filter(|(function, _)| *function == id && !passes);
        let hands_to: Vec<String> = of_this.map(|(_, name)| (*name).to_owned()).collect();
        let turns = ["no_grad", "inference_mode", "set_grad_enabled", "volatile"]
            .iter()
            .any(|word| text.contains(word));
        let trains = ops().any(|op| op.kind.differentiates());
        let name = function.name.rsplit('.').next().unwrap_or_default();
        let known = methods.entry(name.to_owned()).or_default();
        known.passes |= passes;
        known.others |= !passes && hands_to.is_empty() || turns || trains || function.grad == Grad::Off;
        known.hands_to.extend(hands_to);
    }
}

/// Pass of a model with gradients on.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    /// Call in the function.
    pub(crate) span: Span,
    /// Site of the call.
    pub(crate) site: &'a Site,
    /// Source text of the model, as far as the function knows it.
    pub(crate) receiver: &'a str,
    pub(crate) weights: Option<&'a Weights>,
    /// `true` if the function calls the model itself.
    pub(crate) is_own: bool,
    /// `true` if a called function runs it in a loop.
    pub(crate) deep: bool,
}

/// Returns `true` for the call of a model, or of a method of it that is not known.
pub(crate) const fn runs_model(op: &Op) -> bool {
    matches!(op.kind, OpKind::Forward | OpKind::Method { .. })
}

/// Returns `true` for a call that makes an input volatile.
pub(crate) fn makes_volatile(call: &Call) -> bool {
    call.keyword("volatile").is_some()
}

/// Returns `true` for a text that needs PyTorch 0.4, which brought `item()` and `no_grad`, and ignores
/// volatile inputs.
pub(crate) fn needs_no_grad_release(facts: &Facts) -> bool {
    facts.text.contains(".item()") || facts.text.contains("no_grad")
}

/// Returns `true` if volatile inputs turn gradients off for the pass at a span, as before PyTorch 0.4: its
/// function or the called one makes some, or its arguments were made so elsewhere in the file.
pub(crate) fn is_volatile(context: &Context<'_>, span: Span) -> bool {
    let facts = context.facts;
    if !context.project.volatile || needs_no_grad_release(facts) {
        return false;
    }
    let op = facts.ops.iter().find(|op| op.call.unwrap_or(op.span) == span);
    let call = facts.calls.iter().find(|call| call.span == span);
    let Some(site) = op.map(|op| &op.site).or_else(|| call.map(|call| &call.site)) else { return false };
    let called = op.and_then(|op| op.via).or_else(|| call.and_then(|call| call.function));
    let arguments = call.iter().flat_map(|call| &call.arguments);
    let given: Vec<&str> = arguments.flat_map(|argument| words(context.slice(argument.value_span))).collect();
    let made = |call: &Call| {
        let function = call.site.function;
        let is_here =
            function == site.function && (function != FunctionId::MODULE || call.site.looped == site.looped);
        let is_called = function != FunctionId::MODULE && called == Some(function);
        let mut targets = words(facts.before_on_line(call.span));
        let is_given = function == FunctionId::MODULE && targets.any(|name| given.contains(&name));
        makes_volatile(call) && (is_here || is_called || is_given)
    };
    // A function of another file may make them, if no file has the newer way.
    let is_elsewhere = called == Some(FunctionId::MODULE);
    facts.calls.iter().any(made) || is_elsewhere && !context.project.has_no_grad
}

/// Passes with gradients on in the body of a function, in order.
pub(crate) fn passes<'a>(context: &'a Context<'_>, function: FunctionId) -> Vec<Pass<'a>> {
    let facts = context.facts;
    let mut found: Vec<Pass<'a>> = Vec::new();
    let here = |op: &&Op| runs_model(op) && op.site.function == function;
    let recorded = |op: &&Op| op.site.grad == Grad::On && is_pass(context, op);
    for op in facts.ops.iter().filter(here).filter(recorded) {
        let span = op.call.unwrap_or(op.span);
        if found.iter().any(|pass| pass.span == span) {
            continue;
        }
        let is_own = op.via.is_none() && op.kind == OpKind::Forward;
        let (receiver, weights) = (op.receiver.as_str(), Some(&op.weights));
        found.push(Pass { span, site: &op.site, receiver, weights, is_own, deep: op.deep });
    }
    let parameters = &facts.function(function).parameters;
    for call in facts.calls.iter().filter(|call| call.site.function == function && !call.is_statement) {
        // A function that the caller passes, and that gets the model.
        let is_given = call.receiver.is_none()
            && call.function.is_none()
            && call.path.is_none()
            && parameters.iter().any(|name| name == context.slice(call.callee));
        let model = call.arguments.iter().find(|given| is_given && given.value.is_module());
        if let Some(model) = model.filter(|_| call.site.grad == Grad::On) {
            let (receiver, weights) = (context.slice(model.value_span), Some(&model.value.weights));
            let span = call.span;
            found.push(Pass { span, site: &call.site, receiver, weights, is_own: false, deep: false });
            continue;
        }
        let Some(receiver) = &call.receiver else { continue };
        let is_known = found.iter().any(|pass| pass.span == call.span);
        if call.site.grad == Grad::On && !is_known && runs_pass(context, call) {
            let (text, weights) = (context.slice(receiver.span), &receiver.value.weights);
            let weights = Some(weights).filter(|_| receiver.value.is_module());
            found.push(Pass {
                span: call.span,
                site: &call.site,
                receiver: text,
                weights,
                is_own: false,
                deep: false,
            });
        }
    }
    found.sort_by_key(|pass| pass.site.order);
    found
}

/// Methods of models of libraries that run a pass.
const PASSES: &[&str] = &[
    "encode",
    "decode",
    "encode_image",
    "encode_text",
    "get_image_features",
    "get_text_features",
    "forward_features",
    "forward_head",
    "extract_features",
    "extract_feature",
];

/// Returns `true` for the call of a model, or of a method or part of it that runs a pass, as far as the
/// project's files and libraries define it.
pub(crate) fn is_pass(context: &Context<'_>, op: &Op) -> bool {
    match &op.kind {
        OpKind::Forward => true,
        OpKind::Method { name } => match context.project.methods.get(&**name) {
            Some(known) => known.passes && !known.others || passes_here(context.facts, name),
            None => PASSES.contains(&&**name) || context.project.layers.contains(&**name),
        },
        _ => false,
    }
}

/// Returns `true` for a method that models of this file have, each with a pass and nothing else. Other files
/// may have methods of the same name.
fn passes_here(facts: &Facts, name: &str) -> bool {
    let is_own = |id: &FunctionId| {
        let function = facts.function(*id);
        function.name.rsplit('.').next() == Some(name)
            && function.class.is_some_and(|class| facts.class(class).is_module)
    };
    let mut own = facts.function_ids().filter(is_own).peekable();
    own.peek().is_some()
        && own.all(|id| {
            let ops = || facts.ops.iter().filter(|op| op.site.function == id);
            facts.function(id).grad != Grad::Off
                && ops().any(|op| runs_model(op) && op.site.grad != Grad::Off)
                && !ops().any(|op| op.kind.differentiates() || op.site.grad == Grad::Off)
        })
}

/// Returns `true` for a method that only other files define, each time with a pass.
fn runs_pass(context: &Context<'_>, call: &Call) -> bool {
    let facts = context.facts;
    let Some(name) = call.method.as_deref().filter(|_| call.path.is_none() && !call.arguments.is_empty())
    else {
        return false;
    };
    if !context.project.runs_pass(name, 2) {
        return false;
    }
    // The passes of a function of this file are known, unless a method of another object runs them.
    let has_passes = |id: FunctionId| facts.ops.iter().any(|op| op.site.function == id && runs_model(op));
    let is_own = call.function.is_some_and(|id| !is_abstract(facts, id) && has_passes(id));
    // `self.eval_step(batch)`, `self.spec.objective(batch)`
    let of_self = call.receiver.as_ref().is_some_and(|receiver| {
        let text = facts.slice(receiver.span);
        (text == "self" || text.starts_with("self.")) && !text.contains('(')
    });
    // `task.valid_step(model, batch)`
    let has_model = || call.arguments.iter().any(|given| given.value.is_module());
    // `model.predict(x)`, where a model of the project has the method.
    let of_model = || call.receiver.as_ref().is_some_and(|receiver| receiver.value.is_module());
    !is_own && (of_self || has_model() || of_model())
}

/// Returns `true` for a method that a base class leaves to its subclasses.
fn is_abstract(facts: &Facts, id: FunctionId) -> bool {
    let text = facts.slice(facts.function(id).span);
    let body = text.rsplit(':').next().unwrap_or_default().trim();
    text.contains("NotImplementedError") || body == "pass" || body == "..."
}

/// Mode of the model of a pass: the last switch before it in the function, by itself or in a called function.
pub(crate) fn mode_of<'a>(facts: &'a Facts, pass: &Pass<'_>) -> Option<&'a Op> {
    let around: Vec<_> = facts.guards_of(pass.site.guard).collect();
    let modes = facts.ops.iter().filter(|op| {
        matches!(op.kind, OpKind::EvalMode | OpKind::TrainMode)
            && op.site.function == pass.site.function
            && op.site.order < pass.site.order
            && op.call != Some(pass.span)
            && is_of(facts, op, pass)
    });
    let modes: Vec<&Op> = modes.collect();
    let Some(last) = modes.last().copied() else { return mode_of_object(facts, pass) };
    // One test may choose between the two, as for the phases of a loop.
    let chosen = facts.guards_of(last.site.guard).filter(|id| !around.contains(id)).any(|id| {
        let test = facts.guard(id).test;
        modes.iter().any(|op| {
            op.kind != last.kind
                && facts.guards_of(op.site.guard).any(|other| other != id && facts.guard(other).test == test)
        })
    });
    (!chosen).then_some(last)
}

/// Mode of the model of a pass since its object was made: the constructor sets it, and no other method does.
fn mode_of_object<'a>(facts: &'a Facts, pass: &Pass<'_>) -> Option<&'a Op> {
    let class = facts.function(pass.site.function).class?;
    let is_mode = |op: &&Op| matches!(op.kind, OpKind::EvalMode | OpKind::TrainMode);
    let of_class = |op: &&Op| facts.function(op.site.function).class == Some(class);
    let mut modes: Vec<&Op> =
        facts.ops.iter().filter(is_mode).filter(of_class).filter(|op| is_of(facts, op, pass)).collect();
    modes.sort_by_key(|op| op.site.order);
    let is_first = |op: &&Op| facts.constructs(op.site.function, pass.site.function);
    let last = modes.last().copied().filter(|_| modes.iter().all(is_first))?;
    last.site.guard.is_none().then_some(last)
}

/// Returns `true` if a switch of the mode concerns the model of a pass.
fn is_of(facts: &Facts, mode: &Op, pass: &Pass<'_>) -> bool {
    let (of, name) = (mode.receiver.as_str(), pass.receiver);
    let within = |whole: &str, part: &str| {
        part.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    // Methods of the object run its models.
    let by_self = !pass.is_own && name == "self" && within("self", of);
    // `self.set_eval()`, `self.process(batch)`
    let by_methods = mode.via.is_some() && !pass.is_own;
    by_self
        || by_methods
        || within(of, name)
        || pass.weights.is_some_and(|weights| facts.overlap(&mode.weights, weights) == Overlap::Yes)
        || !pass.is_own && words(facts.slice(pass.span)).any(|word| word == of)
}

/// Returns `true` if a value of a loop is given to a pass: a variable of it, or what it computes.
pub(crate) fn is_fed_by(context: &Context<'_>, pass: &Pass<'_>, looped: LoopId) -> bool {
    let found = context.facts.looped(looped);
    let facts = context.facts;
    // A list of tokens that each iteration adds to.
    let grows = |word: &str| {
        facts.stores.iter().any(|store| {
            store.kind == StoreKind::Append && store.target == word && facts.within(&store.site, looped)
        })
    };
    let mut words = words(context.slice(pass.span)).skip(1);
    words.any(|word| found.targets.iter().chain(&found.assigned).any(|name| name == word) || grows(word))
}

/// Returns `true` if the same call is tried without gradients first and raises: some models need them.
pub(crate) fn is_fallback(context: &Context<'_>, pass: &Pass<'_>) -> bool {
    let facts = context.facts;
    let Some(handler) = pass.site.handler.map(|id| facts.handler(id)) else { return false };
    facts.ops.iter().any(|other| {
        other.kind == OpKind::Forward
            && other.site.tried == Some(handler.tried)
            && other.site.grad == Grad::Off
            && other.receiver == pass.receiver
    })
}

/// Returns `true` if a loop's body ends with a `break`: it processes one batch, and holds one pass.
pub(crate) fn runs_once(context: &Context<'_>, looped: LoopId) -> bool {
    let found = context.facts.looped(looped);
    let body = context.slice(Span::new(found.header.end, found.span.end));
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines =
        body.lines().skip(1).filter(|line| !line.trim().is_empty() && !line.trim().starts_with('#'));
    let Some(first) = lines.next() else { return false };
    let last = lines.last().unwrap_or(first);
    last.trim() == "break" && indent(last) == indent(first)
}

/// Returns `true` if a model of the text disables gradients itself.
pub(crate) fn is_switched_off(facts: &Facts) -> bool {
    facts.functions.iter().any(|function| function.grad == Grad::Off && function.name.ends_with(".forward"))
}
