//! Calls that `--synthetic-weights` and `--synthetic-data` replace, as tracebacks show them.
//!
//! A hint names one of these options only if it would have replaced the call that failed: the call is in a
//! table here, the failure went through it, and the option was not in use. The probe's `synthetic_weights.py`
//! and `synthetic_data.py` replace the calls; a test compares the tables with them.

use memfit_report::wire::Exception;

use crate::traceback;

/// The options that replace files, and what they would need to know.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub(crate) struct Given<'a> {
    /// `--synthetic-data`.
    pub(crate) data: bool,
    /// `--synthetic-data` with what a sample has.
    pub(crate) described: bool,
    /// `--synthetic-weights`.
    pub(crate) weights: bool,
    /// Class of the script's own data set in whose constructor or `__getitem__` files were missing.
    pub(crate) data_set: Option<&'a str>,
    /// The script's own code failed to download a file of weights by a function that memfit knows.
    pub(crate) downloads_weights: bool,
}

/// Replacement that an option has for a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandIn {
    /// Weights: `--synthetic-weights`.
    Weights,
    /// A data set of torchvision's: `--synthetic-data`.
    DataSet,
    /// Rows of a data set on the Hugging Face Hub: `--synthetic-data` with what a row has.
    Rows,
    /// Samples of the script's own data set: `--synthetic-data` with what a sample has.
    Samples,
    /// A metric of Hugging Face's `evaluate`: `--synthetic-data`.
    Metric,
}

/// Ends of the paths of modules, and their functions that `--synthetic-weights` replaces.
const WEIGHTS: &[(&str, &str)] = &[
    ("/torch/serialization.py", "load"),
    ("/torch/hub.py", "load_state_dict_from_url"),
    ("/safetensors/torch.py", "load_file"),
    ("/timm/models/_builder.py", "load_pretrained"),
    ("/segmentation_models_pytorch/encoders/__init__.py", "get_encoder"),
    ("/transformers/modeling_utils.py", "from_pretrained"),
    ("/diffusers/models/modeling_utils.py", "from_pretrained"),
];
/// Modules of timm, and their functions that read folders of images, which `--synthetic-data` replaces.
const READERS: &[(&str, &str)] = &[
    ("/timm/data/readers/reader_factory.py", "create_reader"),
    ("/timm/data/parsers/parser_factory.py", "create_parser"),
];
/// Ends of the names of files of weights that a script may open itself.
pub(crate) const WEIGHT_FILES: &[&str] = &[".pth", ".pt", ".ckpt", ".pth.tar", "pytorch_model.bin"];
/// Modules of torchvision whose data sets `--synthetic-data` replaces, with these data sets.
const DATA_SETS: &[(&str, &[&str])] = &[
    ("caltech", &["Caltech101", "Caltech256"]),
    ("cifar", &["CIFAR10", "CIFAR100"]),
    ("eurosat", &["EuroSAT"]),
    ("flowers102", &["Flowers102"]),
    ("folder", &["ImageFolder", "DatasetFolder"]),
    ("food101", &["Food101"]),
    ("imagenet", &["ImageNet"]),
    ("mnist", &["MNIST", "FashionMNIST", "KMNIST", "QMNIST", "EMNIST"]),
    ("oxford_iiit_pet", &["OxfordIIITPet"]),
    ("stl10", &["STL10"]),
    ("svhn", &["SVHN"]),
];
/// Folder of torchvision's data sets.
pub(crate) const STANDARD: &str = "/torchvision/datasets/";
/// Methods of data sets that `--synthetic-data` replaces.
const METHODS: &[&str] = &["__init__", "__getitem__"];
/// Methods of the script's own data sets that it replaces as well.
const OWN_METHODS: &[&str] = &["__getitem__", "__iter__"];
/// The loader's module that calls a data set.
const FETCH: &str = "/torch/utils/data/_utils/fetch.py";
/// The Hugging Face library that loads rows.
const ROWS: (&str, &str) = ("-packages/datasets/load.py", "load_dataset");
/// The Hugging Face library that loads metrics, which are scripts on its hub.
const METRICS: (&str, &str) = ("-packages/evaluate/loading.py", "load");
/// Parts of paths of libraries of graphs, whose samples cannot be described.
const GRAPHS: &[&str] = &["/torch_geometric/", "/dgl/", "/ogb/"];
/// Parts of paths of modules that look for a configuration, a tokenizer or a processor.
const SMALL: &[&str] = &[
    "/transformers/tokenization_",
    "/transformers/processing_",
    "/transformers/image_processing_",
    "/transformers/feature_extraction_",
    "/transformers/models/auto/tokenization_auto.py",
    "/transformers/models/auto/processing_auto.py",
    "/transformers/configuration_utils.py",
    "/diffusers/configuration_utils.py",
];

