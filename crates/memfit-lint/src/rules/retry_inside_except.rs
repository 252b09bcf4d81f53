//! # retry-inside-except
//!
//! ## What it does
//! Finds retries inside the `except` clause that caught the out-of-memory error, and loops that keep the
//! exception while they retry. A training step may keep it in an attribute.
//!
//! ## Why
//! During the `except` clause, the exception holds its traceback, which holds the frames, which hold the
//! tensors of the failed attempt. Measured with an attempt that had 64 MiB: 64 MiB are held inside the
//! handler, and none after it. The second attempt has that much less memory than the first. An exception
//! bound to another name holds them after the handler, too.
//!
//! ## Example
//! ```python
//! try:
//!     train(64)
//! except torch.OutOfMemoryError:
//!     train(32)
//! ```
//! Use instead:
//! ```python
//! failed = False
//! try:
//!     train(64)
//! except torch.OutOfMemoryError:
//!     failed = True
//! if failed:
//!     train(32)
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [Frequently asked questions](https://docs.pytorch.org/docs/stable/notes/faq.html#my-out-of-memory-exception-handler-can-t-allocate-memory)

use memfit_source::{Call, Facts, Handler, HandlerId, Kind, Op, OpKind, Span, StoreKind, Value};

use crate::query::{catches_all, catches_memory, has_constant_key, is_step};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "retry-inside-except", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    report_kept_exceptions(context, findings);
    kept(context, findings);
    for (index, handler) in facts.handlers.iter().enumerate() {
        if !catches_oom(handler) {
            continue;
        }
        let inside = |site: &memfit_source::Site| {
            site.handler.is_some_and(|id| std::ptr::eq(facts.handler(id), &raw const facts.handlers[index]))
        };
        let tried = |site: &memfit_source::Site| site.tried == Some(handler.tried) && !inside(site);
        // The same function as in the `try` block, or the enclosing one.
        let own = facts.function(handler.site.function).name.rsplit('.').next().unwrap_or_default();
        let again = facts.calls.iter().filter(|call| inside(&call.site)).find(|call| {
            let name = context.slice(call.callee);
            let last = name.rsplit('.').next().unwrap_or(name);
            let helper =
                ["empty_cache", "print", "collect", "zero_grad", "str", "format", "len", "int", "max"]
                    .contains(&last)
                    || call.is_method("zero_grad");
            let recursive = !own.is_empty() && last == own && (call.function.is_some());
            let repeated = facts.calls.iter().any(|other| {
                tried(&other.site)
                    && context.slice(other.callee) == name
                    && (call.function.is_some() || call.receiver.is_none())
                    && computes(facts, call)
            });
            !helper
                && call
                    .path
                    .as_deref()
                    .is_none_or(|path| !path.starts_with("builtins") && !path.starts_with("torch.cuda"))
                && (recursive || repeated)
        });
        let again = again.map(|call| call.span).or_else(|| {
            facts
                .ops
                .iter()
                .filter(|op| inside(&op.site))
                .find(|op| facts.ops.iter().any(|other| tried(&other.site) && is_again(op, other)))
                .map(|op| op.span)
        });
        let Some(again) = again else { continue };
        // A retry on the host does not need the held memory.
        let text = context.slice(handler.span);
        if text.contains(".cpu()") || text.contains("\"cpu\"") || text.contains("'cpu'") {
            continue;
        }
        findings
            .report(again, "the exception's traceback still holds the failed attempt's tensors here")
            .label(handler.header, "they are freed when this block has ended")
            .help("set a flag here, and try again after the `except`");
    }
}

/// Returns `true` if a call may need device memory: a model, or a model or batch as an argument.
fn computes(facts: &Facts, call: &Call) -> bool {
    let does = |op: &Op| {
        matches!(op.kind, OpKind::Forward | OpKind::Backward(_))
            && (Some(op.site.function) == call.function || (op.via.is_some() && op.via == call.function))
    };
    let takes = |value: &Value| matches!(value.kind, Kind::Module | Kind::Tensor | Kind::Loader(_));
    facts.ops.iter().any(does)
        || call.arguments.iter().any(|argument| takes(&argument.value))
        || call.path.as_deref().unwrap_or_else(|| facts.slice(call.callee)).contains("train")
}

