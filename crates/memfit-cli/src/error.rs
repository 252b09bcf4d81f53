//! Errors that prevent an answer, with hints for the user.

use std::path::{Path, PathBuf};

use memfit_allocator::{RestoreError, SettingsError};
use memfit_container::ContainerError;
use memfit_devices::CatalogueError;
use memfit_explain::{ExplainError, NoMatchingBlocks};
use memfit_recording::OpenError;
use memfit_report::wire::ProblemKind;
use memfit_run::RunError;

/// Errors with advice.
pub trait Hint {
    /// Hints for the user, one sentence each.
    fn hints(&self) -> Vec<String>;
}

/// Reason why the command has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The recording could not be explained.
    #[error(transparent)]
    Explain(#[from] ExplainError),
    /// A rule that does not exist.
    #[error(transparent)]
    Rule(#[from] memfit_lint::ConfigError),
    /// A source file could not be read.
    #[error(transparent)]
    Check(#[from] memfit_lint::Error),
    /// The connection between the editor and the server failed.
    #[error(transparent)]
    Server(#[from] memfit_server::ServerError),
    /// There is no file to check.
    #[error("no Python interpreter was found in {}", paths.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(", "))]
    NothingToCheck {
        /// The named paths.
        paths: Vec<PathBuf>,
    },
    /// The answer could not be written to standard output.
    #[error("the answer could not be written to standard output")]
    Output(#[source] std::io::Error),
    /// The script could not be run on the GPUs.
    #[error(transparent)]
    Arguments(#[from] memfit_cards::ArgumentsError),
    /// The price file could not be used.
    #[error(transparent)]
    Prices(#[from] memfit_cards::PricesError),
    /// No GPU of the catalogue matches the filters.
    #[error("no GPU in the catalogue matches these options")]
    NoCardLeft,
    /// `--gpu NAME:N` of `memfit cards`.
    #[error("`--gpu {name}:{count}` has a number of GPUs, which `memfit cards` takes from `--count`")]
    CardWithCount {
        /// The kind.
        name: String,
        /// The number.
        count: String,
    },
    /// `--gpu local` of `memfit cards`.
    #[error("only virtual GPUs can be compared, but `local` is a real one")]
    CardsOfLocal,
    /// Epochs were requested, but the length of an epoch is unknown.
    #[error("the length of an epoch is not known: the script's data set cannot count its samples")]
    UnknownEpoch,
    /// No GPU was named.
    #[error("no GPU was named")]
    NoGpu,
    /// The catalogue has no such GPU, or is invalid.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The memory size of a real GPU cannot be changed.
    #[error("`--memory` is for virtual GPUs; that of a real GPU is fixed")]
    MemoryOfLocal,
    /// There is no GPU to measure.
    #[error("no NVIDIA GPU with a working driver was found to measure")]
    NothingToCalibrate,
    /// The measuring process failed.
    #[error("measuring the GPU failed: {said}")]
    Measuring {
        /// Last output.
        said: String,
    },
    /// A real GPU that is not in the catalogue.
    #[error("the GPU `{name}` is not in the catalogue")]
    UnknownCard {
        /// The driver's name for it.
        name: String,
    },
    /// A GPU without a stored calibration.
    #[error("no calibration{} is stored on this machine", name.as_ref().map_or(String::new(), |name| format!(" of `{name}`")))]
    NotCalibrated {
        /// The requested GPU.
        name: Option<String>,
    },
    /// The file does not contain a calibration.
    #[error("`{}` is not a calibration: {why}", path.display())]
    BrokenCalibration {
        /// The file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// The location of this user's settings is unknown.
    #[error("there is no folder to keep a calibration in: neither XDG_CONFIG_HOME nor HOME is set")]
    NoHome,
    /// Invalid settings.
    #[error("the settings in `{}` are not valid", file.display())]
    Settings {
        /// The file.
        file: PathBuf,
        /// Reason, with the line.
        source: Box<toml::de::Error>,
    },
    /// A setting that does not exist.
    #[error("`{}` sets `{key}` in [tool.memfit], which is not a setting", file.display())]
    UnknownSetting {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// The most similar setting, if there is one.
        suggestion: Option<String>,
    },
    /// A file or a folder could not be used.
    #[error("cannot {what} `{}`", path.display())]
    Io {
        /// The failed action.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// The file does not contain an allocator trace.
    #[error("`{}` holds no trace that can be replayed", path.display())]
    NothingToReplay {
        /// The file.
        path: PathBuf,
    },
    /// Allocator settings that PyTorch would reject.
    #[error("`--alloc-conf`: {0}")]
    AllocConf(#[from] SettingsError),
    /// The recording does not contain this rank.
    #[error("the recording has no data for rank {rank}")]
    NoRankThere {
        /// The rank.
        rank: u32,
        /// Ranks in the recording.
        ranks: Vec<u32>,
    },
    /// A requested change is not in the recording.
    #[error(transparent)]
    NoMatchingBlocks(#[from] NoMatchingBlocks),
    /// The file has an unknown format or is damaged.
    #[error("`{}` {}", path.display(), if matches!(**source, OpenError::Elsewhere { .. }) { "has no error that memfit explains" } else { "cannot be read" })]
    Unopenable {
        /// The file.
        path: PathBuf,
        /// Reason.
        source: Box<OpenError>,
    },
    /// The recording has no events.
    #[error("`{}` has no memory events{}", path.display(), device.map_or(String::new(), |device| format!(" of device {device}")))]
    NothingToShow {
        /// The file.
        path: PathBuf,
        /// The requested device.
        device: Option<u8>,
    },
    /// The file is a text, but a recording is needed.
    #[error("`{}` contains out-of-memory errors as text, and is not a recording", path.display())]
    OnlyTexts {
        /// The file.
        path: PathBuf,
    },
    /// The extension of the output file is unknown.
    #[error("`{}` has no known file extension", path.display())]
    UnknownOutputFormat {
        /// The file.
        path: PathBuf,
    },
    /// The output file exists.
    #[error("`{}` already exists", path.display())]
    OutputExists {
        /// The file.
        path: PathBuf,
    },
    /// The page could not be served.
    #[error("the page cannot be served")]
    Serve(#[source] memfit_view::ServeError),
    /// Metrics could not be served.
    #[error("cannot listen on port {port} of 127.0.0.1")]
    Listen {
        /// Port.
        port: u16,
        /// Cause.
        source: std::io::Error,
    },
    /// Images could not be read.
    #[error(transparent)]
    Data(#[from] memfit_loader::LoaderError),
    /// More than one image folder was named.
    #[error("several paths must all be tar shards; otherwise name one folder")]
    SeveralFolders,
    /// There is nothing to watch.
    #[error("{}", match .pid {
        Some(pid) => format!("process {pid} does not belong to a memfit run"),
        None => "no memfit run is in progress on this machine".to_owned(),
    })]
    NothingToWatch {
        /// The named process.
        pid: Option<u32>,
    },
    /// A plan could not be read or written.
    #[error(transparent)]
    Plan(#[from] memfit_plan::PlanError),
    /// The plan cannot be launched.
    #[error(transparent)]
    Launch(#[from] memfit_plan::LaunchError),
    /// The command for several machines requires the name of the first one.
    #[error("the plan is for several machines, and {variable} is not set")]
    LaunchNeeds {
        /// Environment variable.
        variable: &'static str,
    },
    /// The links do not match the GPUs.
    #[error(transparent)]
    Link(#[from] memfit_devices::LinkError),
    /// The script fails on every GPU.
    #[error("no plan can be made for this script: {why}")]
    NothingToPlan {
        /// Reason.
        why: String,
        /// Advice.
        hint: String,
    },
    /// The script has no training whose model could be made smaller.
    #[error("nothing can be measured for this script: {why}")]
    NothingToShrink {
        /// Reason.
        why: String,
        /// Advice.
        hint: String,
    },
    /// `memfit shrink` does not run on the real GPU.
    #[error("`memfit shrink` measures on a virtual GPU")]
    ShrinkForLocal,
    /// It is unknown whether the plan fits.
    #[error("cannot tell if the plan fits: {}", .0.message)]
    PlanUnsettled(memfit_report::wire::Problem),
    /// `memfit plan` does not run on the real GPU.
    #[error("`memfit plan` tries plans on a virtual GPU")]
    PlanForLocal,
    /// There are no settings for `memfit ci`.
    #[error("no pyproject.toml in this folder or its parents has a [tool.memfit.ci] table")]
    NoCiSettings,
    /// The settings of `memfit ci` list no script.
    #[error("[tool.memfit.ci] in `{}`: {why}", file.display())]
    CiSettings {
        /// The file.
        file: PathBuf,
        /// Reason.
        why: String,
        /// What to write.
        hint: &'static str,
    },
    /// `memfit ci` does not run on the real GPU.
    #[error("`memfit ci` measures on virtual GPUs, which are the same on every machine")]
    CiForLocal,
    /// Nothing can run in a container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// A commit could not be checked out.
    #[error(transparent)]
    Checkout(#[from] memfit_run::CheckoutError),
    /// The file does not contain a baseline.
    #[error("the baseline `{}` cannot be read", file.display())]
    Baseline {
        /// The file.
        file: PathBuf,
        /// Reason.
        source: memfit_ci::BaselineError,
    },
    /// The base's run imported source of the working tree.
    #[error("it imported `{}`, which belongs to the working tree, not to the commit", file.display())]
    ForeignSource {
        /// The file.
        file: PathBuf,
    },
    /// `memfit data --loader` does not run on the real GPU.
    #[error("`memfit data --loader` runs a few steps on a virtual GPU, not on this machine's")]
    LoaderForLocal,
    /// An answer could not be written as JSON.
    #[error("the answer cannot be written as JSON")]
    Json(#[source] serde_json::Error),
}

impl CliError {
    /// Returns a closure for `map_err` that attaches the operation and the path to an I/O error.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// A stable name for programs.
    pub fn kind(&self) -> ProblemKind {
        match self {
            Self::Run(error) => error.kind(),
            Self::Container(error) => match error {
                ContainerError::NoEngine => ProblemKind::NoContainerEngine,
                ContainerError::EngineFailed { .. } | ContainerError::NotStarted { .. } => {
                    ProblemKind::ContainerEngineFailed
                }
                ContainerError::NoImage { .. } => ProblemKind::NoContainerImage,
                ContainerError::SystemFolder { .. } => ProblemKind::SystemFolder,
                _ => ProblemKind::Io,
            },
            Self::Prices(_) => ProblemKind::Prices,
            Self::NoGpu => ProblemKind::NoGpuNamed,
            Self::Catalogue(CatalogueError::UnknownDevice { .. }) | Self::UnknownCard { .. } => {
                ProblemKind::UnknownGpu
            }
            Self::Catalogue(_) => ProblemKind::Catalogue,
            Self::Checkout(_) => ProblemKind::Checkout,
            Self::Baseline { .. } => ProblemKind::Baseline,
            Self::ForeignSource { .. } => ProblemKind::ForeignSource,
            Self::NothingToCalibrate => ProblemKind::NoLocalGpu,
            Self::NotCalibrated { .. } | Self::BrokenCalibration { .. } => ProblemKind::Calibration,
            Self::NoHome => ProblemKind::NoHome,
            Self::Settings { .. }
            | Self::UnknownSetting { .. }
            | Self::NoCiSettings
            | Self::CiSettings { .. } => ProblemKind::Settings,
            Self::Plan(_) => ProblemKind::Plan,
            Self::NothingToPlan { .. } => ProblemKind::NothingToPlan,
            Self::NothingToShrink { .. } => ProblemKind::NothingToShrink,
            Self::PlanUnsettled(_) => ProblemKind::NumberReadBack,
            Self::Rule(_)
            | Self::NothingToCheck { .. }
            | Self::Arguments(_)
            | Self::NoCardLeft
            | Self::CardWithCount { .. }
            | Self::CardsOfLocal
            | Self::UnknownEpoch
            | Self::MemoryOfLocal
            | Self::AllocConf(_)
            | Self::NoRankThere { .. }
            | Self::NoMatchingBlocks(_)
            | Self::UnknownOutputFormat { .. }
            | Self::SeveralFolders
            | Self::NothingToWatch { .. }
            | Self::PlanForLocal
            | Self::Launch(_)
            | Self::LaunchNeeds { .. }
            | Self::Link(_)
            | Self::LoaderForLocal
            | Self::ShrinkForLocal
            | Self::CiForLocal
            | Self::OutputExists { .. } => ProblemKind::Usage,
            Self::Check(_)
            | Self::Io { .. }
            | Self::Output(_)
            | Self::Json(_)
            | Self::Server(_)
            | Self::Measuring { .. }
            | Self::Unopenable { .. }
            | Self::OnlyTexts { .. }
            | Self::NothingToReplay { .. }
            | Self::Explain(_)
            | Self::NothingToShow { .. }
            | Self::Serve(_)
            | Self::Listen { .. }
            | Self::Data(_) => ProblemKind::Io,
        }
    }
}

impl From<RestoreError> for CliError {
    fn from(error: RestoreError) -> Self {
        Self::Explain(error.into())
    }
}

impl From<memfit_cards::SweepError> for CliError {
    fn from(error: memfit_cards::SweepError) -> Self {
        match error {
            memfit_cards::SweepError::Run(error) => error.into(),
            memfit_cards::SweepError::Arguments(error) => error.into(),
        }
    }
}

impl Hint for CliError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Run(error) => error.hints(),
            Self::Container(error) => error.hints(),
            Self::Rule(error) => vec![error.hint()],
            Self::NothingToCheck { .. } => {
                vec!["files that git ignores are skipped unless you name the file itself".to_owned()]
            }
            Self::NoGpu => vec![
                "name one with `--gpu`, for example `--gpu rtx-4090`; `memfit gpus` lists them".to_owned(),
                "or set `gpu = \"rtx-4090\"` under [tool.memfit] in pyproject.toml".to_owned(),
            ],
            Self::Arguments(memfit_cards::ArgumentsError::NoBatch) => vec![
                "give your script's argument for it, with `{batch}` as its value: `memfit cards --batch 16,32 -- python train.py --batch-size {batch}`".to_owned(),
            ],
            Self::Arguments(_) => vec!["give one or more with `--batch 16,32`".to_owned()],
            Self::Prices(memfit_cards::PricesError::UnknownGpu { source, .. }) => vec![source.hint()],
            Self::Prices(memfit_cards::PricesError::Unreadable { .. }) => {
                vec!["check the path and its permissions".to_owned()]
            }
            Self::Prices(memfit_cards::PricesError::Invalid { .. }) => vec![
                "a price file begins with `currency = \"EUR\"`; an offer has the lines `[[offer]]`, `gpu = \"t4\"` and `per_hour = 0.35`".to_owned(),
            ],
            Self::NoCardLeft => vec!["`memfit gpus` lists them".to_owned()],
            Self::CardWithCount { name, count } => vec![format!("`--gpu {name} --count {count}` asks for that")],
            Self::CardsOfLocal => vec!["`memfit run --gpu local` runs the script on this machine's GPU".to_owned()],
            Self::UnknownEpoch => vec!["`--samples N` prices a number of samples".to_owned()],
            Self::Catalogue(error) => vec![error.hint()],
            Self::MemoryOfLocal => vec!["name a virtual GPU with `--gpu`, or leave `--memory` out".to_owned()],
            Self::NothingToCalibrate => vec![
                "run `memfit calibrate --output FILE` on a machine with the GPU, and pass that file to `memfit run --calibration` here".to_owned(),
                "`memfit run --gpu t4 --steps 0 -- memfit calibrate --output FILE` rehearses it on a virtual GPU".to_owned(),
            ],
            Self::Measuring { .. } => vec![
                "does `python -c \"import torch; torch.ones(1, device='cuda')\"` work? `--python` names another interpreter".to_owned(),
            ],
            Self::UnknownCard { .. } => vec![
                "describe it in a TOML file (with this `name`, `based_on` the most similar GPU), and give that with `--catalogue`".to_owned(),
            ],
            Self::NotCalibrated { .. } => vec!["`memfit calibrate` measures the GPU of this machine".to_owned()],
            Self::BrokenCalibration { .. } => {
                vec!["`memfit calibrate --forget` removes the stored calibration; `memfit calibrate` measures again".to_owned()]
            }
            Self::NoHome => vec!["`--output FILE` writes it to a file".to_owned()],
            Self::Settings { .. } => vec!["`--isolated` ignores the settings".to_owned()],
            Self::UnknownSetting { suggestion: Some(key), .. } => vec![format!("did you mean `{key}`?")],
            Self::UnknownSetting { suggestion: None, .. } => {
                vec![format!("the settings are {}", crate::settings::KEYS.join(", "))]
            }
            Self::NothingToReplay { .. } => vec![
                "`torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")` writes a snapshot that can be replayed".to_owned(),
            ],
            Self::AllocConf(_) => vec!["the settings are written as in PYTORCH_ALLOC_CONF: `name:value,name:value`".to_owned()],
            Self::Explain(ExplainError::NoSuchDevice { devices, .. }) if devices.is_empty() => vec!["it has no data of any device".to_owned()],
            Self::Explain(ExplainError::NoSuchDevice { devices, .. }) => {
                let known: Vec<String> = devices.iter().map(u32::to_string).collect();
                vec![format!("it has data of {}", known.join(", "))]
            }
            Self::NoRankThere { ranks, .. } if ranks.is_empty() => {
                vec!["it contains a single process without a rank: leave `--rank` out".to_owned()]
            }
            Self::NoRankThere { ranks, .. } => {
                let known: Vec<String> = ranks.iter().map(u32::to_string).collect();
                vec![format!("it has data of {}", known.join(", "))]
            }
            Self::NoMatchingBlocks(error) if error.known.is_empty() => vec![
                "the recording lacks that information: `memfit run -o FILE.memfit` records lines, categories and modules".to_owned(),
            ],
            Self::NoMatchingBlocks(error) => {
                let known: Vec<String> = error.known.iter().map(|name| format!("`{name}`")).collect();
                vec![format!("it has blocks of {}", known.join(", "))]
            }
            Self::Explain(_) => vec!["the snapshot may be truncated or edited; `memfit explain` shows what can still be read from it".to_owned()],
            Self::Unopenable { path, source } => unreadable(path, source),
            Self::NothingToShow { device: Some(_), .. } => vec!["leave `--device` out to see them all".to_owned()],
            Self::NothingToShow { device: None, .. } => {
                vec!["call `torch.cuda.memory._record_memory_history()` before the allocations that you want to see".to_owned()]
            }
            Self::OnlyTexts { .. } => vec!["`memfit explain` reads them".to_owned()],
            Self::UnknownOutputFormat { .. } => vec![
                "use one of .memfit, .pickle, .perfetto-trace, .json, .csv and .jsonl, or name it with `--to`".to_owned(),
            ],
            Self::OutputExists { .. } => vec!["`--force` overwrites it".to_owned()],
            Self::Serve(error) => vec![error.hint().to_owned()],
            Self::Listen { .. } => vec!["`--prometheus 0` takes a free port".to_owned()],
            Self::Data(error) => error.hint().map(str::to_owned).into_iter().collect(),
            Self::SeveralFolders => vec!["run it once for each folder".to_owned()],
            Self::NothingToWatch { .. } => vec![
                "`memfit run --gpu NAME --steps 0 -- python train.py` can be watched from another terminal; with `--gpu local` it trains on the real GPU".to_owned(),
            ],
            Self::Plan(error) => vec![error.hint().to_owned()],
            Self::Launch(error) => vec![error.hint().to_owned()],
            Self::Link(error) => vec![error.hint()],
            Self::LaunchNeeds { variable } => vec![format!(
                "set {variable} to the name of the first machine, on each of them"
            )],
            Self::NothingToPlan { hint, .. } | Self::NothingToShrink { hint, .. } => vec![hint.clone()],
            Self::PlanUnsettled(_) => {
                vec!["a plan needs sizes that do not depend on computed values: `memfit run --gpu local` measures them on a real GPU".to_owned()]
            }
            Self::NoCiSettings => vec![memfit_ci::ScriptsError::NoScripts.hint().to_owned()],
            Self::CiSettings { hint, .. } => vec![(*hint).to_owned()],
            Self::CiForLocal => vec!["name a GPU of `memfit gpus`".to_owned()],
            Self::Checkout(error) => error.hint().into_iter().collect(),
            Self::Baseline { .. } => vec!["`memfit ci --accept` writes it again".to_owned()],
            Self::ForeignSource { .. } => vec![
                "a package that is installed in editable mode is found there; let both sides import their own with a relative path: `PYTHONPATH=src memfit ci --base …`".to_owned(),
            ],
            Self::PlanForLocal | Self::LoaderForLocal | Self::ShrinkForLocal => {
                vec!["choose the GPU with `--gpu` and a name from `memfit gpus`".to_owned()]
            }
            Self::Check(_)
            | Self::Server(_)
            | Self::Io { .. }
            | Self::Output(_)
            | Self::Json(_) => Vec::new(),
        }
    }
}

/// Advice for a file that is not a recording, snapshot, trace or log.
fn unreadable(path: &Path, error: &OpenError) -> Vec<String> {
    let no_memory = matches!(error, OpenError::NoError { .. } | OpenError::Unknown | OpenError::Empty);
    match path.extension().and_then(std::ffi::OsStr::to_str) {
        Some("py") if no_memory => vec![
            format!("`memfit run --gpu NAME -- python {}` runs the script on a virtual GPU", path.display()),
            "memfit reads recordings of memfit, PyTorch's memory snapshots, profiler traces and logs"
                .to_owned(),
        ],
        Some("ipynb") if no_memory => {
            vec!["in a notebook, `%load_ext memfit` provides `%%memfit run --gpu NAME`".to_owned()]
        }
        _ => error.hint().map(str::to_owned).into_iter().collect(),
    }
}
