//! Python functions for the vocabulary of levers.

use std::collections::BTreeMap;

use memfit_vocabulary::Lever;
use pyo3::{exceptions::PyValueError, prelude::*};

/// Describes a conflict in a set of levers, by their names: two that exclude each other, or one without a
/// lever that it requires. Returns None without a conflict.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "arguments from Python are owned")]
pub(crate) fn lever_conflict(names: Vec<String>) -> PyResult<Option<String>> {
    let chosen = names.iter().map(|name| find_lever(name)).collect::<PyResult<Vec<Lever>>>()?;
    Ok(Lever::conflict(&chosen))
}

/// Stage at which each lever is applied, by its name: "environment", "data", "model", "optimizer" or "step";
/// "by-hand" if a plan never applies it.
#[pyfunction]
pub(crate) fn lever_stages() -> BTreeMap<&'static str, &'static str> {
    Lever::ALL.iter().map(|lever| (lever.name(), lever.stage().name())).collect()
}

/// Effect of a lever on training results: "exact", "rounding", "precision" or "changes-training".
#[pyfunction]
pub(crate) fn lever_label(name: &str) -> PyResult<&'static str> {
    Ok(find_lever(name)?.label().name())
}

fn find_lever(name: &str) -> PyResult<Lever> {
    Lever::from_name(name).ok_or_else(|| {
        let close = Lever::ALL.iter().map(|lever| lever.name()).filter(|other| alike(other, name));
        let close: Vec<String> = close.map(|other| format!("`{other}`")).collect();
        let hint = match close.as_slice() {
            [] => "docs/training.md lists all levers".to_owned(),
            close => format!("there is {}", close.join(", ")),
        };
        PyValueError::new_err(format!("`{name}` is not a lever that memfit knows\nhint: {hint}"))
    })
}

/// Returns `true` if two names share a word, or the beginning of one: `checkpoint`, `checkpointing`.
fn alike(one: &str, other: &str) -> bool {
    let share = |word: &str, part: &str| word == part || part.len() > 3 && word.starts_with(part);
    one.split('-').any(|word| word.len() > 2 && other.split(['-', '_']).any(|part| share(word, part)))
}
