//! # no-grad-not-called
//!
//! ## What it does
//! Finds `with torch.no_grad:` and similar contexts without parentheses.
//!
//! ## Why
//! The class itself is no context manager, so the line raises `TypeError`, or `AttributeError` on Python
//! 3.10. Measured: 2 of 2 such contexts, `no_grad` and `inference_mode`, raise. (`@torch.no_grad` as a
//! decorator works.)
//!
//! ## Example
//! ```python
//! with torch.no_grad:
//!     out = model(x)
//! ```
//! Use instead:
//! ```python
//! with torch.no_grad():
//!     out = model(x)
//! ```
//!
//! ## Fix safety
//! Safe: the line cannot run without the fix.
//!
//! ## References
//! - [torch.no_grad](https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html)

use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "no-grad-not-called", severity: Severity::Error, fixes: Fixes::Safe, on: true, check };

const CONTEXTS: &[&str] = &[
    "torch.no_grad",
    "torch.inference_mode",
    "torch.enable_grad",
    "torch.autograd.no_grad",
    "torch.autograd.enable_grad",
    "torch.autograd.set_detect_anomaly",
    "torch.autograd.detect_anomaly",
];

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for with in &context.facts.withs {
        let Some(path) = with.path.as_deref().filter(|path| !with.called && CONTEXTS.contains(path)) else {
            continue;
        };
        findings
            .report(with.item, format!("`{path}` is a class, not a context: this line raises `TypeError` (`AttributeError` on Python 3.10)"))
            .help(format!("write `{}()`", context.slice(with.item)))
            .fix(Fix::safe("Call it", vec![Edit::insert(with.item.end, "()")]));
    }
}
