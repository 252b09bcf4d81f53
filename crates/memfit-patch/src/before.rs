//! What is done to a model once, before its training begins.

use memfit_plan::Value;
use memfit_vocabulary::Lever;

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

/// Writes one of these levers. What is said of a module of another model than the first begins with that
/// model's name.
pub(crate) fn write(
    draft: &mut Draft<'_>,
    lever: Lever,
    value: &Value,
    others: &[String],
) -> Result<(), Why> {
    let training = draft.round()?;
    Training::alone(draft.facts)?;
    let model = training.model.clone().ok_or("the model has no name of its own where it is called")?;
    match (lever, value) {
        (Lever::Checkpointing, Value::Names(names)) => {
            draft.helpers.push(RECOMPUTE);
            for module in ["functools", "torch", "torch.utils.checkpoint"] {
                draft.import(module);
            }
            draft.before.extend(calls("recompute", &model, names, others));
        }
        (Lever::ActivationOffload, Value::Names(names)) => {
            draft.helpers.push(KEEP_ON_HOST);
            for module in ["functools", "torch"] {
                draft.import(module);
            }
            draft.before.extend(calls("keep_on_host", &model, names, others));
            draft.remark(
                "PyTorch's own way to the host waits for each copy: memory is the plan's, and a step takes longer than with \
                 memfit, whose copies run beside the computing",
            );
        }
        (Lever::Compile, Value::Switch(true)) => {
            draft.before.extend(each(&model, others).map(|model| format!("{model}.compile()")));
        }
        (Lever::Compile, Value::Names(names)) => {
            draft.helpers.push(COMPILE_EACH);
            draft.before.extend(calls("compile_each", &model, names, others));
        }
        (Lever::ActivationBudget, Value::Count(hundredths)) => {
            draft.import("torch._functorch.config");
            let share = *hundredths as f64 / 100.0;
            draft.before.push(format!("torch._functorch.config.activation_memory_budget = {share}"));
        }
        (Lever::ChannelsLast, Value::Switch(true)) => {
            let formats = |model: &str| format!("{model}.to(memory_format=torch.channels_last)");
            draft.before.extend(each(&model, others).map(formats));
            draft.import("torch");
        }
        _ => return Err(format!("the value `{value}` says no modules")),
    }
    Ok(())
}

/// All models.
fn each<'a>(model: &'a str, others: &'a [String]) -> impl Iterator<Item = &'a str> {
    std::iter::once(model).chain(others.iter().map(String::as_str))
}

/// A call for each model that has some of these modules.
fn calls(function: &str, model: &str, names: &[String], others: &[String]) -> Vec<String> {
    let of = |name: &str| {
        others
            .iter()
            .find(|other| name.strip_prefix(other.as_str()).is_some_and(|rest| rest.starts_with('.')))
    };
    let own: Vec<String> = names.iter().filter(|name| of(name).is_none()).cloned().collect();
    let mut calls = Vec::new();
    if !own.is_empty() {
        calls.push(format!("{function}({model}, {})", listed(&own)));
    }
    for other in others {
        let theirs = names.iter().filter(|name| of(name) == Some(other));
        let theirs: Vec<String> = theirs.map(|name| name[other.len() + 1..].to_owned()).collect();
        if !theirs.is_empty() {
            calls.push(format!("{function}({other}, {})", listed(&theirs)));
        }
    }
    calls
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_to_several_models_is_a_call_for_each() {
        let check = |names: &[&str], others: &[&str], expected: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            assert_eq!(calls("f", "make", &owned(names), &owned(others)), owned(expected));
        };
        check(&["0", "1", "judge"], &["judge"], &["f(make, [*(f\"{i}\" for i in range(0, 2)), \"judge\"])"]);
        check(
            &["0", "judge.net.3", "judge.net.4", "judged.0"],
            &["judge"],
            &["f(make, [\"0\", \"judged.0\"])", "f(judge, [f\"net.{i}\" for i in range(3, 5)])"],
        );
        check(&["b.0", "a.0"], &["a", "b"], &["f(a, [\"0\"])", "f(b, [\"0\"])"]);
        check(&["0"], &[], &["f(make, [\"0\"])"]);
    }
}
