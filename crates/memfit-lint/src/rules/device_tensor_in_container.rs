//! # device-tensor-in-container
//!
//! ## What it does
//! Finds containers that collect a tensor on the GPU from every batch, which no backward pass needs any more.
//!
//! - lists and concatenated tensors of a loop over data, or of a loop with training steps;
//! - outputs that the steps of a Lightning module return or keep until the end of an epoch, also with their
//!   graphs;
//! - predictions of a Hugging Face trainer's evaluation.
//!
//! The finding is only a note where the value may be a dictionary, or where the loop ends early.
//!
//! ## Why
//! `detach()` cuts the graph but keeps the storage: the result has the same `data_ptr()`. Each iteration
//! leaves its output on the GPU, so that device memory grows by the output's size with every batch of the
//! data set. Measured: five outputs of 8 MiB hold 40 MiB; moved to the host, none.
//!
//! ## Example
//! ```python
//! for x in loader:
//!     predictions.append(model(x.cuda()).detach())
//! ```
//! Use instead:
//! ```python
//! for x in loader:
//!     predictions.append(model(x.cuda()).detach().cpu())
//! ```
//!
//! ## Fix safety
//! Unsafe: code that reads the container finds tensors on the host.
//!
//! ## References
//! - [torch.Tensor.detach](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html)

use memfit_source::{
    Argument, Call, Device, Facts, Flags, FunctionId, GraphState, IterableKind, Kind, LoopId, OpKind, Store,
    StoreKind, Value,
};

use crate::data::is_over_data;
use crate::query::{
    backwards, grows, has_constant_key, is_emptied, is_fed_to_models, is_large_on_gpu, joined_on_device,
    loop_of_calls, returns_tensor, words,
};
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "device-tensor-in-container",
    severity: Severity::Warning,
    fixes: Fixes::Unsafe,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    of_steps(context, findings);
    of_returned(context, findings);
    of_trainers(context, findings);
    let adds = |store: &&Store| {
        matches!(store.kind, StoreKind::Append | StoreKind::Join)
            || store.kind == StoreKind::Item
                && matches!(store.target_value.kind, Kind::Container { .. })
                && !has_constant_key(context, store)
    };
    for store in facts.stores.iter().filter(adds).chain(&facts.stored_parts) {
        let cut = (store.value.is(Flags::DETACHED) || store.value.is(Flags::NO_GRAD_BUILT))
            && store.value.graph.is_none();
        // After the backward pass, an output has no activations left, but its own storage.
        let after = |state: GraphState| matches!(state, GraphState::Freed | GraphState::Kept);
        let freed = after(store.graph) || is_freed_by_callers(context, store);
        let passed = (after(store.graph_then) || store.graph_then == GraphState::Live) && freed;
        if !(cut || passed) || !is_large_on_gpu(&store.value) || store.value.is(Flags::VIEW) {
            continue;
        }
        let grown = if store.kind == StoreKind::Join { store.grows } else { grows(facts, store) };
        // A container of the caller grows in the loop that calls the function.
        let by_calls = grown.is_none() && store.site.looped.is_none();
        let grown = grown.or_else(|| loop_of_calls(context, store).filter(|_| by_calls));
        let Some(looped) = grown else { continue };
        // Only loops over data, not over a few parts. Around the loop in which it grows, it is made anew.
        let mut growing = facts
            .enclosing(if by_calls { Some(looped) } else { store.site.looped })
            .take_while(|id| Some(*id) != facts.looped(looped).parent);
        let over_data = |id| is_over_data(context, id) || passed && steps_in(facts, id);
        if !growing.any(over_data)
            || is_dictionary(context, store)
            || cut && joined_on_device(facts, &store.target)
            || is_fed_to_models(context, &store.target)
        {
            continue;
        }
        let text = context.slice(store.value_span).to_owned();
        let way = if cut { ".cpu()" } else { ".detach().cpu()" };
        let is_tensor = is_known_tensor(context, store);
        // A loop that stops early may keep a few for a picture.
        let stops = context.slice(facts.looped(looped).span).lines().any(|line| line.trim() == "break");
        findings
            .report(
                store.value_span,
                format!("`{text}` stays on the GPU: `{}` grows by it in every iteration", store.target),
            )
            .note_unless(is_tensor && !stops)
            .label(facts.looped(looped).header, "over the iterations of this loop")
            .help(if is_tensor {
                format!("move it to the host with `{way}`, or store only what you compute from it")
            } else {
                "move its tensors to the host, or store only what you compute from them".to_owned()
            })
            .fix(if is_tensor {
                Fix::unsafe_("Move it to the host", vec![Edit::insert(store.value_span.end, way)])
            } else {
                None
            });
    }
}

