//! Which rules run, and how much each finding counts: `select`, `ignore` and `severity` of `[tool.memfit]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde::{Deserialize, Serialize};

use crate::rule::{Rule, Severity};
use crate::{rules, suppress};

/// The settings of `memfit check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Only these run; `all` is all of them.
    pub select: Vec<String>,
    /// These too, beside those that run anyway.
    pub extend: Vec<String>,
    /// These do not run.
    pub ignore: Vec<String>,
    /// Other severities.
    pub severity: BTreeMap<String, Level>,
    /// What is passed over in folders, as in a `.gitignore`.
    pub exclude: Vec<String>,
    /// The folder that `exclude` speaks of; nothing stands for the current one.
    pub root: PathBuf,
}

/// A severity, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As a note.
    Note,
    /// As a warning.
    Warning,
    /// As an error.
    Error,
    /// Not at all.
    Off,
}

/// A setting that cannot be meant.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No such rule.
    #[error("there is no rule `{name}`")]
    UnknownRule {
        /// As it was written.
        name: String,
        /// The rule that was probably meant.
        suggestion: Option<String>,
    },
    /// A pattern of `exclude` is none.
    #[error("`{pattern}` is no pattern for files")]
    Pattern {
        /// As it was written.
        pattern: String,
        /// Why.
        source: ignore::Error,
    },
}

impl ConfigError {
    /// What to do.
    pub fn hint(&self) -> String {
        match self {
            Self::UnknownRule { suggestion: Some(name), .. } => format!("did you mean `{name}`?"),
            Self::UnknownRule { .. } => "`memfit rule` lists them".to_owned(),
            Self::Pattern { .. } => "patterns are written as in a `.gitignore`".to_owned(),
        }
    }
}

impl Config {
    /// Whether all rules that are named exist, and all patterns can be read.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let named = self.select.iter().chain(&self.extend).chain(&self.ignore).chain(self.severity.keys());
        for name in named {
            if name != "all" && name != suppress::UNUSED {
                known(name)?;
            }
        }
        self.excluded().map(drop)
    }

    /// Whether a file is one of those that are passed over in folders.
    pub fn excludes(&self, path: &Path) -> bool {
        !self.exclude.is_empty() && self.excluded().is_ok_and(|excluded| excluded.holds_or_around(path))
    }

    /// What is passed over in folders.
    pub(crate) fn excluded(&self) -> Result<Excluded, ConfigError> {
        let root = std::path::absolute(&self.root)
            .or_else(|_| std::env::current_dir())
            .unwrap_or_else(|_| self.root.clone());
        let mut builder = GitignoreBuilder::new(root);
        for pattern in &self.exclude {
            let broken = |source| ConfigError::Pattern { pattern: pattern.clone(), source };
            builder.add_line(None, pattern).map_err(broken)?;
        }
        let broken = |source| ConfigError::Pattern { pattern: self.exclude.join(" "), source };
        Ok(Excluded(builder.build().map_err(broken)?))
    }

    /// How a rule's findings count, if it runs.
    pub fn severity(&self, rule: &Rule) -> Option<Severity> {
        self.severity_of(rule.name, rule.severity, rule.on)
    }

    pub(crate) fn severity_of(&self, name: &str, severity: Severity, on: bool) -> Option<Severity> {
        let lists = |list: &[String]| list.iter().any(|known| known == name);
        let every = |list: &[String]| list.iter().any(|known| known == "all");
        let set = self.severity.get(name).copied();
        let runs = if self.select.is_empty() {
            on || lists(&self.extend) || every(&self.extend) || set.is_some()
        } else {
            lists(&self.select) || every(&self.select) || lists(&self.extend) || every(&self.extend)
        };
        if !runs || lists(&self.ignore) || every(&self.ignore) {
            return None;
        }
        match set {
            None => Some(severity),
            Some(Level::Note) => Some(Severity::Note),
            Some(Level::Warning) => Some(Severity::Warning),
            Some(Level::Error) => Some(Severity::Error),
            Some(Level::Off) => None,
        }
    }
}

/// What is passed over in folders.
#[derive(Clone, Debug)]
pub(crate) struct Excluded(Gitignore);

impl Excluded {
    /// Whether a file or folder is passed over.
    pub(crate) fn holds(&self, path: &Path, is_folder: bool) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let Ok(path) = std::path::absolute(path) else { return false };
        path.starts_with(self.0.path()) && self.0.matched(path, is_folder).is_ignore()
    }

    /// Whether a file, or a folder that it is in, is passed over.
    fn holds_or_around(&self, file: &Path) -> bool {
        let Ok(file) = std::path::absolute(file) else { return false };
        file.starts_with(self.0.path()) && self.0.matched_path_or_any_parents(file, false).is_ignore()
    }
}

/// The rule of this name, or which one was meant.
pub(crate) fn known(name: &str) -> Result<&'static Rule, ConfigError> {
    rules::find(name).ok_or_else(|| {
        let near = |rule: &&'static Rule| strsim::damerau_levenshtein(name, rule.name);
        let suggestion = rules::all().min_by_key(near).filter(|rule| near(rule) <= 4);
        ConfigError::UnknownRule {
            name: name.to_owned(),
            suggestion: suggestion.map(|rule| rule.name.to_owned()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_what_is_selected_and_not_ignored() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let severity = |config: &Config, name: &str| config.severity(known(name).unwrap());
        let plain = Config::default();
        assert_eq!(severity(&plain, "graph-in-container"), Some(Severity::Error));
        assert_eq!(severity(&plain, "late-zero-grad"), None);
        let one = Config { select: names(&["data-parallel"]), ..Config::default() };
        assert_eq!(severity(&one, "graph-in-container"), None);
        assert_eq!(severity(&one, "data-parallel"), Some(Severity::Note));
        let all = Config { select: names(&["all"]), ignore: names(&["data-parallel"]), ..Config::default() };
        assert_eq!(severity(&all, "late-zero-grad"), Some(Severity::Note));
        assert_eq!(severity(&all, "data-parallel"), None);
        let severities =
            [("late-zero-grad".to_owned(), Level::Error), ("data-parallel".to_owned(), Level::Off)];
        let other = Config { severity: severities.into(), ..Config::default() };
        assert_eq!(severity(&other, "late-zero-grad"), Some(Severity::Error));
        assert_eq!(severity(&other, "data-parallel"), None);
    }

    #[test]
    fn a_rule_that_is_not_there_is_an_error() {
        let config = Config { ignore: vec!["graph-in-containers".to_owned()], ..Config::default() };
        let error = config.validate().unwrap_err();
        assert_eq!(error.hint(), "did you mean `graph-in-container`?");
    }
}
