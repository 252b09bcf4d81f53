//! Activations are offloaded to host memory until the backward pass.

use crate::{
    Declaration, Docs, Label, Lever, ModelChange, Moved, Script, Sentence, Stage, counted, in_short,
};

const KEEP_ON_HOST: &str = r#"def keep_on_host(model, names):
    """What these modules keep for the backward waits in the host's memory."""

    def around(forward):
        @functools.wraps(forward)
        def run(*args, **kwargs):
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                return forward(*args, **kwargs)

        return run

    for name in names:
        module = model.get_submodule(name)
        module.forward = around(module.forward)
"#;

const REMARK: &str = "PyTorch's own way to the host waits for each copy: memory is the plan's, and a step takes longer than with \
     memfit, whose copies run beside the computing";

const WITH_COMPILE: &str = "what compiled modules keep is sent to the host from outside of them, for which plain PyTorch has no few lines: \
     `memfit.Step(…, plan=\"FILE\")` does it";

pub(super) const LEVER: Declaration = Declaration {
    brief: "these modules' activations wait for the backward in the host's memory",
    sentence: Sentence::With(sentence),
    script: Script::Model(&[ModelChange::Modules {
        function: "keep_on_host",
        definition: KEEP_ON_HOST,
        imports: &["functools", "torch"],
        remark: REMARK,
        not_beside: Some((Lever::Compile, WITH_COMPILE)),
    }]),
    saves: Some(|held| held.sample / 10 * 6),
    docs: Docs::new(
        "module names, `\"blocks\"`, `\"all\"`",
        "their activations wait for the backward pass in pinned host memory; copies overlap with computing; no effect on the CPU",
    ),
    ..Declaration::new("activation-offload", Stage::Model, Label::Exact)
};

fn sentence(moved: Moved<'_>) -> String {
    let names = moved.value.names();
    let waits = if names.len() == 1 { "waits" } else { "wait" };
    let blocks = counted(names.len() as u64, "block");
    format!("{blocks} {waits} for the backward in the host's memory: {}", in_short(names))
}
