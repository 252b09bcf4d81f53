//! # pad-to-max-length
//!
//! ## What it does
//! Notes tokenizers that pad every batch to the maximum length.
//!
//! Files about CLIP, prompts or diffusion are excluded: the text encoders of image models need all of their
//! tokens.
//!
//! ## Why
//! Activations grow with the padded length, those of attention without a flash kernel with its square.
//! Measured: texts of 128 tokens padded to 512 take four times the activations, and sixteen times the
//! attention scores. Padding to the longest text of the batch gives the same training results.
//!
//! ## Example
//! ```python
//! batch = tokenizer(texts, padding="max_length", max_length=512)
//! ```
//! Use instead:
//! ```python
//! batch = tokenizer(texts, padding=True, truncation=True, max_length=512)
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [Padding and truncation](https://huggingface.co/docs/transformers/pad_truncation)

use memfit_source::Kind;

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "pad-to-max-length", severity: Severity::Note, fixes: Fixes::Never, on: true, check };

/// Tokens below which padding costs next to nothing.
const SHORT: i64 = 64;

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    // Compiled and captured graphs need a fixed shape.
    let fixed = ["torch.compile", "cuda.graph", "CUDAGraph", "torch_xla", "static_shape"]
        .iter()
        .any(|word| facts.text.contains(word))
        || facts.calls.iter().any(|call| call.is("torch.compile"));
    // The text encoders of image models were trained with all of their tokens, including padding.
    let text = facts.text.to_ascii_lowercase();
    let conditions = ["clip", "diffus", "prompt", "text_encoder"].iter().any(|word| text.contains(word));
    for call in facts.calls.iter().filter(|_| !fixed && !conditions) {
        let padding = call.keyword("padding").filter(|argument| argument.value.text() == Some("max_length"));
        let callee = context.slice(call.callee).to_ascii_lowercase();
        let tokenizes = callee.contains("tokenizer")
            || matches!(call.target.kind, Kind::Tokenizer)
            || callee.contains("processor")
            || call.receiver.as_ref().is_some_and(|receiver| matches!(receiver.value.kind, Kind::Tokenizer));
        let short = call
            .keyword("max_length")
            .and_then(|argument| argument.value.int())
            .is_some_and(|length| length <= SHORT);
        if let Some(padding) = padding.filter(|_| tokenizes && !short) {
            findings
                .report(padding.span, "every text is padded to the maximum length")
                .help("use `padding=True`, or a collator that pads each batch");
        }
    }
}
