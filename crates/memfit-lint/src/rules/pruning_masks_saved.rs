//! # pruning-masks-saved
//!
//! ## What it does
//! Notes weights pruned with `torch.nn.utils.prune` whose masks are saved with them, because `prune.remove`
//! is never called.
//!
//! ## Why
//! The weights keep their size: zeros take as much memory as other numbers. For each weight, a mask of the
//! same size is kept, and their product in each forward pass. Measured with a layer of 256 KiB, half of it
//! pruned: its state dict has 512 KiB, under the names `weight_orig` and `weight_mask`, which a model without
//! masks does not load. `prune.remove` leaves one weight of 256 KiB with zeros in it. Structured pruning, for
//! example by the library torch-pruning, makes layers smaller.
//!
//! ## Example
//! ```python
//! prune.l1_unstructured(model.head, "weight", amount=0.5)
//! torch.save(model.state_dict(), "pruned.pt")
//! ```
//! Use instead:
//! ```python
//! prune.l1_unstructured(model.head, "weight", amount=0.5)
//! prune.remove(model.head, "weight")
//! torch.save(model.state_dict(), "pruned.pt")
//! ```
//!
//! ## Fix safety
//! No fix: a training that continues from the file may need the masks.
//!
//! ## References
//! - [Pruning tutorial](https://docs.pytorch.org/tutorials/intermediate/pruning_tutorial.html)

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "pruning-masks-saved", severity: Severity::Note, fixes: Fixes::Never, on: true, check };

/// The module whose functions add masks.
const HOME: &str = "torch.nn.utils.prune.";
const MASKING: [&str; 6] = [
    "l1_unstructured",
    "random_unstructured",
    "ln_structured",
    "random_structured",
    "global_unstructured",
    "custom_from_mask",
];

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let named = |call: &memfit_source::Call| {
        call.path.as_deref().and_then(|path| path.strip_prefix(HOME)).map(ToOwned::to_owned)
    };
    let masks = facts.calls.iter().find(|call| named(call).is_some_and(|name| MASKING.contains(&&*name)));
    // Removed by a call, by a function that is passed on, or in another way that this does not follow.
    let removed = ["prune.remove", "import remove", "weight_orig", "weight_mask"];
    let Some(masks) = masks.filter(|_| !removed.iter().any(|text| facts.text.contains(text))) else { return };
    for call in facts.calls.iter().filter(|call| call.is("torch.save")) {
        // Checkpoints of a training, which have an optimizer, are loaded into a model with masks.
        let Some(saved) = call.arguments.first() else { continue };
        let text = context.slice(saved.value_span);
        // `state = model.state_dict()` before
        let bound = facts.calls.iter().find(|made| {
            made.is_method("state_dict")
                && made.site.function == call.site.function
                && facts.bound_to(made.span) == Some(text)
        });
        let text = bound.map_or(text, |made| context.slice(made.span));
        if !text.ends_with(".state_dict()") || text.contains(['{', '(']) && text.matches('(').count() > 1 {
            continue;
        }
        findings
            .report(
                call.span,
                "the pruning masks are saved with the weights: the file becomes larger, not smaller",
            )
            .label(masks.span, "masks are added here")
            .help("call `prune.remove` for each pruned weight before it is saved");
        return;
    }
}
