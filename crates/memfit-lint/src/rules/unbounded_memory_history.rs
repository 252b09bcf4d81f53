//! # unbounded-memory-history
//!
//! ## What it does
//! Finds memory history that is recorded without a limit.
//!
//! ## Why
//! By default, `_record_memory_history` keeps 2^63 - 1 events, each with its stack, so that host memory grows
//! as long as the training runs. Measured: 1,000 tensors that are allocated and freed leave 3,002 events, and
//! 100 with `max_entries=100`.
//!
//! ## Example
//! ```python
//! torch.cuda.memory._record_memory_history()
//! ```
//! Use instead:
//! ```python
//! torch.cuda.memory._record_memory_history(max_entries=100_000)
//! ```
//!
//! ## Fix safety
//! Safe: the snapshot holds the last 100,000 events, and the training is unchanged.
//!
//! ## References
//! - [Understanding CUDA memory usage](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html)

use memfit_source::Kind;

use crate::rule::{Context, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "unbounded-memory-history",
    severity: Severity::Warning,
    fixes: Fixes::Safe,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in &facts.calls {
        let named = call
            .path
            .as_deref()
            .or(call.method.as_deref())
            .is_some_and(|name| name.ends_with("_record_memory_history"));
        let enabled = call.argument(0, "enabled").map(|argument| &argument.value);
        let off = enabled.is_some_and(|value| value.truth() == Some(false));
        // An older signature has the limit under another name or position.
        let limited = call.is_open()
            || call
                .arguments
                .iter()
                .any(|argument| argument.name.as_deref().is_some_and(|name| name.contains("max_entries")))
            || call.arguments.iter().filter(|argument| argument.name.is_none()).count() > 3;
        let unknown = enabled
            .is_some_and(|value| !matches!(value.kind, Kind::Str(_) | Kind::Bool(true | false) | Kind::None));
        if !named || off || limited || unknown {
            continue;
        }
        findings
            .report(call.span, "the history has no limit: host memory grows as long as this runs")
            .help("give it `max_entries`")
            .fix(Fix::safe(
                "Keep the last 100,000 events",
                vec![facts.add_argument(call, "max_entries=100_000")],
            ));
    }
}
