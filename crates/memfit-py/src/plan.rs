//! Plan files as Python dicts.

use std::path::{Path, PathBuf};

use memfit_plan::{Here, Plan, PlanError, framework_settings};
use memfit_vocabulary::Framework;
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
};

/// Reads a plan file as a dict with these keys:
///
/// - `micro_batch` and `micro_batches_per_step`, if the plan has them
/// - `accumulate`
/// - `lever`: a list of dicts with `name`, `value` and `label`
/// - `parallel`: the spread over several GPUs, if the plan has one
/// - `made_for` and `expected`
/// - `warnings`: differences between this environment and the one that the plan was made for, as far as the
///   arguments describe it
/// - `settings`: the plan as settings of training libraries: for each library a list of keyword, value as
///   Python source, and lever
#[pyfunction]
#[pyo3(signature = (path, *, torch = None, gpu = None, capacity = None))]
#[expect(clippy::needless_pass_by_value, reason = "arguments from Python are owned")]
pub(crate) fn read_plan(
    py: Python<'_>,
    path: PathBuf,
    torch: Option<String>,
    gpu: Option<String>,
    capacity: Option<u64>,
) -> PyResult<Bound<'_, PyAny>> {
    let here = Here { torch, gpu, capacity, script_sha256: None };
    let text = py.detach(|| text(&path, &here))?;
    py.import("json")?.call_method1("loads", (text,))
}

fn text(path: &Path, here: &Here) -> PyResult<String> {
    let plan = Plan::read(path).map_err(|error| to_python(&error))?;
    let warnings: Vec<String> = plan.made_for.differs(here).iter().map(ToString::to_string).collect();
    let mut value = serde_json::to_value(&plan).map_err(|error| PyValueError::new_err(error.to_string()))?;
    value["warnings"] = warnings.into();
    for (name, framework) in [
        ("transformers", Framework::Transformers),
        ("lightning", Framework::Lightning),
        ("accelerate", Framework::Accelerate),
    ] {
        let settings = framework_settings(framework, &plan).into_iter();
        value["settings"][name] = settings
            .map(|(keyword, value, lever)| serde_json::json!([keyword, value, lever.name()]))
            .collect();
    }
    Ok(value.to_string())
}

fn to_python(error: &PlanError) -> PyErr {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        message = format!("{message}: {}", inner.to_string().trim_end());
        cause = inner.source();
    }
    let message = format!("{message} ({})", error.hint());
    match error {
        PlanError::Io { .. } => PyOSError::new_err(message),
        _ => PyValueError::new_err(message),
    }
}
