//! Changes made to a model once, before its training begins.

use memfit_plan::Plan;
use memfit_vocabulary::{ModelChange, Value};

use crate::Why;
use crate::draft::Draft;
use crate::training::Training;

/// Adds statements that need only `torch`.
pub(crate) fn statements(draft: &mut Draft<'_>, statements: &[&str]) -> Result<(), Why> {
    draft.round()?;
    draft.before.extend(statements.iter().map(|statement| (*statement).to_owned()));
    draft.import("torch");
    Ok(())
}

/// Writes the statements for a lever's value. Names of modules of a model other than the first begin with
/// that model's name.
pub(crate) fn write(
    draft: &mut Draft<'_>,
    changes: &[ModelChange],
    value: &Value,
    plan: &Plan,
) -> Result<(), Why> {
    let beside = |change: &ModelChange| match change {
        ModelChange::Modules { not_beside: Some((lever, why)), .. } if plan.moves(*lever) => Some(*why),
        _ => None,
    };
    if let Some(why) = changes.iter().find_map(beside) {
        return Err(why.to_owned());
    }
    let training = draft.round()?;
    Training::check_only_backward(draft.facts)?;
    let model = training.model.clone().ok_or("the model is not called by name in the training loop")?;
    let others = &plan.made_for.models;
    let taken = changes.iter().find_map(|change| match (change, value) {
        (ModelChange::Each { statement, imports }, Value::Switch(true)) => {
            let lines = each(&model, others).map(|model| statement.replace("{model}", model)).collect();
            Some((lines, *imports, None))
        }
        (ModelChange::Modules { function, definition, imports, remark, .. }, Value::Names(names)) => {
            Some((calls(function, &model, names, others), *imports, Some((*definition, *remark))))
        }
        (ModelChange::Share { statement, imports }, Value::Count(hundredths)) => {
            let share = *hundredths as f64 / 100.0;
            Some((vec![statement.replace("{share}", &share.to_string())], *imports, None))
        }
        _ => None,
    });
    let Some((lines, imports, function)): Option<(Vec<String>, _, _)> = taken else {
        return Err(format!("the value `{value}` names no modules"));
    };
    draft.before.extend(lines);
    for module in imports {
        draft.import(module);
    }
    if let Some((definition, remark)) = function {
        draft.helpers.push(definition);
        if !remark.is_empty() {
            draft.remark(remark);
        }
    }
    Ok(())
}

/// All models.
fn each<'a>(model: &'a str, others: &'a [String]) -> impl Iterator<Item = &'a str> {
    std::iter::once(model).chain(others.iter().map(String::as_str))
}

/// One call for each model that has some of these modules.
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

/// Formats names as a Python list, with a comprehension for consecutive numbers.
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
    let elements: Vec<String> = parts.iter().map(|part| part.to_python(alone)).collect();
    format!("[{}]", elements.join(", "))
}

/// Part of a list of names.
enum Part {
    Name(String),
    Row { before: String, after: String, first: u64, last: u64 },
}

impl Part {
    fn to_python(&self, alone: bool) -> String {
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

/// Splits a name at its last number into prefix, number and suffix.
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
    fn changes_to_several_models_are_one_call_each() {
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
