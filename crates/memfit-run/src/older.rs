//! Failures of scripts that were written for an older Python, NumPy or PyTorch, and what to do about them.

use memfit_channel::message::Gone;
use memfit_report::wire::Exception;
use memfit_vocabulary::installed_path;

use crate::{newer, own_modules, renamed, traceback};

/// NumPy's messages about names that it no longer has, and the releases that have them.
const GONE_FROM_NUMPY: &[(&str, &str)] = &[
    ("was removed in the NumPy 2.0 release", "2"),
    ("was a deprecated alias for the builtin", "1.24"),
    ("The requested array has an inhomogeneous shape", "1.24"),
    ("The binary mode of fromstring is removed", "2.3"),
    ("module 'numpy' has no attribute 'alltrue'", "2"),
    ("module 'numpy' has no attribute 'cumproduct'", "2"),
    ("module 'numpy' has no attribute 'product'", "2"),
    ("module 'numpy' has no attribute 'sometrue'", "2"),
    ("module 'numpy' has no attribute 'asscalar'", "1.23"),
    ("module 'numpy' has no attribute 'bool8'", "2"),
    ("module 'numpy' has no attribute 'in1d'", "2.4"),
    ("module 'numpy' has no attribute 'msort'", "2"),
    ("module 'numpy' has no attribute 'trapz'", "2.4"),
    ("'numpy.ndarray' object has no attribute 'itemset'", "2"),
    ("'numpy.ndarray' object has no attribute 'newbyteorder'", "2"),
    ("'numpy.ndarray' object has no attribute 'ptp'", "2"),
    ("'numpy.ndarray' object has no attribute 'tostring'", "2.3"),
];

/// pandas's messages about names that it no longer has, and the releases that have them.
const GONE_FROM_PANDAS: &[(&str, &str)] = &[
    ("'DatetimeIndex' object has no attribute 'week'", "2"),
    ("'DatetimeIndex' object has no attribute 'weekofyear'", "2"),
    ("'DatetimeProperties' object has no attribute 'week'", "2"),
    ("'DataFrame' object has no attribute 'append'", "2"),
    ("'Series' object has no attribute 'append'", "2"),
    ("'DataFrame' object has no attribute 'iteritems'", "2"),
    ("'Series' object has no attribute 'iteritems'", "2"),
    ("'DataFrame' object has no attribute 'ix'", "1"),
    ("'DataFrame' object has no attribute 'as_matrix'", "1"),
];

/// protobuf's message about a package whose code was generated for an older release.
const OLD_DESCRIPTORS: &str = "Descriptors cannot be created directly";

/// PyYAML's message about an argument that it requires, and the first release that does.
const GONE_FROM_YAML: &[(&str, &str)] = &[("missing 1 required positional argument: 'Loader'", "6")];

