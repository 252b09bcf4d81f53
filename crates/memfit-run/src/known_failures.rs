//! Failures of scripts with a known reason and remedy: missing kernels, GPUs, extensions, modules, a
//! terminal, answers on standard input, keys of services, environments of Gymnasium.

use memfit_report::wire::{Exception, Problem, ProblemKind};
use memfit_vocabulary::installed_path;

use crate::stand_ins::Given;
use crate::{Card, attention, downloads, hub, older, own_modules, traceback};

/// Interpreter and PyTorch that ran the script.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ran<'a> {
    /// `torch.__version__`.
    pub(crate) torch: Option<&'a str>,
    /// Path of the interpreter.
    pub(crate) interpreter: Option<&'a str>,
    /// Options for synthetic data and weights, and what they could replace.
    pub(crate) given: Given<'a>,
}

/// Problem behind an exception; `None` if its reason is unknown.
pub(crate) fn problem(card: &Card, ran: Ran<'_>, exception: &Exception) -> Option<Problem> {
    // memfit's own refusals may quote another error.
    if exception.message.starts_with(traceback::MESSAGE_PREFIX) {
        return None;
    }
    without_kernels(card, ran.torch, exception)
        .or_else(|| without_device(card, exception))
        .or_else(|| unbuilt(exception))
        .or_else(|| built_for_another(ran, exception))
        .or_else(|| hub::problem(ran.given, exception))
        .or_else(|| downloads::problem(ran.given, exception))
        .or_else(|| attention::problem(ran.interpreter, exception))
        .or_else(|| not_installed(ran.interpreter, exception))
        .or_else(|| without_terminal(exception))
        .or_else(|| without_answer(exception))
        .or_else(|| without_key(exception))
        .or_else(|| without_environment(ran.interpreter, exception))
}

/// Message of the CUDA runtime about a kernel that was compiled only for other devices.
const NO_KERNEL: &str = "no kernel image is available";

fn without_kernels(card: &Card, torch: Option<&str>, exception: &Exception) -> Option<Problem> {
    if !exception.message.contains(NO_KERNEL) {
        return None;
    }
    let torch = torch.map_or_else(|| "this PyTorch".to_owned(), |torch| format!("PyTorch {torch}"));
    let card = match card {
        Card::Virtual(device, _) => {
            let capability = device.compute_capability;
            format!("{} (compute capability {}.{})", device.name, capability.major, capability.minor)
        }
        Card::Local(_) => "this GPU".to_owned(),
    };
    Some(Problem {
        kind: ProblemKind::NoKernelsForCard,
        message: format!(
            "{torch}, or an extension of it, has no kernels for {card}: it would fail in the same way on the real one."
        ),
        hint: Some(kernels_hint(std::env::consts::ARCH)),
    })
}

/// Remedies for missing kernels on a processor.
fn kernels_hint(processor: &str) -> String {
    let builds = if processor == "aarch64" {
        // Compute capabilities in torch 2.15 for ARM: 8.0, 9.0, 10.0, 11.0 and 12.0; on x86-64 also 7.5 and
        // 8.6.
        "PyTorch's builds for ARM support fewer GPUs than those for x86-64"
    } else {
        "install a build for an older CUDA release, which supports older GPUs"
    };
    format!(
        "`torch.cuda.get_arch_list()` lists the architectures that it was built for; {builds}. If you build the extension yourself, set `TORCH_CUDA_ARCH_LIST`"
    )
}

/// PyTorch's messages about a GPU whose number is too high.
const NO_DEVICE: &[&str] = &[
    "invalid device ordinal",
    "Attempting to deserialize object on CUDA device",
    "Invalid device id",
    // Lightning.
    "You requested gpu: [",
    NONE_VISIBLE,
];
/// PyTorch's message if `CUDA_VISIBLE_DEVICES` names none of the GPUs.
const NONE_VISIBLE: &str = "No CUDA GPUs are available";

