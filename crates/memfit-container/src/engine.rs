//! Container engines with Docker's command line.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::ContainerError;

/// A container engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Docker, Docker Desktop, Colima, `OrbStack`.
    Docker,
    /// Podman.
    Podman,
    /// containerd's command, as in Rancher Desktop.
    Nerdctl,
    /// Finch.
    Finch,
}

impl Engine {
    /// In the order in which they are searched for.
    pub const ALL: [Self; 4] = [Self::Docker, Self::Podman, Self::Nerdctl, Self::Finch];

    /// The name of the program.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Nerdctl => "nerdctl",
            Self::Finch => "finch",
        }
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        let [rest @ .., last] = Self::ALL.map(|engine| format!("`{}`", engine.program()));
        format!("{} and {last}", rest.join(", "))
    }

    /// The first engine on a search path that answers and has the image; `own` is `true` for memfit's image.
    /// If none has the image, the error says so of the first engine that answers; other problems are reported
    /// only if no engine answers.
    pub fn with_image(path: &OsStr, image: &str, own: bool) -> Result<Self, ContainerError> {
        let mut problem = None;
        for engine in Self::ALL.into_iter().filter(|engine| engine.is_on(path)) {
            match engine.check_image(image, own) {
                Ok(()) => return Ok(engine),
                Err(error @ ContainerError::NoImage { .. })
                    if !matches!(problem, Some(ContainerError::NoImage { .. })) =>
                {
                    problem = Some(error);
                }
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        Err(problem.unwrap_or(ContainerError::NoEngine))
    }

    fn is_on(self, path: &OsStr) -> bool {
        std::env::split_paths(path).any(|folder| self.file_in(&folder).is_some_and(|file| file.is_file()))
    }

    fn file_in(self, folder: &Path) -> Option<PathBuf> {
        let name = format!("{}{}", self.program(), std::env::consts::EXE_SUFFIX);
        folder.is_absolute().then(|| folder.join(name))
    }

    /// Returns an error unless the engine answers and has the image.
    fn check_image(self, image: &str, own: bool) -> Result<(), ContainerError> {
        let output = Command::new(self.program())
            .args(["images", "--quiet", image])
            .stdin(Stdio::null())
            .output()
            .map_err(|source| ContainerError::Start { engine: self, source })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
            return Err(ContainerError::EngineFailed { engine: self, said: said.to_owned() });
        }
        if output.stdout.iter().all(u8::is_ascii_whitespace) {
            return Err(ContainerError::NoImage { engine: self, image: image.to_owned(), own });
        }
        Ok(())
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.program())
    }
}
