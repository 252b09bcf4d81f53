//! # load-without-map-location
//!
//! ## What it does
//! Notes `torch.load` without `map_location`.
//!
//! Off by default: most files are loaded on the machine that saved them, and by one process.
//!
//! ## Why
//! Tensors are restored to the device that they were saved from: a checkpoint of `cuda:0` allocates on
//! `cuda:0` in every process of a distributed run, and fails to load without a GPU.
//!
//! ## Example
//! ```python
//! state = torch.load("model.pt")
//! ```
//! Use instead:
//! ```python
//! state = torch.load("model.pt", map_location="cpu")
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [torch.load](https://docs.pytorch.org/docs/stable/generated/torch.load.html)

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "load-without-map-location",
    severity: Severity::Note,
    fixes: Fixes::Never,
    on: false,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for call in context.facts.calls.iter().filter(|call| call.is("torch.load") && !call.is_open()) {
        if call.argument(1, "map_location").is_none() {
            findings
                .report(call.span, "tensors are loaded onto the device that they were saved from")
                .help("pass `map_location=\"cpu\"`, and copy into the model with `load_state_dict`");
        }
    }
}
