//! What can go wrong before there is an answer, and what the user can do about it.

use std::path::PathBuf;

use memfit_allocator::{RestoreError, SettingsError};
use memfit_devices::CatalogueError;
use memfit_explain::NothingNamed;
use memfit_link::LinkError;
use memfit_recording::RecordingError;

/// Advice that goes with an error.
pub trait Hint {
    /// What the user can do, one sentence each.
    fn hints(&self) -> Vec<String>;
}

/// Why the command could not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// A rule that does not exist.
    #[error(transparent)]
    Rule(#[from] memfit_lint::ConfigError),
    /// Source could not be read.
    #[error(transparent)]
    Check(#[from] memfit_lint::Error),
    /// The editor and the server parted badly.
    #[error(transparent)]
    Server(#[from] memfit_server::ServerError),
    /// No file is there to check.
    #[error("there is no Python in {}", paths.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(", "))]
    NothingToCheck {
        /// What was named.
        paths: Vec<PathBuf>,
    },
    /// No GPU was named.
    #[error("no GPU was named")]
    NoGpu,
    /// The catalogue has no such card, or is broken.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// A real GPU cannot be given another amount of memory.
    #[error("`--memory` is for virtual GPUs; a real one has what it has")]
    MemoryOfLocal,
    /// A rank of many that cannot be.
    #[error("there is no rank {rank} of {size}")]
    NoSuchRank {
        /// The rank asked for.
        rank: u32,
        /// How many there would be.
        size: u32,
    },
    /// A rank of many on the real GPU.
    #[error("one process cannot stand for a rank of many on a real GPU, whose NCCL waits for the others")]
    LoneRankOfLocal,
    /// No real GPU is here.
    #[error("there is no NVIDIA GPU with a working driver here")]
    NoLocalGpu,
    /// There is no card to measure.
    #[error("there is no NVIDIA GPU with a working driver here to measure")]
    NothingToCalibrate,
    /// The measuring process failed.
    #[error("measuring the card failed: {said}")]
    Measuring {
        /// What it said last.
        said: String,
    },
    /// A real card that the catalogue does not have.
    #[error("the catalogue does not know the card `{name}`")]
    UnknownCard {
        /// The driver's name for it.
        name: String,
    },
    /// A card that was never measured here.
    #[error("nothing was measured on this machine{}", name.as_ref().map_or(String::new(), |name| format!(" of `{name}`")))]
    NotCalibrated {
        /// The card that was asked for.
        name: Option<String>,
    },
    /// A file that holds no calibration.
    #[error("`{}` is no calibration: {why}", path.display())]
    BrokenCalibration {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Nobody knows where this user's settings are.
    #[error("there is no folder to keep a calibration in: neither XDG_CONFIG_HOME nor HOME is set")]
    NoHome,
    /// Settings that cannot be understood.
    #[error("the settings in `{}` cannot be understood", file.display())]
    Settings {
        /// The file.
        file: PathBuf,
        /// Why, with the line.
        source: Box<toml::de::Error>,
    },
    /// A setting that does not exist.
    #[error("`{}` sets `{key}` in [tool.memfit], which is not a setting", file.display())]
    UnknownSetting {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// The key that was probably meant.
        suggestion: Option<String>,
    },
    /// A program that is not there.
    #[error("the command `{name}` was not found")]
    CommandNotFound {
        /// As it was typed.
        name: String,
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// A script that is not there.
    #[error("there is no script `{}`", path.display())]
    ScriptNotFound {
        /// As it was typed.
        path: PathBuf,
    },
    /// The operating system or processor is not one that CUDA builds of PyTorch exist for.
    #[error("`memfit run` works on Linux on x86-64, and this is {system}")]
    UnsupportedSystem {
        /// What it is.
        system: String,
    },
    /// The interpreter did not even say its version.
    #[error("`{}` does not work as a Python interpreter", python.display())]
    BrokenPython {
        /// The interpreter.
        python: PathBuf,
        /// What it said.
        said: String,
    },
    /// The interpreter has no torch.
    #[error("PyTorch is not installed for `{}`", python.display())]
    NoTorch {
        /// The interpreter.
        python: PathBuf,
    },
    /// The interpreter has a torch that was built without CUDA.
    #[error("`{}` has PyTorch {version}, which was built without CUDA", python.display())]
    CpuOnlyTorch {
        /// The interpreter.
        python: PathBuf,
        /// `torch.__version__`.
        version: String,
    },
    /// A device library is missing.
    #[error("memfit's library `{name}` was not found")]
    LibraryNotFound {
        /// Its name.
        name: &'static str,
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// A file or a folder could not be used.
    #[error("cannot {what} `{}`", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The command could not be started.
    #[error("cannot start `{}`", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The run directory could not be used.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The recording could not be saved.
    #[error("the recording cannot be saved as `{}`", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<RecordingError>,
    },
    /// A file that holds no allocator's trace.
    #[error("`{}` holds no trace that can be replayed", path.display())]
    NothingToReplay {
        /// The file.
        path: PathBuf,
    },
    /// Allocator settings that PyTorch would refuse.
    #[error("`--alloc-conf`: {0}")]
    AllocConf(#[from] SettingsError),
    /// A device that a recording has nothing of.
    #[error("the recording has nothing of device {device}")]
    NoSuchDevice {
        /// The device.
        device: u32,
        /// Those that it has something of.
        devices: Vec<u32>,
    },
    /// A rank that a recording has nothing of.
    #[error("the recording has nothing of rank {rank}")]
    NoRankThere {
        /// The rank.
        rank: u32,
        /// Those that it has something of.
        ranks: Vec<u32>,
    },
    /// What a replay was asked to change is not in the recording.
    #[error(transparent)]
    NothingNamed(#[from] NothingNamed),
    /// A recording that holds no state that an allocator can be in.
    #[error("the recording cannot be replayed: {0}")]
    Replay(#[from] RestoreError),
    /// A file that is none of those that memfit knows, or a damaged one.
    #[error("`{}` cannot be opened", path.display())]
    Unopenable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<memfit_recording::OpenError>,
    },
    /// A recording in which nothing happened.
    #[error("`{}` tells of no memory{}", path.display(), device.map_or(String::new(), |device| format!(" of device {device}")))]
    NothingToShow {
        /// The file.
        path: PathBuf,
        /// The only device that was asked for.
        device: Option<u8>,
    },
    /// A text where a recording is needed.
    #[error("`{}` is a text with out-of-memory errors, and no recording", path.display())]
    OnlyTexts {
        /// The file.
        path: PathBuf,
    },
    /// A file to write whose ending says nothing.
    #[error("the ending of `{}` does not say in which format to write it", path.display())]
    UnknownOutputFormat {
        /// The file.
        path: PathBuf,
    },
    /// A file to write that is there.
    #[error("`{}` is there already", path.display())]
    OutputExists {
        /// The file.
        path: PathBuf,
    },
    /// The page could not be served.
    #[error("the page cannot be served")]
    Serve(#[source] memfit_view::ServeError),
    /// Images that cannot be looked at.
    #[error(transparent)]
    Data(#[from] memfit_loader::LoaderError),
    /// More than one folder of images.
    #[error("several paths are tar shards, all of them, or one folder")]
    SeveralFolders,
    /// There is nothing to watch.
    #[error("{}", match .pid {
        Some(pid) => format!("process {pid} is no part of a run of memfit"),
        None => "no run of memfit is in progress here".to_owned(),
    })]
    NothingToWatch {
        /// The process that was named.
        pid: Option<u32>,
    },
    /// A plan could not be read or written.
    #[error(transparent)]
    Plan(#[from] memfit_plan::PlanError),
    /// A script that fails whatever the card.
    #[error("the script cannot be planned for: {why}")]
    NothingToPlan {
        /// Why.
        why: String,
        /// What to do.
        hint: String,
    },
    /// A plan for the real GPU.
    #[error("`memfit plan` tries plans on a virtual GPU")]
    PlanForLocal,
    /// An answer could not be written as JSON.
    #[error("the answer cannot be written as JSON")]
    Json(#[source] serde_json::Error),
}

impl CliError {
    /// Makes an error of what the operating system said about a file; for `map_err`.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// A stable name for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Rule(_) => "unknown-rule",
            Self::NothingToCheck { .. } => "nothing-to-check",
            Self::Server(_) => "server",
            Self::NoGpu => "no-gpu-named",
            Self::Catalogue(CatalogueError::UnknownDevice { .. }) | Self::UnknownCard { .. } => "unknown-gpu",
            Self::Catalogue(_) => "catalogue",
            Self::MemoryOfLocal
            | Self::NoSuchRank { .. }
            | Self::LoneRankOfLocal
            | Self::AllocConf(_)
            | Self::NoSuchDevice { .. }
            | Self::NoRankThere { .. }
            | Self::NothingNamed(_)
            | Self::UnknownOutputFormat { .. }
            | Self::SeveralFolders
            | Self::NothingToWatch { .. }
            | Self::PlanForLocal
            | Self::OutputExists { .. } => "usage",
            Self::NoLocalGpu | Self::NothingToCalibrate => "no-local-gpu",
            Self::Measuring { .. } => "measuring",
            Self::NotCalibrated { .. } => "not-calibrated",
            Self::BrokenCalibration { .. } => "calibration",
            Self::NoHome => "no-home",
            Self::Settings { .. } | Self::UnknownSetting { .. } => "settings",
            Self::CommandNotFound { .. } => "command-not-found",
            Self::ScriptNotFound { .. } => "script-not-found",
            Self::UnsupportedSystem { .. } => "unsupported-system",
            Self::BrokenPython { .. } => "broken-python",
            Self::NoTorch { .. } => "no-torch",
            Self::CpuOnlyTorch { .. } => "cpu-only-torch",
            Self::LibraryNotFound { .. } => "library-not-found",
            Self::Check(_) | Self::Io { .. } | Self::Link(_) | Self::Recording { .. } | Self::Json(_) => "io",
            Self::Plan(_) => "plan",
            Self::NothingToPlan { .. } => "nothing-to-plan",
            Self::Unopenable { .. } => "unreadable",
            Self::OnlyTexts { .. } => "only-texts",
            Self::NothingToReplay { .. } => "nothing-to-replay",
            Self::Replay(_) => "replay",
            Self::NothingToShow { .. } => "nothing-to-show",
            Self::Serve(_) => "serve",
            Self::Data(_) => "images",
            Self::Start { .. } => "start",
        }
    }
}

impl Hint for CliError {
    fn hints(&self) -> Vec<String> {
        let paths = |paths: &[PathBuf]| {
            let quoted: Vec<_> = paths.iter().map(|path| format!("`{}`", path.display())).collect();
            quoted.join(", ")
        };
        match self {
            Self::Rule(error) => vec![error.hint()],
            Self::NothingToCheck { .. } => {
                vec!["files that git ignores are passed over; name a file itself to have it read".to_owned()]
            }
            Self::NoGpu => vec![
                "name one with `--gpu`, for example `--gpu rtx-4090`; `memfit gpus` lists them".to_owned(),
                "or set `gpu = \"rtx-4090\"` under [tool.memfit] in pyproject.toml".to_owned(),
            ],
            Self::Catalogue(error) => vec![error.hint()],
            Self::MemoryOfLocal => vec!["name a virtual GPU with `--gpu`, or leave `--memory` out".to_owned()],
            Self::NoSuchRank { .. } => vec!["ranks count from 0 to `--world-size` less one".to_owned()],
            Self::LoneRankOfLocal => vec!["name a virtual GPU with `--gpu`".to_owned()],
            Self::NoLocalGpu => {
                vec!["name a virtual one with `--gpu`; `memfit gpus` lists them".to_owned()]
            }
            Self::NothingToCalibrate => vec![
                "run it on the machine with the card, with `--output FILE`, and give that file to `memfit run --calibration` here".to_owned(),
                "`memfit run --gpu t4 --steps 0 -- memfit calibrate --output FILE` rehearses it on a virtual card".to_owned(),
            ],
            Self::Measuring { .. } => vec![
                "does `python -c \"import torch; torch.ones(1, device='cuda')\"` work? `--python` names another interpreter".to_owned(),
            ],
            Self::UnknownCard { .. } => vec![
                "describe it in a TOML file (`based_on` the nearest card, with this `name`), and give that with `--catalogue`".to_owned(),
            ],
            Self::NotCalibrated { .. } => vec!["`memfit calibrate` measures the card that is here".to_owned()],
            Self::BrokenCalibration { .. } => {
                vec!["`memfit calibrate --forget` removes what is kept; `memfit calibrate` measures again".to_owned()]
            }
            Self::NoHome => vec!["`--output FILE` writes it to a file".to_owned()],
            Self::Settings { .. } => vec!["`--isolated` ignores the settings".to_owned()],
            Self::UnknownSetting { suggestion: Some(key), .. } => vec![format!("did you mean `{key}`?")],
            Self::UnknownSetting { suggestion: None, .. } => {
                vec![format!("the settings are {}", crate::settings::KEYS.join(", "))]
            }
            Self::CommandNotFound { looked, .. } => vec![format!("looked in {}", paths(looked))],
            Self::ScriptNotFound { .. } => {
                vec!["paths are taken from the current directory, as the interpreter would".to_owned()]
            }
            Self::UnsupportedSystem { .. } => {
                vec!["on macOS and Windows it runs in a container; the Containerfile makes one".to_owned()]
            }
            Self::BrokenPython { said, .. } if !said.is_empty() => vec![format!("it said: {said}")],
            Self::BrokenPython { .. } => vec!["try it with `--version`".to_owned()],
            Self::NoTorch { python } => vec![
                format!("install it: `{} -m pip install torch`", python.display()),
                "or activate the environment that has it; `memfit doctor` shows what is found".to_owned(),
            ],
            Self::CpuOnlyTorch { python, version } => {
                let plain = version.split('+').next().unwrap_or(version);
                vec![
                    format!(
                        "install the CUDA build, which needs no GPU: `{} -m pip install --force-reinstall torch=={plain}` on Linux, from the default index",
                        python.display()
                    ),
                    "a version that ends in `+cpu` came from PyTorch's CPU index; the CUDA ones end in `+cu...`"
                        .to_owned(),
                ]
            }
            Self::LibraryNotFound { looked, .. } => vec![
                format!("looked in {}", paths(looked)),
                "a stand-alone memfit finds it beside itself after `cargo build --workspace`, or where `MEMFIT_LIBRARY_DIR` says".to_owned(),
            ],
            Self::Recording { source, .. } => source.hint().map(str::to_owned).into_iter().collect(),
            Self::NothingToReplay { .. } => vec![
                "`torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")` writes one that can be".to_owned(),
            ],
            Self::AllocConf(_) => vec!["the settings are written as in PYTORCH_ALLOC_CONF: `name:value,name:value`".to_owned()],
            Self::NoSuchDevice { devices, .. } if devices.is_empty() => vec!["it has nothing of any device".to_owned()],
            Self::NoSuchDevice { devices, .. } => {
                let known: Vec<String> = devices.iter().map(u32::to_string).collect();
                vec![format!("it has something of {}", known.join(", "))]
            }
            Self::NoRankThere { ranks, .. } if ranks.is_empty() => {
                vec!["it is of one process, which has no rank: leave `--rank` out".to_owned()]
            }
            Self::NoRankThere { ranks, .. } => {
                let known: Vec<String> = ranks.iter().map(u32::to_string).collect();
                vec![format!("it has something of {}", known.join(", "))]
            }
            Self::NothingNamed(error) if error.known.is_empty() => vec![
                "the recording says nothing of that kind: `memfit run -o FILE.memfit` keeps lines, categories and modules".to_owned(),
            ],
            Self::NothingNamed(error) => {
                let known: Vec<String> = error.known.iter().map(|name| format!("`{name}`")).collect();
                vec![format!("it has blocks of {}", known.join(", "))]
            }
            Self::Replay(_) => vec!["a snapshot that was cut off or changed by hand may be like this; `memfit explain` says what it can of it".to_owned()],
            Self::Unopenable { source, .. } => source.hint().map(str::to_owned).into_iter().collect(),
            Self::NothingToShow { device: Some(_), .. } => vec!["leave `--device` out to see them all".to_owned()],
            Self::NothingToShow { device: None, .. } => {
                vec!["`torch.cuda.memory._record_memory_history()` has to run before what is to be seen".to_owned()]
            }
            Self::OnlyTexts { .. } => vec!["`memfit explain` says what they prove".to_owned()],
            Self::UnknownOutputFormat { .. } => vec![
                "use one of .memfit, .pickle, .perfetto-trace, .json, .csv and .jsonl, or name it with `--to`".to_owned(),
            ],
            Self::OutputExists { .. } => vec!["`--force` writes over it".to_owned()],
            Self::Serve(error) => vec![error.hint().to_owned()],
            Self::Data(error) => error.hint().map(str::to_owned).into_iter().collect(),
            Self::SeveralFolders => vec!["run it once for each folder".to_owned()],
            Self::NothingToWatch { .. } => vec![
                "`memfit run --gpu NAME --steps 0 -- python train.py` can be watched from another terminal; with `--gpu local` it trains on the real GPU".to_owned(),
            ],
            Self::Plan(error) => vec![error.hint().to_owned()],
            Self::NothingToPlan { hint, .. } => vec![hint.clone()],
            Self::PlanForLocal => {
                vec!["name the card with `--gpu`, as `memfit gpus` has it".to_owned()]
            }
            Self::Check(_)
            | Self::Server(_)
            | Self::Io { .. }
            | Self::Start { .. }
            | Self::Link(_)
            | Self::Json(_) => Vec::new(),
        }
    }
}
