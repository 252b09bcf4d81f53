//! Selection of rules and severities: `select`, `ignore` and `severity` of `[tool.memfit]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde::{Deserialize, Serialize};

use crate::rule::{Rule, Severity};
use crate::{rules, suppress};

/// Settings of `memfit check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Rules that run exclusively; `all` selects all rules.
    pub select: Vec<String>,
    /// Rules that run in addition to the default ones.
    pub extend: Vec<String>,
    /// Rules that do not run.
    pub ignore: Vec<String>,
    /// Overridden severities.
    pub severity: BTreeMap<String, Level>,
    /// Patterns of ignored files and folders, as in a `.gitignore`.
    pub exclude: Vec<String>,
    /// Base folder of the `exclude` patterns; empty for the current one.
    pub root: PathBuf,
}

/// Severity, or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Note.
    Note,
    /// Warning.
    Warning,
    /// Error.
    Error,
    /// Disabled.
    Off,
}

/// Invalid setting.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Unknown rule.
    #[error("there is no rule `{name}`")]
    UnknownRule {
        /// Name as written.
        name: String,
        /// Most similar rule name, if there is one.
        suggestion: Option<String>,
    },
    /// Invalid `exclude` pattern.
    #[error("`{pattern}` is not a file pattern")]
    Pattern {
        /// Pattern as written.
        pattern: String,
        /// Cause.
        source: ignore::Error,
    },
}

impl ConfigError {
    /// Advice for the user.
    pub fn hint(&self) -> String {
        match self {
            Self::UnknownRule { suggestion: Some(name), .. } => format!("did you mean `{name}`?"),
            Self::UnknownRule { .. } => "`memfit rule` lists them".to_owned(),
            Self::Pattern { .. } => "patterns are written as in a `.gitignore`".to_owned(),
        }
    }
}

impl Config {
    /// Checks that all named rules exist and all patterns are valid.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let named = self.select.iter().chain(&self.extend).chain(&self.ignore).chain(self.severity.keys());
        for name in named {
            if name != "all" && name != suppress::UNUSED {
                find_rule(name)?;
            }
        }
        self.excluded().map(drop)
    }

    /// Returns `true` if a file is excluded.
    pub fn excludes(&self, path: &Path) -> bool {
        !self.exclude.is_empty()
            && self.excluded().is_ok_and(|excluded| excluded.matches_or_parent_matches(path))
    }

    /// Compiles the `exclude` patterns.
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

    /// Severity of a rule, or `None` if it does not run.
    pub fn severity(&self, rule: &Rule) -> Option<Severity> {
        self.severity_of(rule.name, rule.severity, rule.on)
    }

    pub(crate) fn severity_of(&self, name: &str, severity: Severity, on: bool) -> Option<Severity> {
        let lists = |list: &[String]| list.iter().any(|known| known == name);
        let every = |list: &[String]| list.iter().any(|known| known == "all");
        let set = self.severity.get(name).or_else(|| self.severity.get("all")).copied();
        let runs = if self.select.is_empty() {
            on || lists(&self.extend) || every(&self.extend) || self.severity.contains_key(name)
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

/// Compiled `exclude` patterns.
#[derive(Clone, Debug)]
pub(crate) struct Excluded(Gitignore);

impl Excluded {
    /// Returns `true` if a file or folder is excluded.
    pub(crate) fn matches(&self, path: &Path, is_folder: bool) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let Ok(path) = std::path::absolute(path) else { return false };
        path.starts_with(self.0.path()) && self.0.matched(path, is_folder).is_ignore()
    }

    /// Returns `true` if a file or one of its folders is excluded.
    fn matches_or_parent_matches(&self, file: &Path) -> bool {
        let Ok(file) = std::path::absolute(file) else { return false };
        file.starts_with(self.0.path()) && self.0.matched_path_or_any_parents(file, false).is_ignore()
    }
}

/// Finds a rule by name, or returns an error with a suggestion.
pub(crate) fn find_rule(name: &str) -> Result<&'static Rule, ConfigError> {
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
    fn selected_rules_run_unless_ignored() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let severity = |config: &Config, name: &str| config.severity(find_rule(name).unwrap());
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
        let of_all = [("all".to_owned(), Level::Note)];
        let of_all = Config { severity: of_all.into(), ..Config::default() };
        assert_eq!(severity(&of_all, "graph-in-container"), Some(Severity::Note));
        assert_eq!(severity(&of_all, "late-zero-grad"), None);
    }

    #[test]
    fn a_rule_that_is_not_there_is_an_error() {
        let config = Config { ignore: vec!["graph-in-containers".to_owned()], ..Config::default() };
        let error = config.validate().unwrap_err();
        assert_eq!(error.hint(), "did you mean `graph-in-container`?");
    }
}