/// Returns `true` if the call is the same as in the `try` block.
fn is_again(op: &Op, other: &Op) -> bool {
    match (&op.kind, &other.kind) {
        (OpKind::Forward, OpKind::Forward) => op.receiver == other.receiver,
        (OpKind::Backward(_), OpKind::Backward(_)) => true,
        _ => false,
    }
}

fn catches_oom(handler: &Handler) -> bool {
    catches_memory(handler) || (catches_all(handler) && handler.reads_message)
}

/// Finds exceptions that outlive their handler in a loop that continues.
fn report_kept_exceptions(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for store in &facts.stores {
        let Kind::Exception(id) = store.value.kind else { continue };
        let handler = facts.handler(id);
        let looped = store.site.looped;
        if looped.is_none() && !(store.target.contains('.') && is_step(facts, store.site.function)) {
            continue;
        }
        if !catches_oom(handler)
            || !matches!(store.kind, StoreKind::Assign | StoreKind::Append | StoreKind::Item)
            || handler.site.looped != looped
        {
            continue;
        }
        // Later code may leave the loop, or delete the reference.
        let words = |span: Span| -> Vec<&str> {
            context.slice(span).split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).collect()
        };
        let after = rest_of_block(context, store.span, handler.span.end);
        let ends: &[&str] = if looped.is_some() { &["raise", "return", "break"] } else { &["raise"] };
        if words(after).iter().any(|word| ends.contains(word)) {
            continue;
        }
        let function = facts.function(store.site.function).span;
        let round = context.slice(looped.map_or(function, |id| facts.looped(id).span));
        let releases =
            ["__traceback__", "with_traceback", "clear_frames"].iter().any(|way| round.contains(way))
                || round.contains(&format!("del {}", store.target))
                || round.contains(&format!("{} = None", store.target));
        let tried = |site: &memfit_source::Site| site.tried == Some(handler.tried);
        let works = catches_memory(handler)
            || handler.reads_message
            || facts.ops.iter().any(|op| tried(&op.site))
            || facts.calls.iter().any(|call| tried(&call.site) && computes(facts, call));
        if releases || !works {
            continue;
        }
        findings
            .report(
                store.span,
                format!(
                    "`{}` keeps the exception, whose traceback holds the failed attempt's tensors while the loop continues",
                    store.target
                ),
            )
            .label(looped.map_or(handler.header, |id| facts.looped(id).header), "the next iteration has that much less memory")
            .help("store its text, `str(error)`, or a flag");
    }
}

/// Finds exceptions of training steps that a loop collects: each keeps the frames of its step, with their
/// tensors.
fn kept(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let adds = |store: &&memfit_source::Store| {
        store.kind == StoreKind::Append || store.kind == StoreKind::Item && !has_constant_key(context, store)
    };
    for store in facts.stores.iter().filter(adds).filter(|store| store.grows.is_some()) {
        let Some(handler) = exception_in(&store.value) else { continue };
        let tried = facts.handler(handler).tried;
        let trains = facts.ops.iter().any(|op| {
            op.site.tried == Some(tried) && matches!(op.kind, OpKind::Backward(_) | OpKind::Forward)
        });
        let is_said = findings
            .found
            .iter()
            .any(|found| found.span.start < store.span.end && store.span.start < found.span.end);
        if trains && !is_said {
            findings
                .report(
                    store.value_span,
                    "the exception keeps the frames of the failed step, and with them its tensors",
                )
                .help("keep its text: `str(error)`");
        }
    }
}

/// Clause of an exception that a value is, or of which it has one: `(index, error)`, `{"error": error}`.
fn exception_in(value: &Value) -> Option<HandlerId> {
    match &value.kind {
        Kind::Exception(id) => Some(*id),
        Kind::Tuple(parts) => parts.iter().find_map(exception_in),
        _ => value.elements().and_then(exception_in),
    }
}

/// What follows a statement in its block.
fn rest_of_block(context: &Context<'_>, span: Span, end: u32) -> Span {
    let facts = context.facts;
    let depth = facts.line_start(span.start).1.len();
    let start = span.end.min(end);
    let text = facts.slice(Span::new(start, end));
    let mut at = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let indent = line.len() - line.trim_start().len();
        if index > 0 && !line.trim().is_empty() && indent < depth {
            break;
        }
        at += line.len();
    }
    Span::new(start, start + at as u32)
}