/// Returns `true` if a function hands on what it computes of a value, and each of its callers runs a backward
/// pass through that: the value has no activations left then.
fn is_freed_by_callers(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    let id = store.site.function;
    let mut calls = facts.calls_of(id).peekable();
    calls.peek().is_some()
        && facts.function(id).returned.overlaps(&store.value.graph)
        && calls.all(|call| {
            backwards(facts).any(|(op, pass)| {
                let is_plain = pass.retain.is_none() && pass.create.is_none() && op.via.is_none();
                let follows = op.site.function == call.site.function && op.site.order > call.site.order;
                is_plain && follows && pass.loss.graph.overlaps(&call.result.graph)
            })
        })
}

/// Number of training steps from which it matters that each keeps a tensor.
const MIN_STEPS: i64 = 10;

/// Returns `true` for a loop over data of any kind, each of whose iterations runs a backward pass; for one
/// that counts, each of whose iterations also steps an optimizer.
fn steps_in(facts: &Facts, looped: LoopId) -> bool {
    let runs = |is: fn(&OpKind) -> bool| {
        let own = |op: &&memfit_source::Op| op.site.looped == Some(looped);
        facts.ops.iter().filter(own).any(|op| is(&op.kind))
    };
    let passes = || runs(|kind| matches!(kind, OpKind::Backward(_)));
    match facts.looped(looped).iterable_kind {
        IterableKind::Other => passes(),
        IterableKind::Range(Some(count)) if count < MIN_STEPS => false,
        IterableKind::Range(_) | IterableKind::Endless => {
            passes() && runs(|kind| matches!(kind, OpKind::Step { .. }))
        }
        IterableKind::Loader(_) | IterableKind::Literal(_) => false,
    }
}

/// Methods that tensors have and dictionaries, tuples and objects of models have not.
const OF_TENSORS: &[&str] = &[
    "argmax",
    "clone",
    "contiguous",
    "cpu",
    "detach",
    "dim",
    "flatten",
    "float",
    "log_softmax",
    "max",
    "mean",
    "numpy",
    "permute",
    "reshape",
    "sigmoid",
    "size",
    "softmax",
    "squeeze",
    "sum",
    "topk",
    "transpose",
    "unsqueeze",
    "view",
];

