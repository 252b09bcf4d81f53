//! Errors that keep a run from starting or from being recorded, each with advice.

use std::path::PathBuf;

use memfit_channel::ChannelError;
use memfit_recording::RecordingError;
use memfit_report::wire::ProblemKind;

use crate::releases::tested_releases;

/// Operation of a [`RunError::Io`] that fails if the folder for temporary files is not writable.
pub(crate) const TEMPORARY: &str = "make a folder in";

/// A run could not be performed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A rank that does not exist.
    #[error("rank {rank} does not exist in a world of {size}")]
    NoSuchRank {
        /// The requested rank.
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
    /// A single rank of many was requested with a real GPU.
    #[error("a single rank of many cannot run on a real GPU: NCCL waits for the other ranks")]
    LoneRankOfLocal,
    /// This machine has no usable GPU.
    #[error("no NVIDIA GPU with a working driver was found")]
    NoLocalGpu,
    /// The program was not found.
    #[error("the command `{name}` was not found")]
    CommandNotFound {
        /// The name as typed.
        name: String,
        /// The folders that were searched.
        looked: Vec<PathBuf>,
    },
    /// The script was not found.
    #[error("there is no script `{}`", path.display())]
    ScriptNotFound {
        /// The path as typed.
        path: PathBuf,
    },
    /// PyTorch has no CUDA builds for this operating system or CPU.
    #[error("`memfit run` works on Linux on x86-64 and ARM (aarch64), but this is {system}")]
    UnsupportedSystem {
        /// The operating system and CPU.
        system: String,
    },
    /// The interpreter did not report its version.
    #[error("`{}` does not work as a Python interpreter", python.display())]
    BrokenPython {
        /// The interpreter.
        python: PathBuf,
        /// The last line of its output.
        said: String,
    },
    /// The interpreter is too old for the probe.
    #[error("`{}` is Python {version}, but memfit needs Python 3.10 or later", python.display())]
    OldPython {
        /// The interpreter.
        python: PathBuf,
        /// Version.
        version: String,
    },
    /// The interpreter is linked with musl.
    #[error("`{}` is linked with musl, but PyTorch's CUDA builds need glibc", python.display())]
    MuslPython {
        /// The interpreter.
        python: PathBuf,
    },
    /// The interpreter's torch was built for a CUDA version that the virtual device does not support.
    #[error("`{}` has PyTorch {version} for CUDA {cuda}, but the virtual GPU supports CUDA 12 and later", python.display())]
    OldTorch {
        /// The interpreter.
        python: PathBuf,
        /// `torch.__version__`.
        version: String,
        /// `torch.version.cuda`.
        cuda: String,
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
    /// One of memfit's shared libraries is missing.
    #[error("memfit's library `{name}` was not found")]
    LibraryNotFound {
        /// The library's file name.
        name: &'static str,
        /// The folders that were searched.
        looked: Vec<PathBuf>,
    },
    /// A file or a folder could not be used.
    #[error("cannot {what} `{}`", path.display())]
    Io {
        /// The attempted operation.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The command could not be started.
    #[error("cannot start `{}`", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The run directory could not be used.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The recording could not be saved.
    #[error("the recording cannot be saved as `{}`", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<RecordingError>,
    },
    /// The user interrupted the run before the script was ready.
    #[error("interrupted before the first run of the script had ended")]
    Interrupted,
    /// The set-up could not be written as JSON.
    #[error("the configuration of the run cannot be written as JSON")]
    Json(#[source] serde_json::Error),
}

impl RunError {
    /// Returns a closure for `map_err` that attaches the operation and the path to an I/O error.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// The kind of problem, for a report.
    pub fn kind(&self) -> ProblemKind {
        match self {
            Self::NoSuchRank { .. } | Self::LoneRankOfLocal => ProblemKind::Usage,
            Self::NoLocalGpu => ProblemKind::NoLocalGpu,
            Self::CommandNotFound { .. } => ProblemKind::CommandNotFound,
            Self::ScriptNotFound { .. } => ProblemKind::ScriptNotFound,
            Self::UnsupportedSystem { .. } => ProblemKind::UnsupportedSystem,
            Self::BrokenPython { .. } => ProblemKind::BrokenPython,
            Self::OldPython { .. } => ProblemKind::OldPython,
            Self::MuslPython { .. } => ProblemKind::Musl,
            Self::OldTorch { .. } => ProblemKind::OldTorch,
            Self::NoTorch { .. } => ProblemKind::NoTorch,
            Self::CpuOnlyTorch { .. } => ProblemKind::CpuOnlyTorch,
            Self::LibraryNotFound { .. } => ProblemKind::LibraryNotFound,
            Self::Io { .. } | Self::Channel(_) | Self::Recording { .. } | Self::Json(_) => ProblemKind::Io,
            Self::Start { .. } => ProblemKind::Start,
            Self::Interrupted => ProblemKind::Interrupted,
        }
    }

    /// Advice for the user, one sentence each.
    pub fn hints(&self) -> Vec<String> {
        let list = |paths: &[PathBuf]| {
            let quoted: Vec<_> = paths.iter().map(|path| format!("`{}`", path.display())).collect();
            quoted.join(", ")
        };
        match self {
            Self::NoSuchRank { .. } => vec!["ranks are numbered from 0 to `--world-size` minus 1".to_owned()],
            Self::LoneRankOfLocal => vec!["name a virtual GPU with `--gpu`".to_owned()],
            Self::NoLocalGpu => {
                vec!["name a virtual one with `--gpu`; `memfit gpus` lists them".to_owned()]
            }
            Self::CommandNotFound { looked, .. } => vec![format!("looked in {}", list(looked))],
            Self::ScriptNotFound { .. } => {
                vec!["paths are relative to the current directory".to_owned()]
            }
            Self::UnsupportedSystem { .. } => {
                vec!["on macOS, `memfit run` starts a container; on Windows, use memfit in WSL2".to_owned()]
            }
            Self::BrokenPython { said, .. } if !said.is_empty() => vec![format!("it said: {said}")],
            Self::BrokenPython { .. } => vec!["try it with `--version`".to_owned()],
            Self::OldPython { .. } => {
                vec!["create an environment with a later Python, and install PyTorch in it: `uv venv --python 3.12`".to_owned()]
            }
            Self::MuslPython { .. } => vec![
                "use a system with glibc, such as Debian, or a container of one; on Alpine there is no PyTorch with CUDA"
                    .to_owned(),
            ],
            Self::OldTorch { python, .. } => vec![format!(
                "install a later release: `{} -m pip install --upgrade torch`; memfit was tested with {}",
                python.display(),
                tested_releases()
            )],
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
                format!("looked in {}", list(looked)),
                "a stand-alone memfit finds it next to itself after `cargo build --workspace`, or in the folder that `MEMFIT_LIBRARY_DIR` names".to_owned(),
            ],
            Self::Recording { source, .. } => source.hint().map(str::to_owned).into_iter().collect(),
            Self::Interrupted => vec!["run it again".to_owned()],
            Self::Io { what, .. } if *what == TEMPORARY => {
                vec!["name a folder that you can write to: `TMPDIR=FOLDER memfit run …`".to_owned()]
            }
            Self::Io { .. } | Self::Start { .. } | Self::Channel(_) | Self::Json(_) => Vec::new(),
        }
    }
}
