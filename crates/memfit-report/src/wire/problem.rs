//! Kinds of reasons why there is no answer, or no certain one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Declares the kinds of problems, each with its name in JSON and its meaning.
macro_rules! kinds {
    ($($variant:ident = $name:literal, $meaning:literal;)+) => {
        /// Kind of a problem.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum ProblemKind {
            $(#[doc = $meaning] #[serde(rename = $name)] $variant,)+
        }

        impl ProblemKind {
            /// All of them, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The meaning, for the documentation.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => $meaning,)+
                }
            }
        }
    };
}

kinds! {
    Interrupted = "interrupted", "the user interrupted the run";
    Timeout = "timeout", "the time limit was reached";
    Signal = "signal", "a signal ended the script";
    Exception = "exception", "the script itself failed";
    ExceptionAfterChange = "exception-after-change", "the script failed after memfit had changed something that it saw, which may be the cause";
    Exit = "exit", "the script ended with an exit status other than 0";
    NotWatched = "not-watched", "none of the script's Python processes loaded memfit's probe";
    NoGpuUse = "no-gpu-use", "the script never used the GPU";
    NoStep = "no-step", "no optimizer step was complete";
    SingleStep = "single-step", "only the first step ran, and a later one may need more than the GPU has";
    EarlyStep = "early-step", "an early step did work that no later one repeated, and that would need more than the GPU has in a later one";
    SizeReadBack = "size-read-back", "the verdict depends on tensor sizes that only a GPU can compute";
    SizeUnbounded = "size-unbounded", "the verdict depends on a tensor size without a known bound";
    NumberReadBack = "number-read-back", "the verdict depends on other values that only a GPU can compute";
    UnmodelledCall = "unmodelled-call", "the script made a CUDA call that is not modelled, with little memory to spare";
    OutOfMemory = "out-of-memory", "memory ran out before the answer was known";
    NoKernelsForCard = "no-kernels-for-card", "this PyTorch, or an extension, was not built for this GPU";
    ExtensionNotBuilt = "extension-not-built", "a compiled extension is missing, or was built for another PyTorch";
    ModuleMissing = "module-missing", "a module is not installed";
    NoNetwork = "no-network", "a host could not be reached";
    NoTerminal = "no-terminal", "the script asks for a terminal";
    NoDataLoader = "no-data-loader", "the steps that ran used no `DataLoader`";
    NoStepTime = "no-step-time", "the time of a step is unknown";
    NothingToPlan = "nothing-to-plan", "the script has nothing that a plan could change";
    NothingToShrink = "nothing-to-shrink", "the script has nothing that a technique could shrink";
    Plan = "plan", "the plan file cannot be used";
    ForeignSource = "foreign-source", "a run of another commit loaded source of this one";
    Baseline = "baseline", "a baseline cannot be read";
    Checkout = "checkout", "another commit cannot be checked out";
    Prices = "prices", "the file with prices cannot be used";
    Usage = "usage", "the options contradict each other or the command";
    Settings = "settings", "a setting in `pyproject.toml` is wrong";
    NoGpuNamed = "no-gpu-named", "no GPU was named";
    UnknownGpu = "unknown-gpu", "the GPU is not in the catalogue";
    Catalogue = "catalogue", "the catalogue of your own GPUs cannot be used";
    Calibration = "calibration", "a calibration cannot be used";
    NoHome = "no-home", "there is no home folder, where calibrations are stored";
    NoLocalGpu = "no-local-gpu", "this machine has no NVIDIA GPU with a working driver";
    CommandNotFound = "command-not-found", "the command was not found";
    ScriptNotFound = "script-not-found", "the script was not found";
    UnsupportedSystem = "unsupported-system", "PyTorch has no CUDA build for this system";
    BrokenPython = "broken-python", "the interpreter does not work";
    OldPython = "old-python", "the interpreter is older than Python 3.10";
    Musl = "musl", "the interpreter is linked with musl";
    OldTorch = "old-torch", "PyTorch was built for a CUDA release before 12";
    NoTorch = "no-torch", "the interpreter has no PyTorch";
    CpuOnlyTorch = "cpu-only-torch", "PyTorch was built without CUDA";
    LibraryNotFound = "library-not-found", "a library of memfit's is missing";
    Start = "start", "the command cannot be started";
    NoContainerEngine = "no-container-engine", "no container engine is installed";
    ContainerEngineFailed = "container-engine-failed", "the container engine does not work";
    NoContainerImage = "no-container-image", "the container image is not there";
    SystemFolder = "system-folder", "a container cannot mount this folder";
    Io = "io", "a file or a folder cannot be used";
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
