//! # no-sync-missing
//!
//! ## What it does
//! Notes gradient accumulation under `DistributedDataParallel` without `no_sync()`.
//!
//! ## Why
//! DDP synchronises all gradients after every backward pass, but only those of the last micro-batch of a
//! window are needed. Without `no_sync()`, a window of `k` sends `k` times as much (measured in bytes, with a
//! window of four).
//!
//! ## Example
//! ```python
//! model = DDP(model)
//! for i, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / k).backward()
//!     if (i + 1) % k == 0:
//!         optimizer.step()
//! ```
//! Use instead:
//! ```python
//! model = DDP(model)
//! for i, (x, y) in enumerate(loader):
//!     with contextlib.nullcontext() if (i + 1) % k == 0 else model.no_sync():
//!         (criterion(model(x), y) / k).backward()
//!     if (i + 1) % k == 0:
//!         optimizer.step()
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [no_sync](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)

use memfit_source::Flags;

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "no-sync-missing", severity: Severity::Note, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let Some(wrapped) = facts.calls.iter().find(|call| call.result.is(Flags::DISTRIBUTED)) else { return };
    if facts.text.contains("no_sync") || facts.text.contains("require_backward_grad_sync") {
        return;
    }
    for window in facts.windows.iter().filter(|window| window.counted.rounds != Some(1)) {
        let op = &facts.ops[window.backwards[0]];
        findings
            .report(
                op.span,
                format!(
                    "the gradients are synchronised after every micro-batch, but needed only every `{}`",
                    context.slice(window.counted.period)
                ),
            )
            .label(wrapped.span, "the model is wrapped here")
            .help("run all but the last backward pass of a window under `no_sync()`");
    }
}
