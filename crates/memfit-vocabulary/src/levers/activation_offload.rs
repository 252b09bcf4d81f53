//! Activations are offloaded to host memory until the backward pass.

use crate::{
    Declaration, Docs, Label, Lever, ModelChange, Moved, Script, Sentence, Stage, counted, in_short,
};

const KEEP_ON_HOST: &str = r#"def keep_on_host(model, names):
    """Offload what these modules save for the backward pass to host memory."""

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

const REMARK: &str = "`save_on_cpu` waits for each copy: memory is as planned, and a step takes longer than with `memfit.Step`, \
     whose copies overlap with computing";

const WITH_COMPILE: &str = "offloading the activations of compiled modules takes more than a few lines of plain PyTorch: \
     `memfit.Step(…, plan=\"FILE\")` does it";

pub(super) const LEVER: Declaration = Declaration {
    brief: "activations of these modules are offloaded to host memory until the backward pass",
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
        "their activations are offloaded to pinned host memory until the backward pass; copies overlap with computing; no effect on the CPU",
    ),
    ..Declaration::new("activation-offload", Stage::Model, Label::Exact)
};

fn sentence(moved: Moved<'_>) -> String {
    let names = moved.value.names();
    let blocks = counted(names.len() as u64, "block");
    format!("activations of {blocks} offloaded to host memory until the backward pass: {}", in_short(names))
}
