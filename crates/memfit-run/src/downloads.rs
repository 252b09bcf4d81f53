//! Downloads from a host that this machine cannot reach, and what replaces them.

use memfit_report::wire::{Exception, Problem};

use crate::{output, traceback};

/// Which of the options that replace files were given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given {
    /// `--synthetic-data`.
    pub(crate) data: bool,
    /// `--synthetic-data` with what a sample has.
    pub(crate) described: bool,
    /// `--synthetic-weights`.
    pub(crate) weights: bool,
}

/// What a library was about to download, by the files of the frames that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Download {
    /// A data set of torchvision's.
    DataSet,
    /// Rows of a data set on the Hugging Face Hub.
    Rows,
    /// Weights.
    Weights,
    /// A configuration, a tokenizer or a processor.
    Small,
    /// Anything: the script itself, or another library, asks.
    Unknown,
}

/// Parts of paths. The libraries of models ask for their small files, too, and first.
const ASKS: &[(&str, Download)] = &[
    ("/transformers/tokenization_", Download::Small),
    ("/transformers/processing_", Download::Small),
    ("/transformers/image_processing_", Download::Small),
    ("/transformers/feature_extraction_", Download::Small),
    ("/transformers/models/auto/tokenization_auto.py", Download::Small),
    ("/transformers/models/auto/processing_auto.py", Download::Small),
    ("/transformers/configuration_utils.py", Download::Small),
    ("/diffusers/configuration_utils.py", Download::Small),
    ("/torchvision/datasets/", Download::DataSet),
    ("/site-packages/datasets/", Download::Rows),
    ("/dist-packages/datasets/", Download::Rows),
    ("/transformers/", Download::Weights),
    ("/diffusers/", Download::Weights),
    ("/timm/", Download::Weights),
    ("/torchvision/models/", Download::Weights),
    ("/torch/hub.py", Download::Weights),
];

/// The problem of a download that failed.
pub(crate) fn problem(given: Given, exception: &Exception) -> Option<Problem> {
    let said = traceback::summary(&exception.message);
    if !output::UNREACHED.iter().any(|text| exception.message.contains(text)) {
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
        hint: Some(hint(given, asked(&exception.traceback))),
    })
}

fn asked(traceback: &str) -> Download {
    let files: Vec<_> = traceback::below_user(traceback).collect();
    let found = ASKS.iter().find(|(part, _)| files.iter().any(|file| file.contains(part)));
    found.map_or(Download::Unknown, |(_, download)| *download)
}

const TO_DATA: &str = "`--synthetic-data` replaces data sets";
const TO_WEIGHTS: &str = "`--synthetic-weights` replaces trained weights";

/// Remedies for a download, without the options that were given: they do not replace this one.
fn hint(given: Given, download: Download) -> String {
    let Given { data, weights, described } = given;
    match download {
        Download::Small => {
            let then = if weights { "" } else { "; `--synthetic-weights` can then replace the weights" };
            return format!(
                "it looks for a configuration or a tokenizer, small files that memfit does not make up: on a machine with a network, `hf download NAME --exclude '*.safetensors' '*.bin'`, and copy what it made in `~/.cache/huggingface/hub` to this one{then}"
            );
        }
        Download::Rows if !described => {
            return "state what a row has, by the names that the script reads: `--synthetic-data={text:256:str,label:int64<2}` makes rows up; or put the files where the script looks first"
                .to_owned();
        }
        Download::Rows | Download::DataSet | Download::Weights | Download::Unknown => {}
    }
    let options: Vec<_> = [
        (data, TO_DATA, download != Download::Weights),
        (weights, TO_WEIGHTS, !matches!(download, Download::DataSet | Download::Rows)),
    ]
    .into_iter()
    .filter_map(|(given, text, helps)| (!given && helps).then_some(text))
    .collect();
    let first = match (data, weights) {
        (false, false) => "",
        (true, false) => " (`--synthetic-data`, as given, does not replace this)",
        (false, true) => " (`--synthetic-weights` does not replace this)",
        (true, true) => " (`--synthetic-data` and `--synthetic-weights` do not replace this)",
    };
    let then = if options.is_empty() { String::new() } else { format!("; {}", options.join(", ")) };
    format!("put the files where the script looks first{first}{then}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_was_given_is_no_remedy_for_a_download() {
        let hint =
            |[data, weights]: [bool; 2]| hint(Given { data, weights, described: false }, Download::Unknown);
        assert!(hint([false, false]).contains("`--synthetic-data` replaces data sets"));
        let half = hint([true, false]);
        assert!(half.contains("`--synthetic-data`, as given, does not replace this"), "{half}");
        assert!(!half.contains("replaces data sets"), "{half}");
        assert!(half.ends_with("`--synthetic-weights` replaces trained weights"), "{half}");
        assert!(!hint([true, true]).contains("replaces"));
    }

    #[test]
    fn only_what_replaces_a_download_is_its_remedy() {
        let told = |files: &[&str]| {
            let frames: Vec<_> = ["/me/train.py"]
                .iter()
                .chain(files)
                .map(|file| format!("  File \"{file}\", line 3, in load\n    load()\n"))
                .collect();
            hint(Given::default(), asked(&frames.concat()))
        };
        let library = |path: &str| format!("/v/lib/python3.11/site-packages/{path}");
        let hub = library("transformers/utils/hub.py");
        let tokens = told(&[&library("transformers/models/auto/tokenization_auto.py"), &hub]);
        assert!(tokens.contains("a tokenizer") && !tokens.contains("--synthetic-data"), "{tokens}");
        let configuration = [
            library("transformers/models/auto/auto_factory.py"),
            library("transformers/configuration_utils.py"),
        ];
        assert_eq!(told(&configuration.each_ref().map(String::as_str)), tokens);
        let weights = told(&[&library("transformers/modeling_utils.py"), &hub]);
        assert!(weights.contains("weights`") && !weights.contains("--synthetic-data"), "{weights}");
        let images =
            told(&[&library("torchvision/datasets/cifar.py"), "/usr/lib/python3.11/urllib/request.py"]);
        assert!(images.contains("data` replaces") && !images.contains("weights"), "{images}");
        let rows = told(&[&library("datasets/load.py")]);
        assert!(rows.contains("`--synthetic-data={text:256:str"), "{rows}");
        assert!(told(&[]).contains("data`") && told(&[]).contains("weights`"), "{}", told(&[]));
    }
}