/// PyTorch's messages about what it no longer takes, and what takes its place. A new script may have made the
/// same mistake, so its age is not guessed.
const GONE_FROM_TORCH: &[(&str, &str)] = &[
    ("DataLoaderIter' object has no attribute 'next'", "`next(iterator)` replaces `iterator.next()`"),
    (ZERO_DIM, "`loss.item()` replaces `loss.data[0]`"),
    ("iteration over a 0-d tensor", "a scalar has no elements: `tensor.item()` reads it"),
    ("only supports boolean masks", "`mask.bool()` converts a mask of bytes to booleans"),
    ("Subtraction, the `-` operator, with a bool tensor is not supported", "`~mask` replaces `1 - mask`"),
    // Strides follow from shapes and operations alone, so no value that was made up or assumed is to blame.
    (
        "view size is not compatible with input tensor's size and stride",
        "the result of a comparison or a copy has the strides of its operand: `.reshape` in place of `.view` on that line",
    ),
    (
        "Expected a 'cuda' device type for generator but found 'cpu'",
        "a loader that shuffles draws on the default device: `torch.set_default_dtype` in place of `torch.set_default_tensor_type`, or `generator=torch.Generator(device=\"cuda\")` for the loader",
    ),
    (
        "stft requires the return_complex parameter",
        "`torch.stft` gives complex numbers: `return_complex=True` on that call, and `torch.view_as_real` on its result where the script takes real and imaginary parts",
    ),
    (
        "Found dtype Long but expected Float",
        "a loss takes a target of the type of its input, and `torch.full` with an integer makes integers: `torch.full(size, 1.0)`, or `.float()` on the target",
    ),
    ("'torchvision.transforms' has no attribute 'Scale'", "`transforms.Resize` replaces `transforms.Scale`"),
    (
        "'torchvision.transforms.transforms' has no attribute 'Scale'",
        "`transforms.Resize` replaces `transforms.Scale`",
    ),
    (
        "'torchvision.transforms' has no attribute 'RandomSizedCrop'",
        "`transforms.RandomResizedCrop` replaces `transforms.RandomSizedCrop`",
    ),
    ("'CIFAR10' object has no attribute 'train_", CIFAR_HALVES),
    ("'CIFAR10' object has no attribute 'test_", CIFAR_HALVES),
    ("'CIFAR100' object has no attribute 'train_", CIFAR_HALVES),
    ("'CIFAR100' object has no attribute 'test_", CIFAR_HALVES),
    (
        "Legacy autograd function with non-static forward method",
        "`forward` and `backward` of a `torch.autograd.Function` are static methods, called by `apply`",
    ),
    (
        "LR.__init__() got an unexpected keyword argument 'verbose'",
        "schedulers have no argument `verbose`: remove it",
    ),
    (
        "Plateau.__init__() got an unexpected keyword argument 'verbose'",
        "schedulers have no argument `verbose`: remove it",
    ),
];

const CIFAR_HALVES: &str =
    "use `data` and `targets` of torchvision's CIFAR in place of `train_data`, `test_data` and their labels";

/// Modules that their packages no longer have, and what takes their place.
const GONE_MODULES: &[(&str, &str)] = &[(
    "torch._six",
    "replace `string_classes` with `str`, `container_abcs` with `collections.abc`, and `inf` with `math.inf`",
)];

/// SciPy's functions for images, which it no longer has.
const SCIPY_IMAGES: &[&str] = &["imread", "imresize", "imrotate", "imsave", "imshow", "toimage", "fromimage"];

/// Python's messages about syntax, with a part of the line, and the last release that takes it.
const GONE_FROM_PYTHON: &[(&str, &str, &str)] = &[
    ("Missing parentheses in call to", "", "2.7"),
    ("multiple exception types must be parenthesized", "", "2.7"),
    ("leading zeros in decimal integer literals are not permitted", "", "2.7"),
    // `async` is a keyword since Python 3.7.
    ("invalid syntax", "async=", "3.6"),
];

/// Python's messages about names that its standard library no longer has, the last release with them, and
/// what takes their place.
const GONE_FROM_STANDARD_LIBRARY: &[(&str, &str, &str)] = &[
    ("module 'collections' has no attribute", "3.9", "import the names from `collections.abc`"),
    ("from 'collections' (", "3.9", "import the names from `collections.abc`"),
    ("module 'fractions' has no attribute 'gcd'", "3.8", "`math.gcd` replaces it"),
    ("module 'inspect' has no attribute 'getargspec'", "3.10", "`inspect.getfullargspec` replaces it"),
    ("module 'time' has no attribute 'clock'", "3.7", "`time.perf_counter` replaces it"),
    (
        "Population must be a sequence.  For dicts or sets, use sorted(d)",
        "3.10",
        "`random.sample` takes a list: `random.sample(sorted(items), count)`",
    ),
];

/// Messages that made-up values may cause as well: a sample or a label of another shape.
const OF_VALUES_TOO: &[&str] =
    &["iteration over a 0-d tensor", ZERO_DIM, "Found dtype Long but expected Float"];
const ZERO_DIM: &str = "invalid index of a 0-dim tensor";
/// How the scripts of that time read a loss.
const READS_LOSS: &str = ".data[0]";

/// Returns `true` for an error that another value could not have prevented: PyTorch no longer takes what the
/// line has.
pub(crate) fn is_certain(exception: &Exception) -> bool {
    let said = |text: &str| exception.message.contains(text);
    let listed = GONE_FROM_TORCH.iter().any(|(text, _)| said(text) && !OF_VALUES_TOO.contains(text));
    let reads_loss = said(ZERO_DIM)
        && traceback::user_source(&exception.traceback).is_some_and(|source| source.contains(READS_LOSS));
    listed || reads_loss
}

