//! Activations are recomputed in the backward pass (activation checkpointing).

use crate::{
    Declaration, Docs, Framework, Keyword, Label, ModelChange, Moved, Script, Sentence, Stage, counted,
    in_short,
};

const RECOMPUTE: &str = r#"def recompute(model, names):
    """What these modules compute is computed again in the backward, and not kept for it."""
    for name in names:
        module = model.get_submodule(name)
        module.forward = functools.partial(
            torch.utils.checkpoint.checkpoint, module.forward, use_reentrant=False
        )
"#;

pub(super) const LEVER: Declaration = Declaration {
    brief: "these modules' activations are computed again in the backward",
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
        "their activations are recomputed in the backward pass; random numbers (torch's, Python's, NumPy's), buffers and what modules count in attributes are those of the first time",
    ),
    ..Declaration::new("checkpointing", Stage::Model, Label::Exact)
};

fn sentence(moved: Moved<'_>) -> String {
    let names = moved.value.names();
    format!("{} computed again in the backward: {}", counted(names.len() as u64, "block"), in_short(names))
}