/// Returns `true` if the text shows that a value is a tensor: a model may return a dictionary, which has no
/// `.cpu()`.
fn is_known_tensor(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    let text = context.slice(store.value_span);
    let gives = |call: &Call| {
        let is_loss = matches!(call.target.kind, Kind::Criterion { .. });
        is_loss
            || call.path.as_deref().is_some_and(|path| path.starts_with("torch."))
            || call.method.as_deref().is_some_and(|name| OF_TENSORS.contains(&name))
    };
    // Calls in the function that keeps it.
    let named = || facts.calls.iter().filter(|call| call.site.function == store.site.function);
    let made = named().any(|call| {
        let is_it = call.span == store.value_span || facts.bound_to(call.span) == Some(text);
        is_it && gives(call)
    });
    let used = || {
        named().filter(|call| gives(call)).any(|call| {
            let own = call.receiver.as_ref().is_some_and(|of| context.slice(of.span) == text);
            let given = call.method.is_none()
                && call.arguments.first().is_some_and(|given| context.slice(given.value_span) == text);
            own || given
        })
    };
    let is_part = [".logits", ".last_hidden_state", ".pooler_output"].iter().any(|end| text.ends_with(end));
    // `torch.cat(outputs)` later
    let is_joined = || {
        facts.calls.iter().any(|call| {
            call.path.as_deref().is_some_and(|path| path.starts_with("torch."))
                && call.arguments.first().is_some_and(|given| context.slice(given.value_span) == store.target)
        })
    };
    let by_model = || {
        facts.ops.iter().filter(|op| op.kind == OpKind::Forward).any(|op| {
            (op.span == store.value_span || facts.bound_to(op.span) == Some(text))
                && returns_tensor(facts, &op.receiver)
        })
    };
    // `torch.cat([part.mean(1) for part in outputs])`
    let is_joined_by_parts = || {
        let over = format!(" in {}]", store.target);
        facts.calls.iter().any(|call| {
            call.path.as_deref().is_some_and(|path| path.starts_with("torch."))
                && call
                    .arguments
                    .first()
                    .is_some_and(|given| context.slice(given.value_span).ends_with(&over))
        })
    };
    store.value.is(Flags::DETACHED)
        || is_joined_by_parts()
        || store.kind == StoreKind::Join
        || is_joined()
        || by_model()
        || is_part
        || made
        || used()
        || facts.text.contains(&format!("{text}.shape"))
}

/// Returns `true` for a value into which the function stores items by name: a dictionary, such as one of
/// metrics.
fn is_dictionary(context: &Context<'_>, store: &Store) -> bool {
    let name = context.slice(store.value_span);
    let items = |other: &&Store| other.kind == StoreKind::Item && other.target == name;
    context.facts.stores.iter().filter(items).any(|other| {
        let key = context.slice(other.span).strip_prefix(name).and_then(|rest| rest.strip_prefix('['));
        let quoted = key.map(|key| key.strip_prefix('f').unwrap_or(key));
        other.site.function == store.site.function && quoted.is_some_and(|key| key.starts_with(['"', '\'']))
    })
}

/// Finds outputs that the steps of a Lightning module collect in an attribute; the framework detaches them
/// and keeps them on the GPU.
fn of_steps(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for store in facts.stores.iter().filter(|store| store.kind == StoreKind::Append) {
        let function = facts.function(store.site.function);
        let Some(class) = function.class.filter(|class| facts.class(*class).is_managed) else { continue };
        let step = function.name.rsplit('.').next().unwrap_or_default();
        // Outputs with their graphs, for the whole of an epoch.
        let graphs = step == "training_step"
            && store.target.starts_with("self.")
            && !store.value.graph.is_none()
            && !store.value.is(Flags::SCALAR)
            && matches!(store.value.kind, Kind::Tensor)
            && (store.value.is(Flags::OUTPUT) || store.value.graph.is_known());
        if graphs && is_emptied(context, class, &store.target) {
            findings
                .report(
                    store.value_span,
                    format!(
                        "`{}` keeps the output of every step on the GPU until the end of the epoch",
                        store.target
                    ),
                )
                .help(format!("store `{}.detach().cpu()`", context.slice(store.value_span)));
            continue;
        }
        if !["training_step", "validation_step", "test_step"].contains(&step)
            || !store.target.starts_with("self.")
            || !(is_output(store) || step == "training_step" && is_returned(context, store))
            || is_emptied(context, class, &store.target)
        {
            continue;
        }
        findings
            .report(
                store.value_span,
                format!("`{}` grows by this in every `{step}`, and is never cleared", store.target),
            )
            .help(format!(
                "clear it at the end of the epoch: `{}.clear()`; store numbers, or move tensors to the host",
                store.target
            ));
    }
}

