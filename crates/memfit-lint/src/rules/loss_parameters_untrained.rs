//! # loss-parameters-untrained
//!
//! ## What it does
//! Finds loss functions of the project with parameters of their own that no optimizer holds.
//!
//! ## Why
//! A loss such as one with class centers, a temperature or a margin has parameters that must be trained with
//! the model. They get gradients in each step, keep their first values, and nothing says so. Measured: after
//! three steps, the parameter has its first value.
//!
//! ## Example
//! ```python
//! class ScaledLoss(torch.nn.Module):
//!     def __init__(self):
//!         super().__init__()
//!         self.scale = torch.nn.Parameter(torch.ones(1))
//!     def forward(self, out, y):
//!         return torch.nn.functional.cross_entropy(self.scale * out, y)
//! criterion = ScaledLoss()
//! optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//! ```
//! Use instead:
//! ```python
//! class ScaledLoss(torch.nn.Module):
//!     def __init__(self):
//!         super().__init__()
//!         self.scale = torch.nn.Parameter(torch.ones(1))
//!     def forward(self, out, y):
//!         return torch.nn.functional.cross_entropy(self.scale * out, y)
//! criterion = ScaledLoss()
//! optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [Parameter](https://docs.pytorch.org/docs/stable/generated/torch.nn.parameter.Parameter.html)

use memfit_source::{Call, Facts, Flags, Kind, OpKind, Overlap};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "loss-parameters-untrained",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for made in &facts.calls {
        let weights = &made.result.weights;
        let class = context.slice(made.callee).rsplit('.').next().unwrap_or_default();
        let is_loss = ["Loss", "Criterion"].iter().any(|end| class.ends_with(end))
            && !made.path.as_deref().is_some_and(|path| path.starts_with("torch."));
        // Layers of a loss are those of a network that judges, and is frozen.
        let has_layers = match made.target.kind {
            Kind::Class(class) => !facts.class(class).only_parameters,
            _ => made.path.is_none(),
        };
        if !is_loss || has_layers || !facts.are_parameters(weights) || made.result.is(Flags::FROZEN) {
            continue;
        }
        let Some(name) = facts.bound_to(made.span) else { continue };
        // It is called in a training step.
        let runs = |call: &&Call| context.slice(call.callee) == name || is_run_by(facts, call, name);
        let reached = facts.calls.iter().filter(runs).find_map(|call| {
            facts.ops.iter().find(|op| {
                matches!(op.kind, OpKind::Backward(_))
                    && op.site.function == call.site.function
                    && op.site.looped == call.site.looped
                    && op.span.end > call.span.start
            })
        });
        let Some(pass) = reached else { continue };
        let mut optimizers =
            facts.calls.iter().filter(|call| matches!(call.result.kind, Kind::Optimizer)).peekable();
        let known = optimizers.peek().is_some();
        let apart = |call: &Call| facts.overlap(&call.result.weights, weights) == Overlap::No;
        // What is done with its parameters elsewhere is not followed.
        let handled =
            [".parameters(", ".named_parameters(", ".requires_grad_(", ".eval("].iter().any(|method| {
                let used = format!("{name}{method}");
                facts.text.lines().any(|line| line.contains(&used) && !line.contains("clip_grad_"))
            });
        if known && optimizers.all(apart) && !handled {
            findings
                .report(
                    made.span,
                    format!("no optimizer holds the parameters of `{name}`: they keep their first values"),
                )
                .label(pass.call.unwrap_or(pass.span), "this computes their gradients")
                .help(format!("give the optimizer `{name}.parameters()` as well"));
        }
    }
}

/// Returns `true` for the call of a function of the text that gets the loss, calls it, and returns what it
/// gives.
fn is_run_by(facts: &Facts, call: &Call, name: &str) -> bool {
    let Some(id) = call.function.filter(|id| facts.function(*id).hands_on) else { return false };
    let parameters = &facts.function(id).parameters;
    parameters.iter().enumerate().any(|(index, parameter)| {
        facts.given(call, id, index).is_some_and(|given| facts.slice(given.value_span) == name)
            && facts
                .calls
                .iter()
                .any(|inner| inner.site.function == id && facts.slice(inner.callee) == parameter.as_str())
    })
}