fn without_device(card: &Card, exception: &Exception) -> Option<Problem> {
    if !NO_DEVICE.iter().any(|text| exception.message.contains(text)) {
        return None;
    }
    let Card::Virtual(device, count) = card else { return None };
    let place =
        traceback::user_line(&exception.traceback).map(|place| format!(" at {place}")).unwrap_or_default();
    let said = traceback::summary(&exception.message);
    let has = if *count == 1 { "1 GPU, `cuda:0`".to_owned() } else { format!("{count} GPUs") };
    let chooses = if said.contains(NONE_VISIBLE) {
        "set `CUDA_VISIBLE_DEVICES` to `0` where the script or its configuration sets it"
    } else {
        "choose `cuda:0` with the script's own options"
    };
    Some(Problem {
        kind: ProblemKind::Exception,
        message: format!(
            "The script uses a GPU{place} that this run does not have: {}: {said}",
            exception.r#type
        ),
        hint: Some(format!(
            "this run has {has}. Give it N of them with `--gpu {}:N`, or {chooses}",
            device.id
        )),
    })
}

/// Conventional name endings of compiled modules.
const COMPILED_SUFFIXES: &[&str] = &["_C", "_cuda", "_ext", "_ext_cuda", "_kernels", "_cpp", "_gpu"];
/// Messages of `torch.utils.cpp_extension` when it cannot build.
const CANNOT_BUILD: &[&str] = &[
    "CUDA_HOME environment variable is not set",
    "Ninja is required to load C++ extensions",
    "Error building extension",
    "Error compiling objects for extension",
];

fn unbuilt(exception: &Exception) -> Option<Problem> {
    let said = traceback::summary(&exception.message);
    let import = ["ModuleNotFoundError", "ImportError"].iter().any(|kind| exception.r#type.ends_with(kind));
    // `No module named 'a.b_cuda'`, `cannot import name '_C' from 'detectron2'`.
    let module = import.then(|| said.split('\'').nth(1)).flatten();
    let compiled = module.filter(|module| {
        let last = module.rsplit('.').next().unwrap_or_default();
        COMPILED_SUFFIXES.iter().any(|ending| last.ends_with(ending))
    });
    let compiled = compiled.or_else(|| module.filter(|module| is_part_of_importer(module, exception)));
    let cannot_build = CANNOT_BUILD.iter().any(|text| exception.message.contains(text));
    let message = match compiled {
        Some(module) => {
            format!("The compiled extension `{module}` was never built for this interpreter: {said}")
        }
        None if cannot_build => format!("A compiled extension could not be built here: {said}"),
        None => return None,
    };
    Some(Problem {
        kind: ProblemKind::ExtensionNotBuilt,
        message,
        hint: Some(
            "build it as its project says, often `pip install -e . --no-build-isolation` with a CUDA toolkit (`nvcc`), which needs no GPU; or choose the project's implementation in plain PyTorch, where it has one"
                .to_owned(),
        ),
    })
}

/// Returns `true` if an installed package failed to import a module whose name begins with its own: the
/// compiled part that building it would have added.
fn is_part_of_importer(module: &str, exception: &Exception) -> bool {
    let file = traceback::raising_file(&exception.traceback).unwrap_or_default();
    let importer = installed_path(file).unwrap_or_default();
    let package = importer.split('/').next().unwrap_or_default();
    !package.is_empty() && module.strip_prefix(package).is_some_and(|rest| rest.starts_with('_'))
}

/// The dynamic linker's message about a name that a library expects of another.
const NO_SYMBOL: &str = "undefined symbol: ";
/// Parts of the mangled names of PyTorch's own functions.
const TORCH_NAMES: &[&str] = &["N3c10", "N5torch", "N2at", "NK3c10", "NK5torch", "NK2at"];

/// A package whose compiled part expects another release of PyTorch.
fn built_for_another(ran: Ran<'_>, exception: &Exception) -> Option<Problem> {
    let (before, symbol) = exception.message.split_once(NO_SYMBOL)?;
    let symbol = symbol.split_whitespace().next().unwrap_or_default().trim_end_matches(')');
    if !TORCH_NAMES.iter().any(|name| symbol.contains(name)) {
        return None;
    }
    let installed = installed_path(before).and_then(|path| path.split(['/', '.']).next());
    let package = installed.map_or_else(|| "a package".to_owned(), |package| format!("`{package}`"));
    let torch = ran.torch.map_or_else(|| "this one".to_owned(), |torch| format!("PyTorch {torch}"));
    let python = ran.interpreter.unwrap_or("python");
    Some(Problem {
        kind: ProblemKind::ExtensionNotBuilt,
        message: format!(
            "The compiled part of {package} was built for another PyTorch than {torch}, and cannot be loaded: undefined symbol {symbol}"
        ),
        hint: Some(format!(
            "install the release of {package} that was made for {torch} (`{python} -m pip install …`), or build it here. If there is none, use the PyTorch that the script's requirements name, or remove the import if the script does not need it"
        )),
    })
}

/// Beginning of Python's message about a module that does not exist.
const NO_MODULE: &str = "No module named '";

fn not_installed(interpreter: Option<&str>, exception: &Exception) -> Option<Problem> {
    if !exception.r#type.ends_with("ModuleNotFoundError") {
        return None;
    }
    let (module, _) = exception.message.strip_prefix(NO_MODULE)?.split_once('\'')?;
    let kind = ProblemKind::ModuleMissing;
    let own = own_modules::remedy(module, &exception.traceback).or_else(|| older::hint_at_module(module));
    // Python names the first missing component: the packages before it were found.
    if let Some((package, _)) = module.rsplit_once('.') {
        let root = module.split('.').next().unwrap_or(package);
        let raised_in = traceback::raising_file(&exception.traceback).unwrap_or_default();
        let importer = traceback::package_of(raised_in).filter(|importer| *importer != root);
        let who =
            importer.map_or("the script".to_owned(), |importer| format!("`{importer}`, which imports it,"));
        let whose = interpreter.map(|path| format!(" that {path} found")).unwrap_or_default();
        return Some(Problem {
            kind,
            message: format!("The `{package}`{whose} has no module `{module}`."),
            hint: Some(own.unwrap_or_else(|| format!(
                "{who} was written for another release of `{root}`: install the one that its requirements name; or remove the folder or package of the same name that comes first on `sys.path` (`python -c \"import {package}; print({package}.__path__)\"`)"
            ))),
        });
    }
    let python = interpreter.unwrap_or("python");
    let which = interpreter.unwrap_or("The interpreter that ran the script");
    Some(Problem {
        kind,
        message: format!("{which} has no module `{module}`."),
        hint: Some(own.or_else(|| package_of(module, python)).unwrap_or_else(|| format!(
            "install the package that provides it (`{python} -m pip install …`; the package's name can differ from the module's), or give another interpreter's path in the command. If the module belongs to the script's own project, run the command in the folder, and with the `PYTHONPATH`, that the project's README names"
        ))),
    })
}