/// Finds outputs and batches that the steps of a Lightning module return for the end of the epoch, until
/// which the framework keeps them on the GPU.
fn of_returned(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for id in facts.function_ids() {
        let function = facts.function(id);
        let Some(class) = function.class.filter(|class| facts.class(*class).is_managed) else { continue };
        let step = function.name.rsplit('.').next().unwrap_or_default();
        let Some(phase) = step.strip_suffix("_step") else { continue };
        let ends = format!(".{phase}_epoch_end");
        let collects = facts.functions.iter().any(|other| {
            other.class == Some(class) && other.name.ends_with(&ends) && other.parameters.len() > 1
        });
        if !collects || !["training", "validation", "test"].contains(&phase) {
            continue;
        }
        let mut large = function
            .returned_parts()
            .filter(|part| part.key.is_some() && is_batch_or_output(context, id, context.slice(part.span)));
        let Some(first) = large.next() else { continue };
        let mut found = findings.report(
            first.span,
            format!("Lightning keeps this of every `{step}` on the GPU, until `{phase}_epoch_end`"),
        );
        for other in large {
            found = found.label(other.span, "and this");
        }
        found.help("return what you compute from it, or move it to the host with `.detach().cpu()`");
    }
}

/// Returns `true` for a model's output or a part of the batch, detached or not, that is as large as the
/// batch.
fn is_batch_or_output(context: &Context<'_>, id: FunctionId, text: &str) -> bool {
    let facts = context.facts;
    let text = text.strip_suffix(".detach()").unwrap_or(text);
    let is_path = text.chars().all(|c| c.is_alphanumeric() || "_.[]\"'".contains(c));
    let batch = facts.function(id).parameters.get(1);
    let root = words(text).next().unwrap_or_default();
    // Inputs and targets, as what the model and the losses take; names and numbers are small.
    let is_taken = || {
        facts.calls.iter().any(|call| {
            let name = context.slice(call.callee).to_ascii_lowercase();
            let is_loss = name.contains("loss") || matches!(call.target.kind, Kind::Criterion { .. });
            let passes = || facts.ops.iter().any(|op| op.kind == OpKind::Forward && op.span == call.span);
            call.site.function == id
                && call
                    .arguments
                    .iter()
                    .take(2)
                    .any(|given| given.name.is_none() && context.slice(given.value_span) == text)
                && (is_loss || passes())
        })
    };
    let is_part = batch.is_some_and(|batch| batch == root && text.len() > batch.len()) && is_taken();
    let by_model = facts.ops.iter().any(|op| {
        op.kind == OpKind::Forward
            && op.site.function == id
            && op.via.is_none()
            && facts.bound_to(op.span) == Some(text)
    });
    is_path && (is_part || by_model)
}

/// Returns `true` if a training step returns the value, or an item of it, as its loss: it may have a graph.
fn is_returned(context: &Context<'_>, store: &Store) -> bool {
    if store.value.graph.is_none() {
        return false;
    }
    let text = context.slice(store.value_span);
    context.facts.function(store.site.function).returned_first().any(|returned| {
        let rest = context.slice(returned).strip_prefix(text);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
    })
}

/// Returns `true` if a value is not a scalar and is on the GPU, as far as the source shows.
fn is_output(store: &Store) -> bool {
    let is_one = |value: &Value| match value.kind {
        Kind::Tensor => (value.is(Flags::OUTPUT) || value.graph.is_known()) && value.device != Device::Cpu,
        _ => false,
    };
    match &store.value.kind {
        Kind::Tuple(parts) => parts.iter().any(is_one),
        Kind::Container { .. } => store.value.is(Flags::OUTPUT),
        _ => is_one(&store.value),
    }
}

