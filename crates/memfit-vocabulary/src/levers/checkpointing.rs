//! Activations are recomputed in the backward pass (activation checkpointing).

use crate::{
    Declaration, Docs, Framework, Keyword, Label, ModelChange, Moved, Script, Sentence, Stage, counted,
    in_short,
};

const RECOMPUTE: &str = r#"def recompute(model, names):
    """Recompute the activations of these modules in the backward pass instead of saving them."""

    @contextlib.contextmanager
    def with_buffers(before):
        """Run the second forward pass with the buffers that the first one began with, and change none."""
        now = [getattr(part, name) for part, name, _ in before]
        for part, name, value in before:
            setattr(part, name, value.clone())
        try:
            yield
        finally:
            for (part, name, _), value in zip(before, now):
                setattr(part, name, value)

    def around(module, forward):
        def contexts():
            parts = [(part, *each) for part in module.modules() for each in part.named_buffers(recurse=False)]
            before = [(part, name, value.clone()) for part, name, value in parts]
            return contextlib.nullcontext(), with_buffers(before)

        @functools.wraps(forward)
        def run(*args, **kwargs):
            # Compiled code updates buffers only once.
            extra = {} if torch.compiler.is_compiling() else {"context_fn": contexts}
            return torch.utils.checkpoint.checkpoint(forward, *args, use_reentrant=False, **extra, **kwargs)

        return run

    for name in names:
        module = model.get_submodule(name)
        module.forward = around(module, module.forward)
"#;

pub(super) const LEVER: Declaration = Declaration {
    brief: "activations of these modules are recomputed in the backward pass (activation checkpointing)",
    sentence: Sentence::With(sentence),
    script: Script::Model(&[ModelChange::Modules {
        function: "recompute",
        definition: RECOMPUTE,
        imports: &["contextlib", "functools", "torch", "torch.utils.checkpoint"],
        remark: "",
        not_beside: None,
    }]),
    keywords: &[Keyword::new(Framework::Transformers, "gradient_checkpointing", "True")],
    saves: Some(|held| held.sample / 10 * 5),
    docs: Docs::new(
        "module names, `\"blocks\"`",
        "their activations are recomputed in the backward pass; the second pass sees the random numbers (torch's, Python's, NumPy's), buffers and attributes of the first and changes none of them, so running statistics are updated once",
    ),
    ..Declaration::new("checkpointing", Stage::Model, Label::Exact)
};

fn sentence(moved: Moved<'_>) -> String {
    let names = moved.value.names();
    format!("activation checkpointing of {}: {}", counted(names.len() as u64, "block"), in_short(names))
}
