//! The vocabulary of levers as Python asks for it.

use std::collections::BTreeMap;

use memfit_vocabulary::Lever;
use pyo3::{exceptions::PyValueError, prelude::*};

/// What is wrong with a set of levers, by their names: two that exclude each other, or one without what it
/// needs.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "arguments from Python are owned")]
pub(crate) fn lever_conflict(names: Vec<String>) -> PyResult<Option<String>> {
    let chosen = names.iter().map(|name| known(name)).collect::<PyResult<Vec<Lever>>>()?;
    Ok(Lever::conflict(&chosen))
}

/// When each lever is applied, by its name: "environment", "data", "model", "optimizer" or "step"; "by-hand"
/// where a plan never applies it.
#[pyfunction]
pub(crate) fn lever_stages() -> BTreeMap<&'static str, &'static str> {
    Lever::ALL.iter().map(|lever| (lever.name(), lever.stage().name())).collect()
}

/// How far a training with a lever is the same training: "exact", "rounding", "precision" or
/// "changes-training".
#[pyfunction]
pub(crate) fn lever_label(name: &str) -> PyResult<&'static str> {
    Ok(known(name)?.label().name())
}

fn known(name: &str) -> PyResult<Lever> {
    Lever::from_name(name).ok_or_else(|| {
        let close = Lever::ALL.iter().map(|lever| lever.name()).filter(|other| alike(other, name));
        let close: Vec<String> = close.map(|other| format!("`{other}`")).collect();
        let hint =
            if close.is_empty() { String::new() } else { format!("\nhint: there is {}", close.join(", ")) };
        PyValueError::new_err(format!("`{name}` is no lever that memfit knows{hint}"))
    })
}

/// Whether two names share a word.
fn alike(one: &str, other: &str) -> bool {
    one.split('-').any(|word| word.len() > 2 && other.split(['-', '_']).any(|part| part == word))
}
