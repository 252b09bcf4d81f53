//! Failures against options: a hint names an option only where it replaces the call that failed.

use super::*;
use crate::{absent, downloads, traceback};

const SITE: &str = "/v/lib/python3.11/site-packages";
const UNREACHED: &str = "<urlopen error [Errno -2] Name or service not known>";
const ABSENT: &str = "[Errno 2] No such file or directory: 'a/b'";
const OPTIONS: &[&str] =
    &["`--synthetic-weights`", "`--synthetic-data`", "`--synthetic-data='{", "`--synthetic-data='image"];

fn exception(kind: &str, message: &str, frames: &[(&str, &str)]) -> Exception {
    let frames = frames.iter().map(|(file, function)| {
        let file = if file.starts_with('/') { (*file).into() } else { format!("{SITE}/{file}").into() };
        (file, *function, "load()")
    });
    traceback::raised(kind, message, frames)
}

/// The options that the hints at a failure advise, for a download and for a missing file.
fn advised(given: Given<'_>, frames: &[(&str, &str)]) -> Vec<&'static str> {
    let unreached = exception("urllib.error.URLError", UNREACHED, frames);
    let absent = exception("FileNotFoundError", ABSENT, frames);
    let download = downloads::problem(given, &unreached).unwrap().hint.unwrap();
    let file = absent::hint(given, &absent).unwrap_or_default();
    let named = |text: &str| {
        let text = text.split("does not replace").last().unwrap_or_default();
        let text = text.split("do not replace").last().unwrap_or_default().to_owned();
        OPTIONS.iter().copied().filter(|option| text.contains(option)).collect::<Vec<_>>()
    };
    let found = named(&file);
    if !is_small(&unreached.traceback) {
        assert_eq!(named(&download), found, "{download} / {file}");
    }
    found
}

const TRAIN: (&str, &str) = ("/me/train.py", "main");
const WEIGHTS_OPTION: &str = OPTIONS[0];
const DATA_OPTION: &str = OPTIONS[1];
const ROWS_OPTION: &str = OPTIONS[2];
const SAMPLES_OPTION: &str = OPTIONS[3];

/// Frames of a failure, and the option that replaces what it asked for.
type Failure = (&'static [(&'static str, &'static str)], Option<&'static str>);
const FAILURES: &[Failure] = &[
    (
        &[TRAIN, ("torch/serialization.py", "load"), ("torch/serialization.py", "_open_file")],
        Some(WEIGHTS_OPTION),
    ),
    (
        &[
            TRAIN,
            ("torchvision/models/_api.py", "get_state_dict"),
            ("torch/hub.py", "load_state_dict_from_url"),
        ],
        Some(WEIGHTS_OPTION),
    ),
    (&[TRAIN, ("safetensors/torch.py", "load_file")], Some(WEIGHTS_OPTION)),
    (
        &[TRAIN, ("timm/models/_builder.py", "load_pretrained"), ("huggingface_hub/file_download.py", "get")],
        Some(WEIGHTS_OPTION),
    ),
    (
        &[
            TRAIN,
            ("segmentation_models_pytorch/encoders/__init__.py", "get_encoder"),
            ("huggingface_hub/file_download.py", "hf_hub_download"),
        ],
        Some(WEIGHTS_OPTION),
    ),
    (
        &[
            TRAIN,
            ("transformers/modeling_utils.py", "from_pretrained"),
            ("transformers/utils/hub.py", "cached_file"),
        ],
        Some(WEIGHTS_OPTION),
    ),
    (&[TRAIN, ("diffusers/models/modeling_utils.py", "from_pretrained")], Some(WEIGHTS_OPTION)),
    (
        &[
            TRAIN,
            ("torchvision/datasets/cifar.py", "__init__"),
            ("torchvision/datasets/utils.py", "download_url"),
        ],
        Some(DATA_OPTION),
    ),
    (
        &[TRAIN, ("torchvision/datasets/folder.py", "__getitem__"), ("/me/images.py", "load")],
        Some(DATA_OPTION),
    ),
    (
        &[TRAIN, ("datasets/load.py", "load_dataset"), ("datasets/load.py", "dataset_module_factory")],
        Some(ROWS_OPTION),
    ),
    (
        &[
            TRAIN,
            ("torch/utils/data/_utils/fetch.py", "fetch"),
            ("/me/data.py", "__getitem__"),
            ("PIL/Image.py", "open"),
        ],
        Some(SAMPLES_OPTION),
    ),
    (
        &[TRAIN, ("torch/utils/data/_utils/fetch.py", "fetch"), ("/me/data.py", "__iter__")],
        Some(SAMPLES_OPTION),
    ),
    (
        &[
            TRAIN,
            ("timm/data/dataset.py", "__init__"),
            ("timm/data/readers/reader_factory.py", "create_reader"),
        ],
        Some(DATA_OPTION),
    ),
    (&[TRAIN, ("evaluate/loading.py", "load"), ("evaluate/loading.py", "get")], Some(DATA_OPTION)),
    // No option replaces these.
    (&[TRAIN, ("/usr/lib/python3.11/urllib/request.py", "urlretrieve")], None),
    (&[("/me/data.py", "__init__"), ("requests/api.py", "get")], None),
    (&[TRAIN, ("torch/hub.py", "download_url_to_file")], None),
    (&[TRAIN, ("torch/jit/_serialization.py", "load")], None),
    (&[TRAIN, ("torchvision/datasets/voc.py", "__init__")], None),
    (&[TRAIN, ("torchvision/datasets/cifar.py", "helper")], None),
    (&[TRAIN, ("open_clip/factory.py", "create_model")], None),
    (&[TRAIN, ("diffusers/pipelines/pipeline_utils.py", "from_pretrained")], None),
    (&[TRAIN, ("datasets/load.py", "load_dataset_builder")], None),
    (&[("/me/datasets/load.py", "load_dataset")], None),
    (
        &[
            TRAIN,
            ("torch/utils/data/_utils/fetch.py", "fetch"),
            ("torch_geometric/data/dataset.py", "__getitem__"),
        ],
        None,
    ),
    (
        &[
            TRAIN,
            ("transformers/models/auto/tokenization_auto.py", "from_pretrained"),
            ("transformers/utils/hub.py", "cached_file"),
        ],
        None,
    ),
    (
        &[
            TRAIN,
            ("transformers/modeling_utils.py", "from_pretrained"),
            ("transformers/configuration_utils.py", "get_config_dict"),
        ],
        None,
    ),
];

#[test]
fn an_option_is_advised_only_where_it_replaces_the_call_that_failed() {
    for (frames, option) in FAILURES {
        let expected: Vec<_> = option.iter().copied().collect();
        assert_eq!(advised(Given::default(), frames), expected, "{frames:?}");
        // One that was in use did not help.
        let all = Given { data: true, described: true, weights: true, ..Given::default() };
        assert_eq!(advised(all, frames), [""; 0], "{frames:?}");
        let weights = Given { weights: true, ..Given::default() };
        let rest: Vec<_> = expected.iter().copied().filter(|each| *each != WEIGHTS_OPTION).collect();
        assert_eq!(advised(weights, frames), rest, "{frames:?}");
        let data = Given { data: true, ..Given::default() };
        let rest: Vec<_> = expected.iter().copied().filter(|each| *each != DATA_OPTION).collect();
        assert_eq!(advised(data, frames), rest, "{frames:?}");
    }
}

#[test]
fn a_data_set_of_the_scripts_own_is_named() {
    let given = Given { data_set: Some("Speech"), ..Given::default() };
    let frames = [("/me/data.py", "__init__"), ("requests/api.py", "get")];
    assert_eq!(advised(given, &frames), [SAMPLES_OPTION]);
    let hint = absent::hint(given, &exception("FileNotFoundError", ABSENT, &frames)).unwrap();
    assert!(hint.contains("a sample of `Speech`"), "{hint}");
    let graphs = [("/me/data.py", "__init__"), ("torch_geometric/data/dataset.py", "__init__")];
    assert_eq!(advised(given, &graphs), [""; 0]);
}

#[test]
fn an_option_that_was_given_is_told_not_to_replace_a_download() {
    let hint = |given| {
        let frames = [TRAIN, ("/usr/lib/python3.11/urllib/request.py", "urlretrieve")];
        downloads::problem(given, &exception("urllib.error.URLError", UNREACHED, &frames))
            .unwrap()
            .hint
            .unwrap()
    };
    assert_eq!(hint(Given::default()), "put the files where the script looks first");
    let data = hint(Given { data: true, ..Given::default() });
    assert!(data.ends_with("(`--synthetic-data`, as given, does not replace this)"), "{data}");
}

#[test]
fn the_scripts_own_download_of_weights_is_replaced() {
    let frames = [TRAIN, ("/usr/lib/python3.11/urllib/request.py", "urlretrieve")];
    let given = Given { downloads_weights: true, ..Given::default() };
    assert_eq!(advised(given, &frames), [WEIGHTS_OPTION]);
    assert_eq!(advised(Given { weights: true, ..given }, &frames), [""; 0]);
}

#[test]
fn weights_that_a_folder_with_a_configuration_lacks_are_replaced() {
    let frames = [TRAIN, ("transformers/modeling_utils.py", "from_pretrained")];
    for said in [
        "a/b does not appear to have a file named pytorch_model.bin or model.safetensors.",
        "Error no file named model.safetensors, or pytorch_model.bin, found in directory ./model.",
    ] {
        let lacking = exception("OSError", said, &frames);
        assert!(absent::hint(Given::default(), &lacking).unwrap().contains(WEIGHTS_OPTION), "{said}");
        assert_eq!(absent::hint(Given { weights: true, ..Given::default() }, &lacking), None, "{said}");
    }
    let other = exception("OSError", "Unable to load weights from a file.", &frames);
    assert_eq!(absent::hint(Given::default(), &other), None);
}

#[test]
fn a_data_set_of_torchvisions_that_lacks_an_archive_is_made_up() {
    let frames = [
        TRAIN,
        ("torchvision/datasets/imagenet.py", "__init__"),
        ("torchvision/datasets/imagenet.py", "parse"),
    ];
    let said =
        "The archive ILSVRC2012_devkit_t12.tar.gz is not present in the root directory or is corrupted.";
    let told = |frames: &[_]| absent::hint(Given::default(), &exception("RuntimeError", said, frames));
    assert!(told(&frames).unwrap().contains(DATA_OPTION));
    let own = [TRAIN, ("torchvision/datasets/imagenet.py", "__getitem__"), ("/me/transforms.py", "crop")];
    assert_eq!(told(&own), None);
}

#[test]
fn what_a_library_keeps_is_to_be_brought() {
    let hint = |frames: &[(&str, &str)]| {
        downloads::problem(Given::default(), &exception("ConnectionError", UNREACHED, frames))
            .unwrap()
            .hint
            .unwrap()
    };
    let encoding =
        hint(&[TRAIN, ("tiktoken/registry.py", "get_encoding"), ("tiktoken/load.py", "read_file")]);
    assert!(encoding.contains("TIKTOKEN_CACHE_DIR"), "{encoding}");
    let graphs = hint(&[("/me/data.py", "load"), ("torch_geometric/data/download.py", "download_url")]);
    assert!(graphs.contains("`root`"), "{graphs}");
}

#[test]
fn rows_are_made_up_whatever_the_reason_was() {
    let frames = [TRAIN, ("datasets/load.py", "load_dataset")];
    let old = exception("RuntimeError", "Dataset scripts are no longer supported, but found c4.py", &frames);
    assert!(absent::hint(Given::default(), &old).unwrap().contains(ROWS_OPTION));
    let described = Given { data: true, described: true, ..Given::default() };
    assert_eq!(absent::hint(described, &old), None);
}

/// The source of a module of the probe.
fn read(module: &str) -> String {
    let probe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/memfit/_probe/memfit_probe");
    std::fs::read_to_string(format!("{probe}/{module}")).unwrap()
}

/// The words between quotes in a tuple of a module of the probe.
fn words(module: &str, name: &str) -> Vec<String> {
    let source = read(module);
    let tuple = source.split_once(&format!("\n{name} = (")).unwrap().1;
    // A call in a list has parentheses of its own.
    let end = [")\n", "\n)"].iter().filter_map(|end| tuple.find(end)).min().unwrap();
    tuple[..end].split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_lists_are_those_of_the_probe() {
    assert_eq!(words("opened.py", "WEIGHTS"), WEIGHT_FILES);
    assert_eq!(words("lacking_data.py", "LOOKS_FOR"), absent::LOOKS_FOR);
    let libraries: Vec<_> = GRAPHS.iter().map(|part| part.trim_matches('/')).collect();
    assert_eq!(words("lacking_data.py", "GRAPH_LIBRARIES"), libraries);
    let readers: Vec<_> = READERS
        .iter()
        .flat_map(|(path, function)| {
            [path[1..].trim_end_matches(".py").replace('/', "."), (*function).to_owned()]
        })
        .collect();
    assert_eq!(words("timm_data.py", "FACTORIES"), readers);
    // Names of classes stand without quotes.
    let told = read("lacking_data.py");
    let told = told.split_once("TOLD_BY = (").unwrap().1.split_once(')').unwrap().0.to_owned();
    assert_eq!(told.split(", ").collect::<Vec<_>>(), absent::TOLD_BY);
}

#[test]
fn the_tables_are_those_of_the_probe() {
    let weights = read("synthetic_weights.py");
    for (module, function) in WEIGHTS {
        let path = module.trim_matches('/').trim_end_matches(".py").trim_end_matches("/__init__");
        let path = path.replace('/', ".");
        let armed = weights.contains(&format!("\"{path}\"")) || path == "torch.serialization";
        assert!(armed && weights.contains(&format!(".{function}")), "{module} {function}");
    }
    let data = read("known_datasets.py");
    let known = data.split("KNOWN = {").nth(1).unwrap().split("\n}").next().unwrap();
    let known: Vec<_> =
        known.lines().filter(|line| line.ends_with("),")).filter_map(|line| line.split('"').nth(1)).collect();
    let mut told: Vec<_> = DATA_SETS.iter().flat_map(|(_, names)| *names).copied().collect();
    let mut expected = known.clone();
    told.sort_unstable();
    expected.sort_unstable();
    assert_eq!(told, expected);
}
