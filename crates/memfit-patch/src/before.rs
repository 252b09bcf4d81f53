//! What is done to a model once, before its training begins.

use memfit_levers::Lever;
use memfit_plan::Value;

use crate::Why;
use crate::draft::Draft;
use crate::training::Training;

const RECOMPUTE: &str = r#"def recompute(model, names):
    """What these modules compute is computed again in the backward, and not kept for it."""
    for name in names:
        module = model.get_submodule(name)
        module.forward = functools.partial(
            torch.utils.checkpoint.checkpoint, module.forward, use_reentrant=False
        )
"#;

const COMPILE_EACH: &str = r#"def compile_each(model, names):
    """Each of these modules is compiled by itself, and those that are alike share the code."""
    for name in names:
        model.get_submodule(name).compile()
"#;

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

/// Writes one of these levers.
pub(crate) fn write(draft: &mut Draft<'_>, lever: Lever, value: &Value) -> Result<(), Why> {
    let training = draft.round()?;
    Training::alone(draft.facts)?;
    let model = training.model.clone().ok_or("the model has no name of its own where it is called")?;
    match (lever, value) {
        (Lever::Checkpointing, Value::Names(names)) => {
            draft.helpers.push(RECOMPUTE);
            for module in ["functools", "torch", "torch.utils.checkpoint"] {
                draft.import(module);
            }
            draft.before.push(format!("recompute({model}, {})", listed(names)));
        }
        (Lever::ActivationOffload, Value::Names(names)) => {
            draft.helpers.push(KEEP_ON_HOST);
            for module in ["functools", "torch"] {
                draft.import(module);
            }
            draft.before.push(format!("keep_on_host({model}, {})", listed(names)));
            draft.remark(
                "PyTorch's own way to the host waits for each copy: memory is the plan's, and a step takes longer than with \
                 memfit, whose copies run beside the computing",
            );
        }
        (Lever::Compile, Value::Switch(true)) => draft.before.push(format!("{model}.compile()")),
        (Lever::Compile, Value::Names(names)) => {
            draft.helpers.push(COMPILE_EACH);
            draft.before.push(format!("compile_each({model}, {})", listed(names)));
        }
        (Lever::ActivationBudget, Value::Count(hundredths)) => {
            draft.import("torch._functorch.config");
            let share = *hundredths as f64 / 100.0;
            draft.before.push(format!("torch._functorch.config.activation_memory_budget = {share}"));
        }
        (Lever::ChannelsLast, Value::Switch(true)) => {
            draft.before.push(format!("{model}.to(memory_format=torch.channels_last)"));
            draft.import("torch");
        }
        _ => return Err(format!("the value `{value}` says no modules")),
    }
    Ok(())
}

/// A list of names as Python, rows of modules as a comprehension.
pub(crate) fn listed(names: &[String]) -> String {
    let mut parts: Vec<Part> = Vec::new();
    for name in names {
        let row = numbered(name);
        match (row, parts.last_mut()) {
            (Some((before, number, after)), Some(Part::Row { before: known, after: behind, last, .. }))
                if *known == before && *behind == after && *last + 1 == number =>
            {
                *last = number;
            }
            (Some((before, number, after)), _) => {
                parts.push(Part::Row { before, after, first: number, last: number });
            }
            (None, _) => parts.push(Part::Name(name.clone())),
        }
    }
    let alone = parts.len() == 1;
    let told: Vec<String> = parts.iter().map(|part| part.told(alone)).collect();
    format!("[{}]", told.join(", "))
}

/// A part of a list of names.
enum Part {
    Name(String),
    Row { before: String, after: String, first: u64, last: u64 },
}

impl Part {
    fn told(&self, alone: bool) -> String {
        match self {
            Self::Name(name) => format!("\"{name}\""),
            Self::Row { before, after, first, last } if first == last => {
                format!("\"{before}{first}{after}\"")
            }
            Self::Row { before, after, first, last } => {
                let row = format!("f\"{before}{{i}}{after}\" for i in range({first}, {})", last + 1);
                if alone { row } else { format!("*({row})") }
            }
        }
    }
}

/// What stands before a name's last number, the number, and what stands behind it.
fn numbered(name: &str) -> Option<(String, u64, String)> {
    let parts: Vec<&str> = name.split('.').collect();
    let at =
        parts.iter().rposition(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))?;
    let number: u64 = parts[at].parse().ok()?;
    if parts[at] != number.to_string() {
        return None;
    }
    let joined = |parts: &[&str]| parts.join(".");
    let before = if at > 0 { joined(&parts[..at]) + "." } else { String::new() };
    let after = if at + 1 < parts.len() { ".".to_owned() + &joined(&parts[at + 1..]) } else { String::new() };
    Some((before, number, after))
}
