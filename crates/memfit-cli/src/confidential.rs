//! Removes the user's names from answers, so that they can be shared.

use serde::Serialize;
use serde_json::Value;

use crate::CliError;

/// Text that replaces removed text.
const LEFT_OUT: &str = "(confidential)";

/// Returns `true` if the text under a key, in the object or list of another key, comes from memfit or
/// PyTorch.
fn is_nobodys(within: &str, key: &str) -> bool {
    match key {
        "schema" | "verdict" | "kind" | "phase" | "category" | "cause" | "label" | "lever" | "id"
        | "evidence" | "torch" | "allow" | "severity" | "rule" | "technique" | "memfit" | "max_growth" => {
            true
        }
        "peak" => within.is_empty(),
        "name" => matches!(within, "device" | "levers" | "smallest_card"),
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
    use serde_json::json;

    use super::redacted;

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
}
