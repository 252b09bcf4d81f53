//! # oom-string-match
//!
//! ## What it does
//! Notes out-of-memory errors that are recognised by their message.
//!
//! ## Why
//! `torch.OutOfMemoryError` is a class since PyTorch 2.5 (`torch.cuda.OutOfMemoryError` since 1.13). Messages
//! change between releases, and those of cuBLAS, cuDNN and NCCL are different. Projects whose requirements
//! allow only releases before 1.13 have no finding.
//!
//! ## Example
//! ```python
//! try:
//!     step()
//! except RuntimeError as e:
//!     if "out of memory" in str(e):
//!         skip()
//! ```
//! Use instead:
//! ```python
//! try:
//!     step()
//! except torch.OutOfMemoryError:
//!     skip()
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [torch.cuda.OutOfMemoryError](https://docs.pytorch.org/docs/stable/generated/torch.cuda.OutOfMemoryError.html)

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "oom-string-match", severity: Severity::Note, fixes: Fixes::Never, on: true, check };

/// The release that brought a class of its own for the error.
const CLASS: (u32, u32) = (1, 13);

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for search in &context.facts.searches {
        if search.text.to_ascii_lowercase().contains("out of memory") && context.torch.reaches(CLASS) {
            findings
                .report(search.span, "the error is recognised by its text")
                .help("catch `torch.OutOfMemoryError`");
        }
    }
}
