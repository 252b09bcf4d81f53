//! Downloads from a host that this machine cannot reach, and what replaces them.

use memfit_report::wire::{Exception, Problem};

use crate::stand_ins::{self, Given, StandIn};
use crate::{output, traceback};

/// The problem of a download that failed.
pub(crate) fn problem(given: Given<'_>, exception: &Exception) -> Option<Problem> {
    let said = traceback::summary(&exception.message);
    if !output::UNREACHABLE_HOST.iter().any(|text| exception.message.contains(text)) {
        return None;
    }
    let place =
        traceback::user_line(&exception.traceback).map(|place| format!(" at {place}")).unwrap_or_default();
    Some(Problem {
        kind: "no-network".to_owned(),
        message: format!(
            "The script downloads something{place}, and this machine cannot reach it: {}: {said}",
            exception.r#type
        ),
        hint: Some(hint(given, exception)),
    })
}

/// Remedies for a download, with an option only if it replaces the call that failed.
fn hint(given: Given<'_>, exception: &Exception) -> String {
    if stand_ins::is_small(&exception.traceback) {
        let then = if given.weights { "" } else { "; `--synthetic-weights` can then replace the weights" };
        return format!(
            "it looks for a configuration or a tokenizer, small files that memfit does not make up: on a machine with a network, `hf download NAME --exclude '*.safetensors' '*.bin'`, and copy what it made in `~/.cache/huggingface/hub` to this one{then}"
        );
    }
    let first = "put the files where the script looks first";
    match stand_ins::unused(given, exception) {
        Some(stand_in @ (StandIn::Rows | StandIn::Samples)) => {
            format!("{}; or {first}", stand_ins::remedy(given, stand_in))
        }
        Some(stand_in) => format!("{first}; {}", stand_ins::remedy(given, stand_in)),
        None => {
            let options = match (given.data, given.weights) {
                (false, false) => "",
                (true, false) => " (`--synthetic-data`, as given, does not replace this)",
                (false, true) => " (`--synthetic-weights` does not replace this)",
                (true, true) => " (`--synthetic-data` and `--synthetic-weights` do not replace this)",
            };
            format!("{first}{options}")
        }
    }
}