/// Remedy for a script that was written for an older release of its libraries or of Python.
pub(crate) fn hint(interpreter: Option<&str>, exception: &Exception) -> Option<String> {
    let message = &exception.message;
    if exception.r#type == "SyntaxError" {
        if let Some(hint) = newer::hint(message, &exception.traceback) {
            return Some(hint);
        }
        let is_gone = |(text, part, _): &&(&str, &str, &str)| {
            message.contains(text) && (part.is_empty() || exception.traceback.contains(part))
        };
        let (_, _, release) = GONE_FROM_PYTHON.iter().find(is_gone)?;
        return Some(format!(
            "the script was written for Python {release} or older, and neither it nor the PyTorch of its time runs on this one: look for a later version of it, or fix that line"
        ));
    }
    for (name, package, gone) in [
        ("NumPy", "numpy", GONE_FROM_NUMPY),
        ("pandas", "pandas", GONE_FROM_PANDAS),
        ("PyYAML", "pyyaml", GONE_FROM_YAML),
    ] {
        if let Some((_, release)) = gone.iter().find(|(text, _)| message.contains(text)) {
            let python = interpreter.unwrap_or("python");
            return Some(format!(
                "the script, or a package that it imports, was written for an older {name}: `{python} -m pip install '{package}<{release}'`"
            ));
        }
    }
    if message.contains(OLD_DESCRIPTORS) {
        let python = interpreter.unwrap_or("python");
        return Some(format!(
            "a package that the script imports was generated for an older `protobuf`: `{python} -m pip install 'protobuf<3.21'`, or `PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python` in front of the command, which needs no other release"
        ));
    }
    if let Some((_, release, now)) =
        GONE_FROM_STANDARD_LIBRARY.iter().find(|(text, ..)| message.contains(text))
    {
        return Some(format!(
            "the script, or a package that it imports, was written for Python {release} or older: {now}"
        ));
    }
    if let Some(found) = gone_from_package(exception) {
        return Some(found);
    }
    let first = traceback::handled_error(&exception.traceback).unwrap_or_default();
    let (_, now) = GONE_FROM_TORCH.iter().find(|(text, _)| message.contains(text) || first.contains(text))?;
    Some(format!("in today's PyTorch, {now}"))
}

/// Remedy for a name or an argument that the installed release of a package does not have.
pub(crate) fn hint_at_release(gone: &Gone, exception: &Exception) -> String {
    let Gone { package, release, name, argument } = gone;
    let release = release.as_ref().map(|release| format!(" {release}")).unwrap_or_default();
    let lacks =
        if *argument { format!("takes no argument `{name}` there") } else { format!("has no `{name}`") };
    let caller = traceback::package_of(traceback::asking_file(&exception.traceback).unwrap_or_default());
    let own = caller.is_none_or(|caller| caller == package);
    if let Some(now) = renamed::replacement(package, name).filter(|_| own) {
        return format!(
            "`{package}`{release} {lacks}: {now}; or install the release that the script was written for, which its requirements may state"
        );
    }
    let asks = match caller.filter(|caller| caller != package) {
        Some(caller) => format!("`{caller}`, which asks for it, was written for another release"),
        None => "if the name is right, the script was written for another release".to_owned(),
    };
    format!("`{package}`{release} {lacks}: {asks}, which the script's requirements may state")
}

/// Remedy for a module that PyTorch no longer has.
pub(crate) fn hint_at_module(module: &str) -> Option<String> {
    let (_, now) = GONE_MODULES.iter().find(|(name, _)| *name == module)?;
    Some(format!("today's PyTorch has no `{module}`: {now}"))
}

/// Remedy for a usage error of a script's parser.
pub(crate) fn hint_of_usage(line: &str) -> Option<&'static str> {
    line.contains("unrecognized arguments: --local-rank").then_some(
        "`torch.distributed.launch` passes `--local-rank` since PyTorch 2, and passed `--local_rank` before: let the script's parser take both (`add_argument(\"--local_rank\", \"--local-rank\", type=int)`)",
    )
}

