//! # parameter-not-leaf
//!
//! ## What it does
//! Finds parameters that are moved or cast in the expression that makes them: `nn.Parameter(x).to(device)`.
//!
//! ## Why
//! `to()` and the like return a new tensor, which is computed from the parameter. The module registers no
//! parameter: `parameters()` and `state_dict()` do not have it, no optimizer trains it, and its gradient is
//! lost. Where nothing has to be moved or cast, the same line works, as on the CPU. Measured with a cast to
//! float64: 0 parameters are registered; with the cast inside, 1.
//!
//! ## Example
//! ```python
//! class Scale(torch.nn.Module):
//!     def __init__(self, device):
//!         super().__init__()
//!         self.scale = torch.nn.Parameter(torch.ones(4)).to(device)
//! ```
//! Use instead:
//! ```python
//! class Scale(torch.nn.Module):
//!     def __init__(self, device):
//!         super().__init__()
//!         self.scale = torch.nn.Parameter(torch.ones(4, device=device))
//! ```
//!
//! ## Fix safety
//! No fix: the parameter is trained after it, which changes the results.
//!
//! ## References
//! - [Parameter](https://docs.pytorch.org/docs/stable/generated/torch.nn.parameter.Parameter.html)

use memfit_source::{Call, Device};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "parameter-not-leaf", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

/// Methods that return a tensor that is no parameter. `float()` and `contiguous()` are not among them: new
/// tensors are contiguous and of that type.
const MOVES: &[&str] = &["to", "cuda", "half", "double", "bfloat16", "clone", "type"];

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let made = |call: &&Call| {
        call.path.as_deref().is_some_and(|path| path.starts_with("torch.nn.") && path.ends_with(".Parameter"))
    };
    for call in facts.calls.iter().filter(made) {
        let moved = facts.calls.iter().find(|other| {
            other.receiver.as_ref().is_some_and(|of| of.span == call.span)
                && MOVES.iter().any(|name| other.is_method(name))
        });
        let Some(moved) = moved else { continue };
        // What lies there already is returned as it is, and what is not trained may as well be no parameter.
        let on_host = call.argument(0, "data").is_some_and(|data| data.value.device == Device::Cpu);
        let is_cast = ["half", "double", "bfloat16", "clone"].iter().any(|name| moved.is_method(name));
        let is_off = call.argument(1, "requires_grad").is_some_and(|on| on.value.truth() == Some(false));
        if !on_host && !is_cast || is_off {
            continue;
        }
        // The result is bound to an attribute, perhaps after more such calls: `Parameter(x).half().cuda()`.
        let Some(name) = facts.bound_to(moved.span).filter(|name| name.starts_with("self.")) else {
            continue;
        };
        let is_module =
            facts.function(moved.site.function).class.is_some_and(|class| facts.class(class).is_module);
        let method = moved.method.as_deref().unwrap_or_default();
        if !is_module || moved.result.device == Device::Cpu && !is_cast {
            continue;
        }
        findings
            .report(
                moved.span,
                format!("`{name}` is no parameter: `{method}` returns a new tensor, which is not registered"),
            )
            .help("move or cast the tensor inside of `Parameter(…)`, or move the module");
    }
}