/// Finds evaluations by a Hugging Face trainer that keep all logits on the GPU until they end.
fn of_trainers(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut settings = facts.calls.iter().filter(|call| {
        call.is("transformers.TrainingArguments") || call.is("transformers.Seq2SeqTrainingArguments")
    });
    let (first, second) = (settings.next(), settings.next());
    if first.is_none() {
        of_parsed_settings(context, findings);
    }
    let (Some(settings), None) = (first, second) else { return };
    let generates =
        settings.keyword("predict_with_generate").is_some_and(|set| set.value.truth() != Some(false));
    if settings.is_open() || generates || settings.keyword("eval_accumulation_steps").is_some() {
        return;
    }
    let is_trainer = |call: &&Call| call.is("transformers.Trainer") || call.is("transformers.Seq2SeqTrainer");
    for trainer in facts.calls.iter().filter(is_trainer).filter(|call| !call.is_open()) {
        let set = |name: &str| trainer.keyword(name).is_some_and(|given| given.value.kind != Kind::None);
        let Some(metrics) = trainer.keyword("compute_metrics").filter(|_| set("compute_metrics")) else {
            continue;
        };
        if !set("eval_dataset")
            || set("preprocess_logits_for_metrics")
            || !evaluates(facts, settings)
            || !has_many_logits(facts, trainer)
        {
            continue;
        }
        findings
            .report(metrics.span, "each evaluation holds the logits of the whole data set on the GPU until it ends")
            .label(trainer.span, "in this trainer")
            .label(settings.span, "no `eval_accumulation_steps`")
            .help("pass `preprocess_logits_for_metrics` that returns only what the metric needs, such as `logits.argmax(-1)`, or set `eval_accumulation_steps`");
    }
}

/// Finds trainers that compute metrics of all logits, whose settings come from the command line.
fn of_parsed_settings(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let limits = ["eval_accumulation_steps", "preprocess_logits_for_metrics", "predict_with_generate"];
    if !facts.calls.iter().any(|call| call.is("transformers.HfArgumentParser"))
        || limits.iter().any(|setting| facts.text.contains(setting))
    {
        return;
    }
    let trainers = facts.calls.iter().filter(|call| call.is("transformers.Trainer"));
    for trainer in trainers.filter(|trainer| has_many_logits(facts, trainer)) {
        let metrics = trainer.keyword("compute_metrics").filter(|given| given.value.kind != Kind::None);
        let Some(metrics) = metrics else { continue };
        findings
            .report(metrics.span, "each evaluation holds the logits of the whole data set on the GPU until it ends, unless `--eval_accumulation_steps` is given")
            .note_unless(false)
            .label(trainer.span, "in this trainer")
            .help("pass `preprocess_logits_for_metrics` that returns only what the metric needs, such as `logits.argmax(-1)`");
    }
}

/// Returns `true` if a trainer with these settings evaluates.
fn evaluates(facts: &memfit_source::Facts, settings: &Call) -> bool {
    let strategy = settings.keyword("eval_strategy").or_else(|| settings.keyword("evaluation_strategy"));
    // `"steps" if val_data is not None else "no"`
    let chosen = |strategy: &Argument| {
        let text = facts.slice(strategy.value_span);
        text.contains(" if ") && ["\"steps\"", "\"epoch\""].iter().any(|word| text.contains(word))
    };
    strategy
        .is_some_and(|strategy| strategy.value.text().is_some_and(|text| text != "no") || chosen(strategy))
        || facts.calls.iter().any(|call| call.is_method("evaluate"))
}

/// Returns `true` if the trainer's model returns scores for each token, over the vocabulary or over labels.
fn has_many_logits(facts: &memfit_source::Facts, trainer: &Call) -> bool {
    let Some(model) = trainer.argument(0, "model") else { return false };
    let made =
        |call: &&Call| call.result.is_module() && facts.covers(&call.result.weights, &model.value.weights);
    facts.calls.iter().filter(made).any(|call| {
        let path = call.path.as_deref().unwrap_or_default();
        let heads = [
            "ForCausalLM",
            "ForMaskedLM",
            "LMHeadModel",
            "ForTokenClassification",
            "ForSeq2SeqLM",
            "ForConditionalGeneration",
        ];
        heads
            .iter()
            .any(|head| path.strip_suffix(".from_pretrained").is_some_and(|class| class.ends_with(head)))
    })
}
