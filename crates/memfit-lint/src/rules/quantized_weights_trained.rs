//! # quantized-weights-trained
//!
//! ## What it does
//! Finds a model whose weights were quantized by bitsandbytes when it was loaded, and that an optimizer is
//! to train without adapters.
//!
//! ## Why
//! Weights in 4 or 8 bits have no gradients: an optimizer step does not change them, and only the rest is
//! trained, such as norms, embeddings and a head. No error is raised. Measured with a layer whose weight is
//! in integers: an AdamW step changes 1 of 2 parameters, its bias. QLoRA trains LoRA adapters on such
//! weights.
//!
//! ## Example
//! ```python
//! config = BitsAndBytesConfig(load_in_4bit=True)
//! model = AutoModelForCausalLM.from_pretrained(name, quantization_config=config)
//! optimizer = torch.optim.AdamW(model.parameters())
//! ```
//! Use instead:
//! ```python
//! config = BitsAndBytesConfig(load_in_4bit=True)
//! model = AutoModelForCausalLM.from_pretrained(name, quantization_config=config)
//! model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig())
//! optimizer = torch.optim.AdamW(model.parameters())
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [Quantization in PEFT](https://huggingface.co/docs/peft/developer_guides/quantization)

use memfit_source::Kind;

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "quantized-weights-trained",
    severity: Severity::Warning,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    // Adapters of a library or of the program's own, and weights that are taken out of quantization.
    let others = ["peft", "adapter", "lora", "dequantize", "requires_grad", "llm_int8_skip_modules"];
    let text = facts.text.to_lowercase();
    if others.iter().any(|word| text.contains(word)) {
        return;
    }
    let quantizes = |call: &memfit_source::Call| {
        ["load_in_4bit", "load_in_8bit"]
            .iter()
            .any(|name| call.keyword(name).is_some_and(|argument| argument.value.truth() == Some(true)))
    };
    let is_config = |call: &&memfit_source::Call| {
        call.path.as_deref().is_some_and(|path| path.ends_with("BitsAndBytesConfig"))
    };
    for loaded in facts.calls.iter().filter(|call| {
        call.is_method("from_pretrained") || {
            call.path.as_deref().is_some_and(|path| path.ends_with(".from_pretrained"))
        }
    }) {
        // The configuration is made in the call, or has one name that is bound once.
        let by_config = loaded.keyword("quantization_config").is_some_and(|argument| {
            let given = context.slice(argument.value_span);
            facts.calls.iter().filter(is_config).any(|config| {
                quantizes(config)
                    && (config.span == argument.value_span || bound(context, config) == Some(given))
            })
        });
        if loaded.site.guard.is_some() || !(quantizes(loaded) || by_config) {
            continue;
        }
        let Some(model) = bound(context, loaded) else { continue };
        let parameters = format!("{model}.parameters()");
        let trains = facts.calls.iter().find(|call| {
            matches!(call.result.kind, Kind::Optimizer)
                && call.site.function == loaded.site.function
                && call.span.start > loaded.span.start
                && call.arguments.first().is_some_and(|first| context.slice(first.value_span) == parameters)
        });
        let between =
            |trains: &&memfit_source::Call| &facts.text[loaded.span.end as usize..trains.span.start as usize];
        // A model that is bound again may have other layers around the quantized one.
        let again = |text: &str| text.lines().any(|line| memfit_source::assigned_text(line, model).is_some());
        if let Some(trains) = trains.filter(|trains| !again(between(trains))) {
            findings
                .report(
                    trains.span,
                    "quantized weights have no gradients: only the other parameters are trained",
                )
                .label(loaded.span, "the weights are quantized here")
                .help("train LoRA adapters on them (QLoRA), or load the weights in bfloat16");
        }
    }
}

/// The name that the result of a call is bound to, if that is the whole statement.
fn bound<'a>(context: &'a Context<'_>, call: &memfit_source::Call) -> Option<&'a str> {
    let name = context.facts.bound_to(call.span)?;
    let is_name = |byte: char| byte.is_alphanumeric() || byte == '_' || byte == '.';
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}
