//! # oom-swallowed
//!
//! ## What it does
//! Finds training steps whose errors, including out-of-memory errors, are caught and only printed.
//!
//! ## Why
//! `except RuntimeError` catches `torch.OutOfMemoryError`, shape errors and everything else. The script
//! continues as if the step had succeeded: nothing was trained, or the gradients of half a step are added to
//! those of the next. Measured with a batch of the wrong shape: three iterations end without an error, and 0
//! of 2 parameters have changed.
//!
//! ## Example
//! ```python
//! try:
//!     optimizer.zero_grad()
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//! except RuntimeError as e:
//!     print(f"Error: {e}")
//! ```
//! Use instead:
//! ```python
//! try:
//!     optimizer.zero_grad()
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//! except torch.OutOfMemoryError as e:
//!     raise SystemExit(f"does not fit: {e}")
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [torch.cuda.OutOfMemoryError](https://docs.pytorch.org/docs/stable/generated/torch.cuda.OutOfMemoryError.html)

use memfit_source::OpKind;

use crate::query::catches_all;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "oom-swallowed", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for handler in &facts.handlers {
        if !catches_all(handler) || handler.raises || !handler.only_tells {
            continue;
        }
        let trains = facts.ops.iter().any(|op| {
            op.site.tried == Some(handler.tried)
                && matches!(op.kind, OpKind::Backward(_) | OpKind::Step { .. })
        });
        // Another `except` clause may handle out-of-memory errors.
        let other = facts.handlers.iter().any(|other| {
            other.tried == handler.tried
                && other.span != handler.span
                && other.types.iter().any(|name| name.ends_with("OutOfMemoryError"))
        });
        // Around a whole loop, the training ends with the error.
        let ends = handler.site.looped.is_none()
            && facts.ops.iter().filter(|op| op.site.tried == Some(handler.tried)).all(|op| {
                op.site.looped.is_some()
                    || op.deep
                    || !matches!(op.kind, OpKind::Backward(_) | OpKind::Step { .. })
            });
        if !trains || other || ends || handler.leaves {
            continue;
        }
        let what = if handler.types.is_empty() {
            "everything".to_owned()
        } else {
            format!("any `{}`", handler.types.join("`, `"))
        };
        findings
            .report(
                handler.header,
                format!(
                    "{what} is caught here and only reported: a step that ran out of memory counts as done"
                ),
            )
            .help("catch only `torch.OutOfMemoryError`, and handle it or let it end the program");
    }
}
