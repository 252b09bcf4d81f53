//! # whole-set-in-one-batch
//!
//! ## What it does
//! Finds evaluation in a single batch of the whole data set, by a loop or by a function that gets the loader.
//! A loader for validation or tests that a function hands on beside one with batches counts as well, and so
//! does one that a function of the file makes with a size that it is given.
//!
//! ## Why
//! The batch and its activations are as large as the data set, so that the memory for an evaluation grows
//! with it. Measured with a set of 16 batches: a peak of 385 MiB instead of 25 MiB.
//!
//! ## Example
//! ```python
//! loader = DataLoader(dataset, batch_size=len(dataset))
//! with torch.no_grad():
//!     for x, y in loader:
//!         model(x.cuda())
//! ```
//! Use instead:
//! ```python
//! loader = DataLoader(dataset, batch_size=256)
//! with torch.no_grad():
//!     for x, y in loader:
//!         model(x.cuda())
//! ```
//!
//! ## Fix safety
//! No fix: results of several batches must be combined.
//!
//! ## References
//! - [torch.utils.data](https://docs.pytorch.org/docs/stable/data.html#loading-batched-and-non-batched-data)

use memfit_source::{Argument, Call, Facts, Grad, IterableKind, Kind, Op, OpKind, Span, Value};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "whole-set-in-one-batch",
    severity: Severity::Warning,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    by_functions(context, findings);
    for index in &facts.loaders {
        let Some(loader) = facts.calls.get(*index) else { continue };
        let Some(set) = loader.argument(0, "dataset") else { continue };
        let Some(size) = loader.argument(1, "batch_size") else { continue };
        let set = context.slice(set.value_span);
        let counts = |call: &Call| {
            let of = if call.is("builtins.len") {
                call.arguments.first().map(|of| of.value_span)
            } else if call.is_method("__len__") {
                call.receiver.as_ref().map(|of| of.span)
            } else {
                None
            };
            let is_size = call.span == size.value_span
                || facts.bound_to(call.span) == Some(context.slice(size.value_span));
            is_size && of.is_some_and(|of| context.slice(of) == set)
        };
        if !facts.calls.iter().any(counts) {
            continue;
        }
        // A model is evaluated on it on the GPU, and nothing is trained.
        let evaluates = |id: memfit_source::LoopId| {
            let forward = facts.ops_in(id).any(|op| op.kind == OpKind::Forward);
            let on_card = facts.calls.iter().any(|call| {
                facts.within(&call.site, id)
                    && (call.is_method("cuda") || call.is_method("to"))
                    && call.result.device.is_gpu()
            });
            forward && on_card && !facts.trains(id)
        };
        let over = facts.calls.get(*index).and_then(|_| {
            facts.ops.iter().filter_map(|op| op.site.looped).find(|id| {
                let IterableKind::Loader(Some(of)) = facts.looped(*id).iterable_kind else { return false };
                facts.loader(of).is_some_and(|call| call.span == loader.span) && evaluates(*id)
            })
        });
        let place = over.map(|id| facts.looped(id).header).or_else(|| evaluated_by(facts, loader));
        let Some(place) = place.or_else(|| handed_on(context, *index, loader)) else { continue };
        findings
            .report(
                size.span,
                format!("the whole of `{set}` is one batch: its memory grows with the data set"),
            )
            .label(place, "the model gets the whole batch")
            .help("set a batch size, and add up the results");
    }
}

/// Finds `make_loader(x_val, y_val, len(x_val))`, where the function makes a loader with this size of its
/// batches, and the file makes others with it.
fn by_functions(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for loader in facts.loaders.iter().filter_map(|index| facts.calls.get(*index)) {
        let Some(size) = loader.argument(1, "batch_size") else { continue };
        let (function, name) = (facts.function(loader.site.function), context.slice(size.value_span));
        let Some(place) = function.parameters.iter().position(|parameter| parameter == name) else {
            continue;
        };
        let callers = || {
            let made = facts.calls_of(loader.site.function);
            made.filter_map(|call| Some((call, call.argument(place, name)?)))
        };
        let counted = |call: &Call, size: &Argument| {
            let text = context.slice(size.value_span);
            let of = text.strip_prefix("len(").and_then(|rest| rest.strip_suffix(')'))?;
            let given = call.arguments.iter().any(|other| context.slice(other.value_span) == of);
            given.then(|| of.to_owned())
        };
        let has_others = callers().any(|(call, size)| counted(call, size).is_none());
        for (call, size) in callers().filter(|_| has_others && context.project.on_card) {
            let evaluates = facts.bound_to(call.span).is_some_and(names_evaluation);
            let Some(set) = counted(call, size).filter(|_| evaluates) else { continue };
            findings
                .report(
                    size.span,
                    format!("the whole of `{set}` is one batch: its memory grows with the data set"),
                )
                .label(loader.span, "the loader is made here")
                .help("set a batch size, and add up the results");
        }
    }
}

