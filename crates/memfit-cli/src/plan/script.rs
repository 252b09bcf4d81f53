//! The script that a plan changes.

use std::path::Path;

use memfit_run::Changes;

use crate::CliError;

/// The script to be changed.
pub(super) struct Script<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
    /// `true` if the plan promises that a split batch trains like the whole one.
    pub(super) divides_alike: bool,
}

impl Script<'_> {
    /// Changes that run this text in place of the script.
    pub(super) fn changes(&self, text: &str) -> Result<Changes, CliError> {
        if text == self.text {
            return Ok(Changes::default());
        }
        let path = std::fs::canonicalize(self.path).map_err(CliError::io("find", self.path))?;
        let files = [(path.display().to_string(), text.to_owned())].into();
        Ok(Changes { files, ..Changes::default() })
    }
}
