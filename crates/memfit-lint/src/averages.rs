//! Moving averages of parameters that are updated in place with gradients on: each update hangs on the one
//! before.

use memfit_source::{Call, Facts, FunctionId, Grad, LoopId, OpKind, assigned_text};

use crate::query::words;
use crate::rule::{Context, Findings};

/// Methods that add a parameter, which is their first argument, to an average in place.
const UPDATES: &[&str] = &["add_", "lerp_"];

/// Reports `average.mul_(decay).add_(parameter, alpha=1 - decay)` with gradients on, in a function that a
/// training runs.
pub(crate) fn report(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in &facts.calls {
        let id = call.site.function;
        let (Some(looped), Some(given)) = (call.site.looped, call.arguments.first()) else { continue };
        let parameter = facts.slice(given.value_span);
        if !UPDATES.iter().any(|name| call.is_method(name))
            || !call.is_statement
            || call.site.grad != Grad::On
            || id == FunctionId::MODULE
            || !is_parameter(facts, parameter, looped)
            || !is_average(facts, call)
            || context.may_be_without_grad(id)
        {
            continue;
        }
        let is_run =
            facts.calls_of(id).any(|call| call.site.looped.is_some()) || context.is_looped_by_others(id);
        // Whoever steps by hand turns gradients off, or gets an error.
        let steps = facts.ops.iter().any(|op| op.site.function == id && op.kind.updates());
        if is_run && !steps {
            findings
                .report(
                    given.value_span,
                    format!("each update of this average takes `{parameter}` with its gradient: its graph grows by a node in every step"),
                )
                .help(format!("decorate the function with `@torch.no_grad()`, or pass `{parameter}.detach()`"));
        }
    }
}

/// Returns `true` for a variable of a loop over the parameters of a model.
fn is_parameter(facts: &Facts, name: &str, looped: LoopId) -> bool {
    let found = facts.looped(looped);
    if !found.targets.iter().any(|target| target == name) {
        return false;
    }
    let iterable = facts.slice(found.iterable);
    let lists = |text: &str| text.contains("parameters()") && !text.contains("state_dict");
    // `for name, parameter in parameters.items():`
    let owner = iterable.strip_suffix(".items()").or_else(|| iterable.strip_suffix(".values()"));
    let body = facts.slice(facts.function(found.function).span);
    lists(iterable)
        || owner.is_some_and(|owner| body.lines().filter_map(|line| assigned_text(line, owner)).any(lists))
}

/// Returns `true` if what a call updates is an average of parameters, and not the data of one.
fn is_average(facts: &Facts, call: &Call) -> bool {
    let Some(receiver) = &call.receiver else { return false };
    let text = facts.slice(receiver.span);
    let is_cut = ["data", "detach", "grad", "clone"].iter().any(|word| words(text).any(|part| part == *word));
    let copies = facts.ops.iter().any(|op| {
        op.kind == OpKind::CopyWeights && call.span.start <= op.span.start && op.span.end <= call.span.end
    });
    !is_cut && (copies || text.contains(".mul_("))
}
