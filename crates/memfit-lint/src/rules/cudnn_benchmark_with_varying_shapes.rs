//! # cudnn-benchmark-with-varying-shapes
//!
//! ## What it does
//! Notes `torch.backends.cudnn.benchmark = True` where the model's input size is random.
//!
//! ## Why
//! In benchmark mode, each convolution tries every algorithm when it meets a shape for the first time, and
//! each trial allocates the algorithm's workspace. That pays off if shapes repeat. With random sizes, the
//! trials run in nearly every step, and the peak includes the largest workspace.
//!
//! ## Example
//! ```python
//! torch.backends.cudnn.benchmark = True
//! for images, labels in loader:
//!     size = random.randint(10, 20) * 32
//!     images = torch.nn.functional.interpolate(images, size=size)
//!     loss = criterion(model(images), labels)
//! ```
//! Use instead:
//! ```python
//! torch.backends.cudnn.benchmark = False
//! for images, labels in loader:
//!     size = random.randint(10, 20) * 32
//!     images = torch.nn.functional.interpolate(images, size=size)
//!     loss = criterion(model(images), labels)
//! ```
//! Or draw from a few sizes, so that each is tried only once.
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [torch.backends.cudnn.benchmark](https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark)
//! - [Performance tuning guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-cudnn-auto-tuner)

use memfit_source::{Call, Flags, Kind, StoreKind, Value};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "cudnn-benchmark-with-varying-shapes",
    severity: Severity::Note,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let set = |on: bool| {
        facts.stores.iter().find(move |store| {
            store.kind == StoreKind::Assign
                && store.target.ends_with("cudnn.benchmark")
                && store.value.kind == Kind::Bool(on)
        })
    };
    // A program that also disables it does so deliberately.
    let (Some(on), None) = (set(true), set(false)) else { return };
    if let Some(resized) = facts.calls.iter().find(|call| call.site.looped.is_some() && draws_a_size(call)) {
        findings
            .report(on.span, "every new shape is benchmarked with every algorithm, and the shapes are random")
            .label(resized.span, "a different size in each iteration")
            .help("turn it off, or choose from a few sizes");
    }
}

/// Returns `true` if a batch is resized to a random size.
fn draws_a_size(call: &Call) -> bool {
    let resizes = call.path.as_deref().is_some_and(|path| {
        path == "torch.nn.functional.interpolate"
            || path == "torchvision.transforms.functional.resize"
            || path == "torchvision.transforms.v2.functional.resize"
    });
    resizes && call.argument(1, "size").is_some_and(|size| is_drawn(&size.value))
}

fn is_drawn(value: &Value) -> bool {
    match &value.kind {
        Kind::Tuple(parts) => parts.iter().any(is_drawn),
        _ => value.is(Flags::RANDOM),
    }
}
