//! What can go wrong with the catalogue, and what to do then.

use std::path::PathBuf;

/// Why a card could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// No card has that name.
    #[error("no GPU named `{name}` is in the catalogue")]
    UnknownDevice {
        /// The name that was asked for.
        name: String,
        /// Ids of cards with names close to it, the closest first.
        suggestions: Vec<String>,
    },
    /// The user's file could not be read.
    #[error("the file of cards `{}` cannot be read", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of cards is not TOML of the right form.
    #[error("the file of cards `{file}` cannot be understood")]
    Syntax {
        /// The file.
        file: String,
        /// Why, with the line.
        source: Box<toml::de::Error>,
    },
    /// A card's entry is incomplete or makes no sense.
    #[error("card `{card}` in `{file}` is not valid: {problem}")]
    InvalidCard {
        /// The file.
        file: String,
        /// The card's id.
        card: String,
        /// What is wrong.
        problem: String,
    },
}

impl CatalogueError {
    pub(crate) fn syntax(file: &str, error: toml::de::Error) -> Self {
        Self::Syntax { file: file.to_owned(), source: Box::new(error) }
    }

    /// What the user can do.
    pub fn hint(&self) -> String {
        match self {
            Self::UnknownDevice { suggestions, .. } if !suggestions.is_empty() => {
                let quoted: Vec<_> = suggestions.iter().map(|id| format!("`{id}`")).collect();
                format!("did you mean {}? `memfit gpus` lists all cards", quoted.join(" or "))
            }
            Self::UnknownDevice { .. } => {
                "`memfit gpus` lists all cards; a card of your own can be given in a TOML file".to_owned()
            }
            Self::Unreadable { .. } => "check the path and its permissions".to_owned(),
            Self::Syntax { .. } | Self::InvalidCard { .. } => {
                "a card needs all fields, or `based_on = \"rtx-4090\"` and those that differ".to_owned()
            }
        }
    }
}
