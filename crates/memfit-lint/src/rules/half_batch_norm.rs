//! # half-batch-norm
//!
//! ## What it does
//! Finds a model with batch normalisation that is cast to float16 for training, and whose batch normalisation
//! stays in float16.
//!
//! ## Why
//! `half()` also casts the running statistics, with which the model evaluates. float16 ends at 65,504, and a
//! variance above it becomes infinite: the layer then returns zeros in eval mode. A small update of a
//! statistic is rounded away. Measured with activations whose standard deviation is 320: after 100 steps the
//! running variance is inf in float16, and 1e+05 in float32. Measured with a mean of 10 and a momentum of
//! 0.001: after 6000 steps the running mean is 8 in float16, and 9.98 in float32. Training mode hides both,
//! since it uses the batch's own statistics. Layers of batch normalisation in float32 take float16
//! activations and return float16.
//!
//! ## Example
//! ```python
//! model = torchvision.models.resnet50().cuda().half()
//! optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
//! ```
//! Use instead:
//! ```python
//! model = torchvision.models.resnet50().cuda()
//! optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
//! with torch.amp.autocast("cuda", torch.bfloat16):
//!     loss = criterion(model(x), y)
//! ```
//!
//! ## Fix safety
//! No fix: where weights stay in float16, each layer of batch normalisation can be cast back with `float()`.
//!
//! ## References
//! - [torch.nn.BatchNorm2d](https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html)
//! - [torch.amp](https://docs.pytorch.org/docs/stable/amp.html)

use memfit_source::Flags;

use crate::query::trained_in_half;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "half-batch-norm", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    // Layers that are cast back are selected by their class, or by a function that is named after it.
    let text = &context.facts.text;
    let selects = ["BatchNorm", "batch_norm", "batchnorm", "BN_convert", "bn_"];
    if text.contains("float") && text.lines().any(|line| is_selection(line, &selects)) {
        return;
    }
    for call in trained_in_half(context) {
        // With an option that casts the model, it does so where the option is set.
        let normalised = call.receiver.as_ref().is_some_and(|receiver| receiver.value.is(Flags::BATCH_NORM));
        if !normalised {
            continue;
        }
        findings
            .report(call.span, "the running statistics of batch normalisation are cast to float16 as well")
            .help(
                "keep the weights in float32 and use `autocast`, or cast the layers of batch normalisation \
                 back with `float()`",
            );
    }
}

/// Returns `true` for a line that tests a module's class, or calls a function, with one of these words.
fn is_selection(line: &str, words: &[&str]) -> bool {
    let tests = ["isinstance", "type(", "__class__", "_float", "fp32", "convert"];
    tests.iter().any(|test| line.contains(test)) && words.iter().any(|word| line.contains(word))
}
