//! Loops over data whose iterable is no loader: over batches by their name, over an iterator that each
//! iteration draws from, or over the positions at which batches are cut.

use memfit_source::{IterableKind, LoopId, Span};

use crate::query::words;
use crate::rule::Context;

/// Returns `true` for a loop that processes one batch in each iteration, as far as the text shows.
pub(crate) fn is_over_data(context: &Context<'_>, looped: LoopId) -> bool {
    let facts = context.facts;
    let found = facts.looped(looped);
    let counts = matches!(found.iterable_kind, IterableKind::Range(_));
    let is_other = found.iterable_kind == IterableKind::Other && !found.is_while;
    facts.over_batches(looped)
        || is_other && yields_batches(context, looped)
        || counts && (draws_batches(context, looped) || cuts_batches(context, looped))
}

/// `for batch in …`, `for x in minibatches(data):`
fn yields_batches(context: &Context<'_>, looped: LoopId) -> bool {
    let found = context.facts.looped(looped);
    // `batch_idx`, `num_batches` and `batch_size` are numbers.
    let is_batch = |name: &String| name == "batch" || name == "minibatch" || name.ends_with("_batch");
    let iterable = context.slice(found.iterable);
    let callee = iterable.split('(').next().unwrap_or_default();
    let makes = callee.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    found.targets.iter().any(is_batch)
        || iterable.ends_with(')') && (makes.contains("batches") || makes.contains("minibatch"))
}

/// `for _ in range(n): x, y = next(batches)`
fn draws_batches(context: &Context<'_>, looped: LoopId) -> bool {
    let facts = context.facts;
    let draws = |call: &memfit_source::Call| {
        let name = context.slice(call.callee);
        name == "next" || call.is_method("next") && call.arguments.is_empty()
    };
    facts.calls.iter().any(|call| call.site.looped == Some(looped) && draws(call))
}

/// `for i in range(0, len(x), n): part = x[i : i + n]`
fn cuts_batches(context: &Context<'_>, looped: LoopId) -> bool {
    let found = context.facts.looped(looped);
    let [counter] = found.targets.as_slice() else { return false };
    let body = context.slice(Span::new(found.header.end, found.span.end));
    let mut rest = body;
    while let Some((_, after)) = rest.split_once('[') {
        let inside = after.split(']').next().unwrap_or_default();
        // Only the first dimension: `x[:, i:]` cuts a sequence.
        let first = inside.split(',').next().unwrap_or_default();
        if let Some((from, to)) = first.split_once(':') {
            let uses = |text: &str| words(text).any(|word| word == counter);
            if uses(from) && uses(to) {
                return true;
            }
        }
        rest = after;
    }
    false
}
