//! Removes the user's names from answers, so that they can be shared.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::CliError;

/// Text that replaces removed text.
const LEFT_OUT: &str = "(confidential)";

/// Returns `true` if the text under a key, in the object or list of another key, comes from memfit, PyTorch
/// or the catalogue of GPUs.
fn is_nobodys(within: &str, key: &str) -> bool {
    match key {
        "schema" | "verdict" | "kind" | "phase" | "category" | "cause" | "label" | "lever" | "id"
        | "evidence" | "torch" | "allow" | "severity" | "rule" | "technique" | "memfit" | "max_growth"
        | "gpu" | "architecture" | "sort" | "origin" | "clock" | "bound_by" | "schedule"
        | "parallel_label" => true,
        "peak" => within.is_empty(),
        "name" => matches!(within, "device" | "levers" | "smallest_card" | "outside_parts" | "rows"),
        "call" => within == "unmodelled",
        _ => false,
    }
}

/// The JSON of an answer without the command, paths, lines, messages, and the names of functions and modules.
/// Only texts known to come from memfit or PyTorch are kept.
pub(crate) fn redacted(value: &impl Serialize) -> Result<Value, CliError> {
    let mut value = serde_json::to_value(value).map_err(CliError::Json)?;
    redact(&mut value, "");
    Ok(value)
}

/// A report as it may be shared: without the user's names if it is confidential.
pub(crate) fn shared<T: Clone + Serialize + DeserializeOwned>(
    report: &T,
    confidential: bool,
) -> Result<T, CliError> {
    if confidential {
        serde_json::from_value(redacted(report)?).map_err(CliError::Json)
    } else {
        Ok(report.clone())
    }
}

/// `key` is the key of the value; elements of a list have the key of the list.
fn redact(value: &mut Value, key: &str) {
    match value {
        Value::String(text) => LEFT_OUT.clone_into(text),
        Value::Array(values) => {
            // The command is removed completely, including the number of its words.
            values.retain(|value| !value.is_string());
            for value in values {
                redact(value, key);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                if !(value.is_string() && is_nobodys(key, name)) {
                    redact(value, name);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use memfit_report::wire::{CardsReport, PlanReport};
    use serde_json::json;

    use super::{redacted, shared};

    #[test]
    fn only_words_that_are_nobodys_stay() {
        let document = json!({
            "schema": "memfit.run/1",
            "verdict": "oom",
            "device": {"name": "Tesla T4", "capacity": 5},
            "at_peak": {"phase": "forward", "modules": [{"name": "secret.net", "bytes": 7}]},
            "oom": {"stack": ["/home/ada/train.py:7"], "module": "secret"},
            "fidelity": {"unmodelled": [{"call": "cuInit", "count": 1}], "notes": ["in /home/ada"]},
            "script": {"command": ["python", "/home/ada/train.py"], "interpreter": "/home/ada/bin/python"},
        });
        let expected = json!({
            "schema": "memfit.run/1",
            "verdict": "oom",
            "device": {"name": "Tesla T4", "capacity": 5},
            "at_peak": {"phase": "forward", "modules": [{"name": "(confidential)", "bytes": 7}]},
            "oom": {"stack": [], "module": "(confidential)"},
            "fidelity": {"unmodelled": [{"call": "cuInit", "count": 1}], "notes": []},
            "script": {"command": [], "interpreter": "(confidential)"},
        });
        assert_eq!(redacted(&document).unwrap(), expected);
    }

    #[test]
    fn a_confidential_page_names_gpus_and_levers_alone() {
        let peak = json!({"allocated": 1, "reserved": 2, "device": 3, "device_upper": 4});
        let run = json!({
            "levers": [{"name": "checkpointing", "value": ["secret.blocks"], "label": "exact"}],
            "micro_batch": 8, "micro_batches_per_step": 1, "accumulate": 1, "peak": peak,
            "parallel": {"shard": 2}, "parallel_label": "rounding", "bound_by": "compute",
            "step_ms_estimate": 5.0, "step_ms_low": 4.0, "step_ms_high": 6.0, "fits": true, "at_peak": null,
        });
        let cards: CardsReport = serde_json::from_value(json!({
            "schema": "memfit.cards/1", "sort": "memory", "priced": null, "runs": 1, "first_run_s": null,
            "wall_s": 1.0, "steps": 3, "torch": null, "command": ["python", "secret.py"], "notes": [],
            "problem": null, "rows": [{
                "gpu": "t4", "name": "Tesla T4", "architecture": "turing", "capacity": 5, "count": 1,
                "batch": 8, "verdict": "fits-with-plan", "peak": peak, "headroom": 1, "chosen": run,
                "step_ms_estimate": 5.0, "step_ms_low": 4.0, "step_ms_high": 6.0, "samples_per_s": 1.0,
                "price": null, "pareto": true, "evidence": "run", "note": "at secret.py:3",
                "command": ["memfit", "run", "--gpu", "t4", "--", "python", "secret.py"],
            }],
        }))
        .unwrap();
        let page = memfit_report::cards_page(&shared(&cards, true).unwrap());
        assert!(page.contains("Tesla T4") && !page.contains("secret"), "{page}");
        assert_eq!(shared(&cards, false).unwrap(), cards);

        let plan: PlanReport = serde_json::from_value(json!({
            "schema": "memfit.plan/1", "verdict": "fits-with-plan",
            "device": {"name": "Tesla T4", "capacity": 5, "count": 1, "kind": "virtual"}, "nodes": 1,
            "budget": 4, "margin": 0.03, "allow": "precision", "baseline": run, "chosen": run, "limit": null,
            "pareto": [run], "rejected": [{"lever": "sdpa", "why": "at secret.py:3"}], "advice": ["secret"],
            "smallest_card": null, "evaluations": 3, "wall_s": 1.0, "interrupted": false,
            "notes": ["secret"], "torch": null, "command": ["python", "secret.py"], "plan": "secret.toml",
            "problem": null,
        }))
        .unwrap();
        let page = memfit_report::plan_page(&shared(&plan, true).unwrap());
        assert!(page.contains("Tesla T4") && page.contains("checkpointing"), "{page}");
        assert!(!page.contains("secret"), "{page}");
    }
}
