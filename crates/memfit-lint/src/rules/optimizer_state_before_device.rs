//! # optimizer-state-before-device
//!
//! ## What it does
//! Finds optimizer state that is loaded while the model is on the host, and that stays there.
//!
//! ## Why
//! `load_state_dict` places the state on the current device of each parameter. A later `model.to(device)`
//! moves the parameters but not the state: the moments are on the host, the gradients on the GPU, and the
//! first step raises an error. Measured with Adam: 2 MiB of moments stay on the host.
//!
//! ## Example
//! ```python
//! model = torch.nn.Linear(4, 4)
//! optimizer = torch.optim.Adam(model.parameters())
//! optimizer.load_state_dict(torch.load("optimizer.pt"))
//! model.cuda()
//! for x, y in loader:
//!     criterion(model(x.cuda()), y.cuda()).backward()
//!     optimizer.step()
//! ```
//! Use instead:
//! ```python
//! model = torch.nn.Linear(4, 4).cuda()
//! optimizer = torch.optim.Adam(model.parameters())
//! optimizer.load_state_dict(torch.load("optimizer.pt"))
//! for x, y in loader:
//!     criterion(model(x.cuda()), y.cuda()).backward()
//!     optimizer.step()
//! ```
//!
//! ## Fix safety
//! No fix: lines would have to be reordered, and the lines between them may depend on the order.
//!
//! ## References
//! - [torch.optim.Optimizer.load_state_dict](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.load_state_dict.html)

use memfit_source::{Call, Kind, OpKind, Overlap, Value, Weights};

use crate::query::optimizers_of;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "optimizer-state-before-device",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

/// Calls that load the state of an optimizer, with the optimizer and its name: `load_state_dict()` itself,
/// and calls of a function that loads the state of a parameter.
fn loads<'a>(context: &'a Context<'_>) -> Vec<(&'a Call, &'a Value, &'a str)> {
    let facts = context.facts;
    let mut found = Vec::new();
    for loaded in facts.calls.iter().filter(|call| call.is_method("load_state_dict")) {
        let Some(optimizer) = &loaded.receiver else { continue };
        let name = context.slice(optimizer.span);
        found.push((loaded, &optimizer.value, name));
        let function = facts.function(loaded.site.function);
        let Some(position) = function.parameters.iter().position(|parameter| parameter == name) else {
            continue;
        };
        let position = position - usize::from(function.class.is_some() && position > 0);
        let callers = facts.calls_of(loaded.site.function);
        found.extend(callers.filter_map(|call| {
            let given = call.argument(position, name)?;
            Some((call, &given.value, context.slice(given.value_span)))
        }));
    }
    found
}

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for (loaded, optimizer, name) in loads(context) {
        let held = &optimizer.weights;
        if optimizer.kind != Kind::Optimizer {
            continue;
        }
        // A model by its parameters, or by the name under which the optimizer got them.
        let holds = |model: &str, weights: &Weights| {
            held.is_exact() && facts.overlap(weights, held) == Overlap::Yes
                || optimizers_of(facts, model, weights).any(|made| facts.bound_to(made.span) == Some(name))
        };
        let same = |call: &Call| call.site.function == loaded.site.function;
        let moves = |call: &&Call| {
            same(call)
                && (call.is_method("to") || call.is_method("cuda"))
                && call.result.device.is_gpu()
                && call.receiver.as_ref().is_some_and(|model| {
                    model.value.is_module() && holds(context.slice(model.span), &model.value.weights)
                })
        };
        // `model = make().to(device)`
        let made_there = facts.calls.iter().any(|call| {
            (call.is_method("to") || call.is_method("cuda"))
                && call.result.device.is_gpu()
                && facts.bound_to(call.span).is_some_and(|model| holds(model, &call.result.weights))
                && call.site.order < loaded.site.order
        });
        let Some(moved) = facts.calls.iter().filter(moves).find(|call| call.site.order > loaded.site.order)
        else {
            continue;
        };
        // The model was on the device before, the state is moved as well, or another optimizer is created.
        let was_there =
            made_there || facts.calls.iter().filter(moves).any(|call| call.site.order < loaded.site.order);
        let anew = facts.calls.iter().any(|call| {
            call.site.order > loaded.site.order && matches!(call.result.kind, Kind::Optimizer) && same(call)
        });
        // An attribute may be moved in another method.
        let own = context.slice(facts.function(loaded.site.function).span);
        let own = if own.is_empty() || name.starts_with("self.") { &facts.text } else { own };
        let state = format!("{name}.state");
        let by_hand = own.match_indices(&state).any(|(at, _)| !own[at + state.len()..].starts_with('_'));
        let steps = facts
            .ops
            .iter()
            .any(|op| matches!(op.kind, OpKind::Step { .. }) && op.site.order > moved.site.order);
        // Without momentum, there is no state.
        let is_plain = facts.calls.iter().any(|call| {
            call.is("torch.optim.SGD")
                && facts.covers(&call.result.weights, held)
                && call.argument(2, "momentum").is_none_or(|momentum| momentum.value.int() == Some(0))
        });
        if was_there || anew || by_hand || is_plain || !steps || moved.site.guard.is_some() {
            continue;
        }
        findings
            .report(
                loaded.span,
                format!("the state of `{name}` stays on the host: the model is moved to the GPU only later"),
            )
            .label(moved.span, "this moves the parameters, but not the state")
            .help("move the model first, then load the optimizer's state");
    }
}
