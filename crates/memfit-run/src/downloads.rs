//! Downloads from a host that this machine cannot reach, and what replaces them.

use memfit_report::wire::{Exception, Problem, ProblemKind};

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
        kind: ProblemKind::NoNetwork,
        message: format!(
            "The script downloads something{place}, and this machine cannot reach it: {}: {said}",
            exception.r#type
        ),
        hint: Some(hint(given, exception)),
    })
}

/// Parts of the paths of libraries that keep what they downloaded, and how to bring it here.
const CACHES: &[(&str, &str)] = &[
    (
        "/tiktoken/load.py",
        "it looks for the vocabulary of an encoding, a few MiB: on a machine with a network, `TIKTOKEN_CACHE_DIR=tiktoken python -c 'import tiktoken; tiktoken.get_encoding(\"NAME\")'` with the script's NAME, such as `gpt2`; copy the folder `tiktoken` to this one, and put `TIKTOKEN_CACHE_DIR` with its path in front of the command",
    ),
    (
        "/torch_geometric/",
        "on a machine with a network, let PyTorch Geometric download the data set once, and copy the folder that the script passes as its `root` to the same place here",
    ),
];

/// Remedies for a download, with an option only if it replaces the call that failed.
fn hint(given: Given<'_>, exception: &Exception) -> String {
    if stand_ins::is_small(&exception.traceback) {
        let then = if given.weights { "" } else { "; `--synthetic-weights` can then replace the weights" };
        return format!(
            "it looks for a configuration or a tokenizer, small files that memfit does not make up: on a machine with a network, `hf download NAME --exclude '*.safetensors' '*.bin'`, and copy what it made in `~/.cache/huggingface/hub` to this one{then}"
        );
    }
    if let Some((_, bring)) = CACHES
        .iter()
        .find(|(part, _)| traceback::below_user(&exception.traceback).any(|file| file.contains(part)))
    {
        return (*bring).to_owned();
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