/// Remedy for a name that an installed package does not have: `cannot import name 'a' from 'b' (/path)`.
fn gone_from_package(exception: &Exception) -> Option<String> {
    let rest = exception.message.strip_prefix("cannot import name '")?;
    let (name, rest) = rest.split_once("' from '")?;
    let (module, path) = rest.split_once("' (")?;
    let package = module.split('.').next().unwrap_or(module);
    if module == "scipy.misc" && SCIPY_IMAGES.contains(&name) {
        return Some(format!(
            "SciPy no longer has `{name}`, nor has any release for today's Python: use Pillow or imageio instead"
        ));
    }
    let is_installed = installed_path(path).is_some();
    if let Some(own) =
        own_modules::shadowed(module, Some(name), &exception.traceback).filter(|_| is_installed)
    {
        return Some(own);
    }
    if let Some(now) = renamed::replacement(package, name).filter(|_| is_installed) {
        return Some(format!("the release of `{package}` here has no `{name}`: {now}"));
    }
    is_installed.then(|| {
        format!(
            "the release of `{package}` here has no `{name}`: install another release of `{package}`, which the requirements of the script, or of the package that imports it, may name"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: &str, message: &str, traceback: &str) -> Option<String> {
        let exception = Exception {
            r#type: kind.to_owned(),
            message: message.to_owned(),
            traceback: traceback.to_owned(),
        };
        hint(Some("/v/bin/python"), &exception)
    }

    #[test]
    fn names_that_the_standard_library_removed_are_told_with_what_replaced_them() {
        for (kind, message, now) in [
            ("AttributeError", "module 'collections' has no attribute 'Iterable'", "`collections.abc`"),
            (
                "ImportError",
                "cannot import name 'Mapping' from 'collections' (/usr/lib/python3.11/collections/__init__.py)",
                "`collections.abc`",
            ),
            ("AttributeError", "module 'time' has no attribute 'clock'", "`time.perf_counter`"),
            (
                "TypeError",
                "Population must be a sequence.  For dicts or sets, use sorted(d).",
                "`random.sample(sorted(items), count)`",
            ),
        ] {
            let hint = found(kind, message, "").unwrap();
            assert!(hint.contains(now) && hint.contains("or older"), "{hint}");
        }
        assert_eq!(found("AttributeError", "module 'timers' has no attribute 'clocks'", ""), None);
    }

    #[test]
    fn names_that_numpy_removed_ask_for_an_older_one() {
        let hint = |message: &str| found("AttributeError", message, "");
        let removed = hint("`np.Inf` was removed in the NumPy 2.0 release. Use `np.inf` instead.").unwrap();
        assert!(removed.contains("`/v/bin/python -m pip install 'numpy<2'`"), "{removed}");
        let ragged =
            "setting an array element with a sequence. The requested array has an inhomogeneous shape";
        assert!(hint(ragged).unwrap().contains("'numpy<1.24'"));
        let alias =
            "module 'numpy' has no attribute 'int'.\n`np.int` was a deprecated alias for the builtin `int`.";
        assert!(hint(alias).unwrap().contains("'numpy<1.24'"));
        assert!(hint("module 'numpy' has no attribute 'cumproduct'").unwrap().contains("'numpy<2'"));
        let worker = "module 'numpy' has no attribute 'in1d' (in DataLoader worker process 0)";
        assert!(hint(worker).unwrap().contains("'numpy<2.4'"));
        assert_eq!(hint("module 'numpy' has no attribute 'arange2'"), None);
        let week = hint("'DatetimeIndex' object has no attribute 'weekofyear'").unwrap();
        assert!(week.contains("`/v/bin/python -m pip install 'pandas<2'`"), "{week}");
        for function in ["load", "load_all", "full_load"] {
            let message = format!("{function}() missing 1 required positional argument: 'Loader'");
            assert!(hint(&message).unwrap().contains("'pyyaml<6'"), "{function}");
        }
    }

    #[test]
    fn code_for_an_older_protobuf_and_names_with_a_replacement_are_told() {
        let said =
            "Descriptors cannot be created directly.\nIf this call came from a _pb2.py file, regenerate it.";
        assert!(found("TypeError", said, "").unwrap().contains("'protobuf<3.21'"));
        let import = |name: &str, package: &str| {
            let said = format!(
                "cannot import name '{name}' from '{package}' (/v/lib/python3.11/site-packages/{package}/__init__.py)"
            );
            found("ImportError", &said, "").unwrap()
        };
        assert!(import("AdamW", "transformers").ends_with("`torch.optim.AdamW` replaces it"));
        assert!(import("AdamX", "transformers").contains("another release of `transformers`"));
    }

    #[test]
    fn what_no_value_can_cause_is_told_and_certain() {
        for (said, now) in [
            ("stft requires the return_complex parameter be given for real inputs", "`return_complex=True`"),
            ("Expected a 'cuda' device type for generator but found 'cpu'", "`torch.set_default_dtype`"),
        ] {
            let exception = Exception {
                r#type: "RuntimeError".to_owned(),
                message: said.to_owned(),
                traceback: String::new(),
            };
            assert!(is_certain(&exception));
            assert!(hint(None, &exception).unwrap().contains(now));
        }
    }

    #[test]
    fn attributes_that_torchvision_renamed_are_told_with_their_new_names() {
        let exception = |message: &str| Exception {
            r#type: "AttributeError".to_owned(),
            message: message.to_owned(),
            traceback: String::new(),
        };
        let old = exception("'CIFAR100' object has no attribute 'test_labels'");
        assert!(is_certain(&old));
        assert!(hint(None, &old).unwrap().contains("`data` and `targets`"));
        assert!(!is_certain(&exception("'Images' object has no attribute 'train_data'")));
        for module in ["torchvision.transforms", "torchvision.transforms.transforms"] {
            let scale = exception(&format!("module '{module}' has no attribute 'Scale'"));
            assert!(is_certain(&scale) && hint(None, &scale).unwrap().contains("`transforms.Resize`"));
        }
    }

    #[test]
    fn a_target_of_integers_is_told_with_its_usual_origin_and_may_be_made_up() {
        let exception = Exception {
            r#type: "RuntimeError".to_owned(),
            message: "Found dtype Long but expected Float".to_owned(),
            traceback: String::new(),
        };
        assert!(hint(None, &exception).unwrap().contains("`torch.full`"));
        assert!(!is_certain(&exception));
    }

    #[test]
    fn what_scipy_and_pytorch_removed_is_told_with_what_replaced_it() {
        let gone =
            "cannot import name 'imresize' from 'scipy.misc' (/v/lib/site-packages/scipy/misc/__init__.py)";
        assert!(found("ImportError", gone, "").unwrap().contains("Pillow"));
        assert!(hint_at_module("torch._six").unwrap().contains("`collections.abc`"));
        assert_eq!(hint_at_module("torch.gone"), None);
    }

    #[test]
    fn a_name_that_a_package_does_not_have_asks_for_another_release() {
        let gone = "cannot import name 'AutoModelWithHead' from 'transformers' (/v/lib/python3.11/site-packages/transformers/__init__.py)";
        let hint = found("ImportError", gone, "").unwrap();
        assert!(hint.contains("another release of `transformers`"), "{hint}");
        let own = "cannot import name 'load' from 'utils' (/home/me/utils.py)";
        assert_eq!(found("ImportError", own, ""), None);
    }

    #[test]
    fn the_release_that_lacks_a_name_is_told_with_who_asks_for_it() {
        let hint = |file: &str, argument| {
            let gone = Gone {
                package: "lightning".to_owned(),
                release: Some("2.6".to_owned()),
                name: "gpus".to_owned(),
                argument,
            };
            let traceback = format!("  File \"{file}\", line 3, in main\n    Trainer(gpus=1)\n");
            let exception = Exception { r#type: "TypeError".to_owned(), message: String::new(), traceback };
            hint_at_release(&gone, &exception)
        };
        let own = hint("/me/train.py", true);
        assert!(own.starts_with("`lightning` 2.6 takes no argument `gpus` there: `accelerator="), "{own}");
        let package = hint("/v/lib/python3.11/site-packages/tools/a.py", false);
        assert!(package.contains("has no `gpus`: `tools`, which asks for it"), "{package}");
    }

    #[test]
    fn a_package_that_passes_a_lookup_on_is_not_who_asks() {
        const LAZY: &str = "  File \"/v/lib/python3.11/site-packages/lazy_loader/__init__.py\", line 110, in __getattr__\n    raise AttributeError(x)\n";
        for (asks, told) in [
            ("/me/env.py", "if the name is right, the script was written for another release"),
            ("/v/lib/python3.11/site-packages/tools/a.py", "`tools`, which asks for it"),
        ] {
            let traceback =
                format!("  File \"{asks}\", line 3, in render\n    skimage.draw.circle(x)\n{LAZY}");
            let exception =
                Exception { r#type: "AttributeError".to_owned(), message: String::new(), traceback };
            let (package, name) = ("skimage".to_owned(), "circle".to_owned());
            let gone = Gone { package, release: None, name, argument: false };
            let hint = hint_at_release(&gone, &exception);
            assert!(hint.contains(told) && !hint.contains("lazy_loader"), "{hint}");
        }
    }

    #[test]
    fn removed_pytorch_arguments_are_named_with_their_replacement() {
        let next = "'_MultiProcessingDataLoaderIter' object has no attribute 'next'";
        assert!(found("AttributeError", next, "").unwrap().contains("`next(iterator)`"));
        let mask = "masked_fill only supports boolean masks, but got dtype Byte";
        assert!(found("RuntimeError", mask, "").unwrap().contains("`mask.bool()`"));
        assert_eq!(found("AttributeError", "'Net' object has no attribute 'next'", ""), None);
        let verbose = "() got an unexpected keyword argument 'verbose'";
        assert!(found("TypeError", &format!("StepLR.__init__{verbose}"), "").is_some());
        assert_eq!(found("TypeError", &format!("main{verbose}"), ""), None, "a function of the script's own");
    }

    #[test]
    fn the_launchers_newer_option_is_told() {
        let line = "train.py: error: unrecognized arguments: --local-rank=3";
        assert!(hint_of_usage(line).unwrap().contains("`--local_rank`"));
        assert_eq!(hint_of_usage("train.py: error: unrecognized arguments: --epoch"), None);
    }

    #[test]
    fn no_value_could_have_prevented_what_pytorch_no_longer_takes() {
        let certain = |kind: &str, message: &str, source: &str| {
            let traceback = format!("  File \"/me/train.py\", line 3, in train\n    {source}\n");
            is_certain(&Exception { r#type: kind.to_owned(), message: message.to_owned(), traceback })
        };
        let scalar = "invalid index of a 0-dim tensor. Use `tensor.item()` in Python";
        assert!(certain("IndexError", scalar, "print(loss.data[0])"));
        assert!(!certain("IndexError", scalar, "label = labels[0]"), "a made-up label may have no dimension");
        assert!(certain("RuntimeError", "masked_fill only supports boolean masks", "x.masked_fill(mask, 0)"));
        assert!(!certain("TypeError", "iteration over a 0-d tensor", "for label in labels:"));
        let strides = "view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces). Use .reshape(...) instead.";
        assert!(certain("RuntimeError", strides, "correct_k = correct[:k].view(-1).float().sum(0)"));
        assert!(found("RuntimeError", strides, "").unwrap().contains("`.reshape`"));
        assert!(!certain("ValueError", "sizes differ", "x + y"));
    }

    #[test]
    fn syntax_of_an_older_python_is_recognised() {
        let print = "Missing parentheses in call to 'print'. Did you mean print(...)? (gan.py, line 218)";
        assert!(found("SyntaxError", print, "").unwrap().contains("Python 2.7"));
        let line = "    x = x.cuda(async=True)\n               ^^^^^";
        assert!(found("SyntaxError", "invalid syntax (a.py, line 4)", line).unwrap().contains("Python 3.6"));
        assert_eq!(found("SyntaxError", "invalid syntax (a.py, line 4)", "    x = = 3"), None);
    }
}
