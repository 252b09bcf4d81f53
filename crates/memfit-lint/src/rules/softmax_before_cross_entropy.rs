//! # softmax-before-cross-entropy
//!
//! ## What it does
//! Finds probabilities that are passed to a loss that takes logits, also where a model's head computes them,
//! and where a function or method of the project gives its argument to such a loss. The callers of a function
//! in other files tell which model and which loss it gets. A second log-softmax has no effect, and is left
//! alone.
//!
//! ## Why
//! `cross_entropy` applies `log_softmax` itself, so that probabilities are normalised twice. Measured: the
//! loss cannot fall below 0.55 for three classes, however good the model is; the gradients are small, and
//! another tensor of the outputs' size is held.
//!
//! ## Example
//! ```python
//! loss = F.cross_entropy(torch.softmax(model(x), dim=1), y)
//! ```
//! Use instead:
//! ```python
//! loss = F.cross_entropy(model(x), y)
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [cross_entropy](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html)

use memfit_source::{Criterion, Flags, Kind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "softmax-before-cross-entropy",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for call in &context.facts.calls {
        // The argument is checked first, since resolving the callee takes a search.
        let first = call.argument(0, "input");
        let first =
            first.filter(|first| first.value.is(Flags::SOFTMAX) || is_given_softmax(context, call, first));
        if let Some(first) = first.filter(|_| takes_logits(context, call)) {
            findings
                .report(
                    first.value_span,
                    "these are probabilities: the loss applies softmax to them once more",
                )
                .help("pass the logits");
            continue;
        }
        // A function that gives its argument to such a loss.
        let handed = call.logits.iter().filter_map(|index| call.arguments.get(*index));
        let handed =
            handed.filter(|argument| argument.value.is(Flags::SOFTMAX) && !argument.value.is(Flags::GIVEN));
        for argument in handed.filter(|_| !is_said_there(context, call)) {
            findings
                .report(
                    argument.value_span,
                    "these are probabilities: the called function's loss applies softmax to them once more",
                )
                .help("pass the logits");
        }
    }
}

/// Returns `true` if the finding is at the loss of the called function.
fn is_said_there(context: &Context<'_>, call: &memfit_source::Call) -> bool {
    let Some(function) = call.function else { return false };
    context.facts.calls.iter().filter(|other| other.site.function == function).any(|other| {
        let first = other.argument(0, "input");
        first.is_some_and(|first| first.value.is(Flags::SOFTMAX)) && takes_logits(context, other)
    })
}

fn takes_logits(context: &Context<'_>, call: &memfit_source::Call) -> bool {
    call.is("torch.nn.functional.cross_entropy")
        || context.criterion(call) == Some(Criterion::CrossEntropy)
        || {
            // The callers of a function in other files give it the loss.
            let given = context.given_to(call.site.function, context.slice(call.callee));
            !given.is_empty() && given.iter().all(|loss| loss.criterion == Some(Criterion::CrossEntropy))
        }
}

/// Returns `true` for the output of a model that all callers in other files give, and that ends in a softmax.
fn is_given_softmax(
    context: &Context<'_>,
    call: &memfit_source::Call,
    first: &memfit_source::Argument,
) -> bool {
    let facts = context.facts;
    let is_loss =
        matches!(call.target.kind, Kind::Criterion { .. }) || call.is("torch.nn.functional.cross_entropy");
    if !is_loss || !first.value.is(Flags::OUTPUT) {
        return false;
    }
    let name = context.slice(first.value_span);
    let made = facts.calls.iter().rfind(|made| {
        made.site.function == call.site.function
            && made.site.order < call.site.order
            && (facts.bound_to(made.span) == Some(name) || made.span == first.value_span)
    });
    let Some(made) = made else { return false };
    let given = context.given_to(made.site.function, context.slice(made.callee));
    !given.is_empty() && given.iter().all(|model| model.model.is_some() && model.last.has(Flags::SOFTMAX))
}

impl Context<'_> {
    /// Loss function of this file that is called.
    pub(super) fn criterion(&self, call: &memfit_source::Call) -> Option<Criterion> {
        let name = self.slice(call.callee);
        let mut made = self.facts.stores_of(name);
        let first = made.next()?;
        made.next().is_none().then_some(first)
    }
}

trait Made {
    fn stores_of<'a>(&'a self, name: &'a str) -> Box<dyn Iterator<Item = Criterion> + 'a>;
}

impl Made for memfit_source::Facts {
    fn stores_of<'a>(&'a self, name: &'a str) -> Box<dyn Iterator<Item = Criterion> + 'a> {
        Box::new(self.calls.iter().filter_map(move |call| {
            let Kind::Criterion { which, .. } = call.result.kind else { return None };
            // `CrossEntropyLoss().cuda()` is made once.
            call.path.as_ref()?;
            (self.bound_to(call.span) == Some(name)).then_some(which)
        }))
    }
}
