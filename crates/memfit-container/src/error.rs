//! Reasons why nothing can run in a container.

use std::path::PathBuf;

use crate::Engine;

/// A command could not be run in a container.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// No engine is installed.
    #[error("there is no container engine here: none of {} is on PATH", Engine::names())]
    NoEngine,
    /// The engine cannot be used, for instance because its service is not running.
    #[error("`{engine}` does not answer")]
    EngineFailed {
        /// The engine.
        engine: Engine,
        /// Its last line of output.
        said: String,
    },
    /// The engine refused the command line, and said why.
    #[error("`{engine}` could not start the container")]
    NotStarted {
        /// The engine.
        engine: Engine,
    },
    /// The image was not built.
    #[error("there is no image `{image}` on this machine")]
    NoImage {
        /// The engine.
        engine: Engine,
        /// The image.
        image: String,
        /// `true` if it is memfit's own.
        own: bool,
    },
    /// The folder would hide the container's own system.
    #[error("the folder `{}` cannot be mounted: it would hide the container's own system", folder.display())]
    SystemFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The engine could not be started.
    #[error("`{engine}` cannot be started")]
    Start {
        /// The engine.
        engine: Engine,
        /// The cause.
        source: std::io::Error,
    },
}

impl ContainerError {
    /// Advice for the user, one sentence each.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::NoEngine => vec![
                "install one of them; Docker Desktop, Podman Desktop, Rancher Desktop and Finch each bring one"
                    .to_owned(),
            ],
            Self::EngineFailed { engine, said } => {
                let mut hints = vec![format!("start its service, and try `{engine} version`")];
                if !said.is_empty() {
                    hints.insert(0, format!("it said: {said}"));
                }
                hints
            }
            Self::NoImage { engine, image, own: true } => vec![
                format!(
                    "build it once, in memfit's folder: `make dist && {engine} build -t {image} dist`"
                ),
                format!(
                    "a script that imports more needs an image of its own: a Containerfile with `FROM {image}` and `RUN pip install …`, and `--container=NAME`"
                ),
            ],
            Self::NoImage { engine, image, own: false } => {
                vec![format!("`{engine} images` lists those that are there; `{engine} build -t {image} .` makes one")]
            }
            Self::SystemFolder { .. } => vec!["run memfit in the folder of the project".to_owned()],
            Self::Start { .. } | Self::NotStarted { .. } => Vec::new(),
        }
    }
}