/// Returns `true` for the name of a set or loader for evaluation.
fn names_evaluation(name: &str) -> bool {
    crate::query::words(name).any(|word| {
        word.split('_').any(|part| {
            let part = part.to_ascii_lowercase();
            ["val", "valid", "validation", "test", "eval", "dev"].contains(&part.as_str())
        })
    })
}

/// Call of a function of the project that evaluates a model over a loader, and does not train.
fn evaluated_by(facts: &Facts, loader: &Call) -> Option<Span> {
    let is_loader = |value: &Value| match value.kind {
        Kind::Loader(Some(id)) => facts.loader(id).is_some_and(|call| call.span == loader.span),
        _ => false,
    };
    let is_batch = |value: &Value| {
        value.loader.and_then(|id| facts.loader(id)).is_some_and(|call| call.span == loader.span)
    };
    let on_card = facts
        .calls
        .iter()
        .any(|call| (call.is_method("cuda") || call.is_method("to")) && call.result.device.is_gpu());
    facts.calls.iter().filter(|_| on_card).find_map(|call| {
        let given = call.arguments.iter().any(|argument| is_loader(&argument.value));
        // `model(next(iter(loader)))`
        let passed = facts.ops.iter().find(|op| op.kind == OpKind::Forward && op.span == call.span);
        let fed = passed.is_some_and(|op| op.site.looped.is_none() || op.site.grad == Grad::Off)
            && call.arguments.iter().any(|argument| is_batch(&argument.value))
            && !facts
                .ops
                .iter()
                .any(|op| matches!(op.kind, OpKind::Backward(_)) && op.site.function == call.site.function);
        if fed {
            return Some(call.span);
        }
        let own =
            |op: &&Op| op.call == Some(call.span) || call.function.is_some_and(|id| op.site.function == id);
        let runs = facts.ops.iter().filter(own).any(|op| op.kind == OpKind::Forward);
        let trains = facts.ops.iter().filter(own).any(|op| matches!(op.kind, OpKind::Backward(_)));
        (given && runs && !trains).then_some(call.span)
    })
}

/// Loader that the file makes beside another one with batches, and hands on: another file evaluates with it.
fn handed_on(context: &Context<'_>, index: usize, loader: &Call) -> Option<Span> {
    let facts = context.facts;
    let is_size = |call: &Call| {
        call.argument(1, "batch_size").is_some_and(|size| {
            let text = facts.slice(size.value_span);
            !text.contains("len(") && !text.contains("__len__")
        })
    };
    // One loader of the file has batches of a chosen size.
    let beside = facts
        .loaders
        .iter()
        .filter(|other| **other != index)
        .any(|other| facts.calls.get(*other).is_some_and(is_size));
    let target = facts.bound_to(loader.span);
    let function = facts.function(loader.site.function);
    let named = names_evaluation(target.unwrap_or(&function.name));
    // What this file does with it is known.
    let is_used = facts.loops.iter().any(|looped| {
        matches!(looped.iterable_kind, IterableKind::Loader(Some(of)) if facts.loader(of).is_some_and(|call| call.span == loader.span))
    }) || facts.calls.iter().any(|call| {
        call.is("builtins.next") || call.is("builtins.iter")
    });
    let leaves = target.is_some_and(|name| name.starts_with("self."))
        || function.returned_parts().any(|part| {
            let is_named = |name: &str| crate::query::words(facts.slice(part.span)).any(|word| word == name);
            part.span.contains(loader.span) || target.is_some_and(is_named)
        });
    // Lightning moves the batches of its data modules.
    let is_moved = function.class.is_some_and(|class| {
        let mut bases = facts.class(class).bases.iter();
        bases.any(|base| base.ends_with("LightningDataModule") || base.ends_with("LightningModule"))
    });
    let on_card = context.project.on_card || is_moved;
    (beside && named && !is_used && leaves && on_card).then_some(loader.span)
}
