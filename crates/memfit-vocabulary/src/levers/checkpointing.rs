//! Activations are recomputed in the backward pass (activation checkpointing).

use crate::{
    Declaration, Docs, Framework, Keyword, Label, ModelChange, Moved, Script, Sentence, Stage, counted,
    in_short,
};

const RECOMPUTE: &str = r#"def recompute(model, names):
    """Recompute the activations of these modules in the backward pass instead of saving them."""
    for name in names:
        module = model.get_submodule(name)
        module.forward = functools.partial(
            torch.utils.checkpoint.checkpoint, module.forward, use_reentrant=False
        )
"#;

pub(super) const LEVER: Declaration = Declaration {
    brief: "activations of these modules are recomputed in the backward pass (activation checkpointing)",
    sentence: Sentence::With(sentence),
    script: Script::Model(&[ModelChange::Modules {
        function: "recompute",
        definition: RECOMPUTE,
        imports: &["functools", "torch", "torch.utils.checkpoint"],
        remark: "",
        not_beside: None,
    }]),
    keywords: &[Keyword::new(Framework::Transformers, "gradient_checkpointing", "True")],
    saves: Some(|held| held.sample / 10 * 5),
    docs: Docs::new(
        "module names, `\"blocks\"`",
        "their activations are recomputed in the backward pass; the second pass sees the random numbers (torch's, Python's, NumPy's), buffers and attributes of the first",
    ),
    ..Declaration::new("checkpointing", Stage::Model, Label::Exact)
};

fn sentence(moved: Moved<'_>) -> String {
    let names = moved.value.names();
    format!("activation checkpointing of {}: {}", counted(names.len() as u64, "block"), in_short(names))
}