/// The stand-in that an option has for the call that failed; `None` also if it is in use, and did not help.
pub(crate) fn unused(given: Given<'_>, exception: &Exception) -> Option<StandIn> {
    let opens = given.data_set.is_none() && opens_weights(exception);
    let stand_in = if opens { StandIn::Weights } else { called(given, &exception.traceback)? };
    let in_use = match stand_in {
        StandIn::Weights => given.weights,
        StandIn::DataSet | StandIn::Metric => given.data,
        StandIn::Rows | StandIn::Samples => given.described,
    };
    (!in_use).then_some(stand_in)
}

/// The stand-in for the innermost call of a traceback that has one.
fn called(given: Given<'_>, traceback: &str) -> Option<StandIn> {
    if given.downloads_weights {
        return Some(StandIn::Weights);
    }
    if is_small(traceback) {
        return None;
    }
    let calls: Vec<_> = traceback::calls(traceback).collect();
    let found = calls.iter().rev().find_map(|(file, function)| {
        let is = |(module, name): &(&str, &str)| file.ends_with(module) && function == name;
        if WEIGHTS.iter().any(is) {
            return Some(StandIn::Weights);
        }
        if is(&ROWS) {
            return Some(StandIn::Rows);
        }
        if is(&METRICS) {
            return Some(StandIn::Metric);
        }
        if READERS.iter().any(is) {
            return Some(StandIn::DataSet);
        }
        let module = file.rsplit_once(STANDARD)?.1.strip_suffix(".py")?;
        (METHODS.contains(function) && DATA_SETS.iter().any(|(name, _)| *name == module))
            .then_some(StandIn::DataSet)
    });
    found.or_else(|| {
        // A loader's worker passes its error on as text.
        let fetched = calls.iter().skip_while(|(file, _)| !file.ends_with(FETCH)).skip(1);
        let in_graphs = calls.iter().any(|(file, _)| GRAPHS.iter().any(|part| file.contains(part)));
        let own = given.data_set.is_some()
            || fetched.clone().any(|(file, function)| {
                OWN_METHODS.contains(function) && memfit_vocabulary::is_user_file(file)
            });
        (own && !in_graphs).then_some(StandIn::Samples)
    })
}

/// Returns `true` if the script itself opened a file of weights that is not there.
fn opens_weights(exception: &Exception) -> bool {
    let path = exception.message.split_once(": '").and_then(|(_, rest)| rest.split_once('\''));
    let opens =
        traceback::raising_source(&exception.traceback).is_some_and(|(_, source)| source.contains("open("));
    exception.r#type == "FileNotFoundError"
        && path.is_some_and(|(path, _)| WEIGHT_FILES.iter().any(|end| path.ends_with(end)))
        && traceback::is_raised_by_script(&exception.traceback)
        && opens
}

/// Returns `true` if a configuration, a tokenizer or a processor was looked for: no option replaces those.
pub(crate) fn is_small(traceback: &str) -> bool {
    traceback::below_user(traceback).any(|file| SMALL.iter().any(|part| file.contains(part)))
}

/// How to ask for a stand-in, as the end of a sentence.
pub(crate) fn remedy(given: Given<'_>, stand_in: StandIn) -> String {
    match stand_in {
        StandIn::Weights => "`--synthetic-weights` replaces trained weights".to_owned(),
        StandIn::DataSet => "`--synthetic-data` replaces the data sets of torchvision and timm".to_owned(),
        StandIn::Metric => "use `--synthetic-data`: each result of a metric of `evaluate` is then 0, which does not affect memory".to_owned(),
        StandIn::Rows => "describe a row, by the names that the script reads, and memfit generates rows: `--synthetic-data='{text:256:str,label:int64<2}'`".to_owned(),
        StandIn::Samples => {
            let whose = given.data_set.map(|name| format!(" of `{name}`")).unwrap_or_default();
            format!(
                "describe a sample{whose}, and memfit generates samples: `--synthetic-data='image:3x224x224:float32,label:int64<1000'` (in `{{}}` if a sample is a dictionary; a part of one can be in `{{}}`, `[]` or `()`, as `target:{{boxes:9x4:float32,labels:9:int64<21}}`)"
            )
        }
    }
}

#[cfg(test)]
mod tests;
