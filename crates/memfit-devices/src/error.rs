//! Errors of the catalogue, each with advice.

use std::path::PathBuf;

/// Reason why a device could not be found or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// No device has that name.
    #[error("no GPU named `{name}` is in the catalogue")]
    UnknownDevice {
        /// Requested name.
        name: String,
        /// Ids of devices with similar names, the closest first.
        suggestions: Vec<String>,
    },
    /// The user's file could not be read.
    #[error("the file of GPUs `{}` cannot be read", file.display())]
    Unreadable {
        /// Path of the file.
        file: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A file of devices is not TOML of the expected form.
    #[error("the file of GPUs `{file}` cannot be parsed")]
    Syntax {
        /// Name of the file.
        file: String,
        /// Cause, with the line.
        source: Box<toml::de::Error>,
    },
    /// An entry is incomplete or inconsistent.
    #[error("GPU `{card}` in `{file}` is not valid: {problem}")]
    InvalidCard {
        /// Name of the file.
        file: String,
        /// Id of the device.
        card: String,
        /// Problem with the entry.
        problem: String,
    },
}

impl CatalogueError {
    pub(crate) fn syntax(file: &str, error: toml::de::Error) -> Self {
        Self::Syntax { file: file.to_owned(), source: Box::new(error) }
    }

    /// Advice for the user.
    pub fn hint(&self) -> String {
        match self {
            Self::UnknownDevice { suggestions, .. } if !suggestions.is_empty() => {
                let quoted: Vec<_> = suggestions.iter().map(|id| format!("`{id}`")).collect();
                format!("did you mean {}? `memfit gpus` lists all GPUs", quoted.join(" or "))
            }
            Self::UnknownDevice { .. } => {
                "`memfit gpus` lists all GPUs; `--catalogue FILE` adds your own from a TOML file".to_owned()
            }
            Self::Unreadable { .. } => "check the path and its permissions".to_owned(),
            Self::Syntax { .. } | Self::InvalidCard { .. } => {
                "a GPU needs all fields, or `based_on = \"rtx-4090\"` and those that differ".to_owned()
            }
        }
    }
}