/// Modules of packages with another name. Installing the module's name finds nothing or another project.
const PACKAGES: &[(&str, &str)] = &[
    ("Bio", "biopython"),
    ("Crypto", "pycryptodome"),
    ("Levenshtein", "python-Levenshtein"),
    ("PIL", "Pillow"),
    ("attr", "attrs"),
    ("bs4", "beautifulsoup4"),
    ("cv2", "opencv-python"),
    ("dateutil", "python-dateutil"),
    ("dotenv", "python-dotenv"),
    ("faiss", "faiss-cpu"),
    ("flash_attn", "flash-attn --no-build-isolation"),
    ("git", "GitPython"),
    ("hydra", "hydra-core"),
    ("igraph", "python-igraph"),
    ("ignite", "pytorch-ignite"),
    ("imblearn", "imbalanced-learn"),
    ("ot", "POT"),
    // Later releases have it no more.
    ("pkg_resources", "'setuptools<81'"),
    ("pl_bolts", "lightning-bolts"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("skopt", "scikit-optimize"),
    ("tap", "typed-argument-parser"),
    // Their set-up imports PyTorch.
    ("torch_cluster", "torch-cluster --no-build-isolation"),
    ("torch_scatter", "torch-scatter --no-build-isolation"),
    ("torch_sparse", "torch-sparse --no-build-isolation"),
    ("torch_spline_conv", "torch-spline-conv --no-build-isolation"),
    ("torchcrf", "pytorch-crf"),
    ("umap", "umap-learn"),
    ("yaml", "PyYAML"),
    ("zeta", "zetascale"),
];

/// Modules that the package index does not have: its package of that name is another project.
const SOURCES: &[(&str, &str)] =
    &[("apex", "https://github.com/NVIDIA/apex"), ("clip", "https://github.com/openai/CLIP")];

fn package_of(module: &str, python: &str) -> Option<String> {
    let find = |table: &[(&str, &'static str)]| {
        table.iter().find(|(name, _)| *name == module).map(|(_, source)| *source)
    };
    let elsewhere = "or name another interpreter's path in the command";
    if let Some(package) = find(PACKAGES) {
        return Some(format!(
            "`{module}` is in the package `{package}`: `{python} -m pip install {package}`; {elsewhere}"
        ));
    }
    find(SOURCES).map(|source| {
        format!(
            "install it for that interpreter from {source}, as its README says: the package `{module}` of the Python package index is another project; {elsewhere}"
        )
    })
}

/// The operating system's message about a file that is not a terminal.
const NO_TERMINAL: &str = "Inappropriate ioctl for device";
/// Command that asks the terminal for its size and prints nothing without one.
const TERMINAL_SIZE: &str = "stty size";

fn without_terminal(exception: &Exception) -> Option<Problem> {
    let raised = exception.traceback.lines().rev().take(LINES_OF_FRAME);
    if !exception.message.contains(NO_TERMINAL)
        && !raised.into_iter().any(|line| line.contains(TERMINAL_SIZE))
    {
        return None;
    }
    let said = traceback::summary(&exception.message);
    Some(Problem {
        kind: ProblemKind::NoTerminal,
        message: format!(
            "The script asks for a terminal, and memfit runs scripts without one: {}: {said}",
            exception.r#type
        ),
        hint: Some(
            "`memfit run … -- script -qec \"stty cols 80; python train.py\" /dev/null` gives it a terminal of its own"
                .to_owned(),
        ),
    })
}

/// Maximum lines of the last frame at the end of a traceback: location, source, markers, error.
const LINES_OF_FRAME: usize = 4;

/// Python's message where `input()` finds no line.
const NO_LINE: &str = "EOF when reading a line";

fn without_answer(exception: &Exception) -> Option<Problem> {
    if exception.r#type != "EOFError" || exception.message != NO_LINE {
        return None;
    }
    let place =
        traceback::user_line(&exception.traceback).map(|place| format!(" at {place}")).unwrap_or_default();
    Some(Problem {
        kind: ProblemKind::Exception,
        message: format!(
            "The script asks for an answer{place}, and its standard input had ended: EOFError: {NO_LINE}"
        ),
        hint: Some(
            "give it the answers: memfit passes its own standard input on (`printf 'yes\\n' | memfit run …`)"
                .to_owned(),
        ),
    })
}

/// Messages of Weights & Biases without a key, unless it is set to work offline.
const NO_KEY: &[&str] = &["wandb login", "WANDB_API_KEY", "api_key not configured"];

fn without_key(exception: &Exception) -> Option<Problem> {
    if !exception.r#type.starts_with("wandb.")
        || !NO_KEY.iter().any(|words| exception.message.contains(words))
    {
        return None;
    }
    let place =
        traceback::user_line(&exception.traceback).map(|place| format!(" at {place}")).unwrap_or_default();
    let said = traceback::summary(&exception.message);
    Some(Problem {
        kind: ProblemKind::Exception,
        message: format!("The script logs to Weights & Biases{place}, which has no key here: {said}"),
        hint: Some(
            "put `WANDB_MODE=offline` in front of the command: runs are then logged to a folder. If the script passes `mode=` to `wandb.init`, set that to `\"offline\"`"
                .to_owned(),
        ),
    })
}

/// Errors of Gym and Gymnasium about an environment that no imported package registers, or that needs another
/// package.
const NO_ENVIRONMENT: &[&str] =
    &["NameNotFound", "NamespaceNotFound", "VersionNotFound", "DependencyNotInstalled"];
/// Parts of the names of environments of Atari's games.
const ATARI: &[&str] = &["NoFrameskip", "ALE", "Deterministic"];

fn without_environment(interpreter: Option<&str>, exception: &Exception) -> Option<Problem> {
    let (module, kind) = exception.r#type.rsplit_once('.')?;
    if !module.starts_with("gym") || !NO_ENVIRONMENT.contains(&kind) {
        return None;
    }
    let said = traceback::summary(&exception.message);
    let place =
        traceback::user_line(&exception.traceback).map(|place| format!(" at {place}")).unwrap_or_default();
    let python = interpreter.unwrap_or("python");
    let library = module.split('.').next().unwrap_or(module);
    if kind == "DependencyNotInstalled" {
        // Its message says what to install.
        return Some(Problem {
            kind: ProblemKind::ModuleMissing,
            message: format!("The script asks for an environment{place} that needs another package: {said}"),
            hint: Some(format!("install what the message names: `{python} -m pip install …`")),
        });
    }
    let package = if ATARI.iter().any(|part| said.contains(part)) {
        format!("install Atari's games: `{python} -m pip install '{library}[atari]'`")
    } else {
        "install the package that registers it; the script's requirements may name it".to_owned()
    };
    let last =
        if library == "gym" { "; today's environments register with `gymnasium`, its successor" } else { "" };
    Some(Problem {
        kind: ProblemKind::Exception,
        message: format!("The script asks for an environment{place} that is not installed here: {said}"),
        hint: Some(format!("{package}{last}")),
    })
}

#[cfg(test)]
mod tests {
    use memfit_devices::Catalogue;

    use super::*;

    #[test]
    fn known_failures_have_their_own_sentence_and_remedy() {
        let device = Catalogue::builtin().unwrap().find("v100").unwrap().clone();
        let card = Card::Virtual(Box::new(device), 1);
        let check = |kind: &str, message: &str, expected: Option<(&str, &str)>| {
            let exception =
                Exception { r#type: kind.to_owned(), message: message.to_owned(), traceback: String::new() };
            let ran = Ran { torch: Some("2.15.0"), interpreter: Some("/v/bin/python"), ..Ran::default() };
            let found = problem(&card, ran, &exception);
            assert_eq!(found.is_some(), expected.is_some(), "{message}: {found:?}");
            if let (Some(found), Some((kind, word))) = (found, expected) {
                assert_eq!(found.kind.name(), kind, "{message}");
                assert!(found.message.contains(word), "{}", found.message);
            }
        };
        let text = "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors";
        check("torch.AcceleratorError", text, Some(("no-kernels-for-card", "compute capability 7.0")));
        let built = "extension-not-built";
        check("ModuleNotFoundError", "No module named 'dcn_v2_cuda'", Some((built, "`dcn_v2_cuda`")));
        check("ImportError", "cannot import name '_C' from 'detectron2' (/x)", Some((built, "`_C`")));
        check("RuntimeError", "Error building extension 'fused'", Some((built, "'fused'")));
        check("OSError", "CUDA_HOME environment variable is not set.", Some((built, "CUDA_HOME")));
        let missing = "module-missing";
        check(
            "ModuleNotFoundError",
            "No module named 'einops'",
            Some((missing, "/v/bin/python has no module `einops`")),
        );
        check("ModuleNotFoundError", "No module named '_cffi_backend'", Some((missing, "`_cffi_backend`")));
        let key = "No API key configured. Use `wandb login` to log in.";
        check("wandb.errors.errors.UsageError", key, Some(("exception", "logs to Weights & Biases")));
        check("UsageError", key, None);
        let game = "Environment MsPacmanNoFrameskip doesn't exist. ";
        check("gym.error.NameNotFound", game, Some(("exception", "asks for an environment that is not")));
        let package = "No module named 'mujoco_py'. (HINT: you need to install mujoco_py.)";
        check(
            "gym.error.DependencyNotInstalled",
            package,
            Some((missing, "needs another package: No module")),
        );
        check("sockets.NameNotFound", game, None);
        let text = "No module named 'torch._six'";
        check(
            "ModuleNotFoundError",
            text,
            Some((missing, "The `torch` that /v/bin/python found has no module")),
        );
        let text = "No module named 'utils.data'; 'utils' is not a package";
        check("ModuleNotFoundError", text, Some((missing, "`utils.data`")));
        check("ImportError", "cannot import name 'load' from 'einops'", None);
        check("ValueError", "No module named 'x_cuda'", None);
        let text = "HTTPSConnectionPool(host='example.org', port=443): Failed to resolve 'example.org'";
        let hub = "Couldn't reach 'someone/rows' on the Hub (OfflineModeIsEnabled)";
        check("ConnectionError", hub, Some(("no-network", "someone/rows")));
        let own = "memfit: the configuration is not on this machine (OSError: couldn't connect to 'https://a.example')";
        check("OSError", own, None);
        check("requests.exceptions.ConnectionError", text, Some(("no-network", "example.org")));
        let text = "<urlopen error [Errno -2] Name or service not known>";
        check("urllib.error.URLError", text, Some(("no-network", "Name or service")));
        check("ConnectionRefusedError", "[Errno 111] Connection refused", None);
        let text = "CUDA error: invalid device ordinal\nGPU device may be out of range";
        check("torch.AcceleratorError", text, Some(("exception", "a GPU that this run does not have")));
        let text = "No CUDA GPUs are available";
        check("RuntimeError", text, Some(("exception", "a GPU that this run does not have")));
        check("EOFError", NO_LINE, Some(("exception", "standard input had ended")));
        check("EOFError", "Ran out of input", None);
        let text = "[Errno 25] Inappropriate ioctl for device";
        check("OSError", text, Some(("no-terminal", "Inappropriate ioctl")));
    }

    #[test]
    fn a_package_with_another_name_than_its_module_is_named() {
        let hint = |module: &str| {
            let message = format!("No module named '{module}'");
            let exception =
                Exception { r#type: "ModuleNotFoundError".to_owned(), message, traceback: String::new() };
            not_installed(Some("/v/bin/python"), &exception).and_then(|problem| problem.hint).unwrap()
        };
        assert!(hint("git").contains("`/v/bin/python -m pip install GitPython`"), "{}", hint("git"));
        assert!(hint("pkg_resources").contains("pip install 'setuptools<81'`"), "{}", hint("pkg_resources"));
        // Packages of these names exist, and are other projects.
        assert!(hint("apex").contains("https://github.com/NVIDIA/apex"), "{}", hint("apex"));
        assert!(!hint("apex").contains("pip install apex"), "{}", hint("apex"));
        assert!(hint("einops").contains("`/v/bin/python -m pip install …`"), "{}", hint("einops"));
    }

    #[test]
    fn the_compiled_part_of_an_installed_package_is_to_be_built() {
        let kind = |module: &str, file: &str| {
            let exception = Exception {
                r#type: "ModuleNotFoundError".to_owned(),
                message: format!("No module named '{module}'"),
                traceback: format!("  File \"{file}\", line 4, in <module>\n    import {module}\n"),
            };
            unbuilt(&exception).map(|problem| problem.kind)
        };
        let package = "/v/lib/python3.11/site-packages/adam_atan2/adam_atan2.py";
        assert_eq!(kind("adam_atan2_backend", package), Some(ProblemKind::ExtensionNotBuilt));
        assert_eq!(kind("einops", package), None);
        assert_eq!(kind("adam_atan2_backend", "/me/adam_atan2/train.py"), None);
    }

    #[test]
    fn a_package_for_another_pytorch_is_named() {
        let library = "/v/lib/python3.11/site-packages/torchtext/lib/libtorchtext.so";
        let told = |symbol: &str| {
            let message = format!(
                "Could not load this library: {library} (raised from OSError: {library}: undefined symbol: {symbol})"
            );
            let exception = Exception { r#type: "OSError".to_owned(), message, traceback: String::new() };
            let ran = Ran { torch: Some("2.15.0"), ..Ran::default() };
            built_for_another(ran, &exception).map(|problem| problem.message)
        };
        let found = told("_ZN5torch6detail10class_baseC2ERKSsS3_").unwrap();
        assert!(found.contains("`torchtext`") && found.contains("PyTorch 2.15.0"), "{found}");
        assert_eq!(told("_ZN6google8protobuf"), None);
    }

    #[test]
    fn older_cuda_releases_are_no_remedy_on_arm() {
        assert!(kernels_hint("x86_64").contains("older CUDA release"));
        assert!(kernels_hint("aarch64").contains("builds for ARM support fewer GPUs"));
        assert!(!kernels_hint("aarch64").contains("older"));
    }

    #[test]
    fn a_terminal_is_missed_where_its_size_was_asked_for() {
        let missed = |lines: &[&str]| {
            let exception = Exception {
                r#type: "ValueError".to_owned(),
                message: "not enough values to unpack (expected 2, got 0)".to_owned(),
                traceback: lines.join("\n"),
            };
            without_terminal(&exception).is_some()
        };
        let asked = "    rows, columns = os.popen('stty size', 'r').read().split()";
        let error = "ValueError: not enough values to unpack (expected 2, got 0)";
        let place = "  File \"/x/utils.py\", line 45, in <module>";
        assert!(missed(&["Traceback (most recent call last):", place, asked, "    ^^^^^^^^^^^^^", error]));
        assert!(missed(&[place, asked, error]), "Python 3.10 has no marks");
        let later = ["  File \"/x/data.py\", line 3, in load", "    a, b = line.split()", "    ^^^^", error];
        assert!(!missed(&[&[place, asked], &later[..]].concat()), "another line raised");
    }
}
