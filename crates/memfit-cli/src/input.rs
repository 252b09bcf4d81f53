//! The contents of a verb's input file.

use std::path::Path;

use memfit_recording::Source;

use crate::CliError;

/// Reads a file, or standard input for `-`. Unreadable parts are returned as problems.
pub(crate) fn read(path: &Path) -> Result<(Source, Vec<String>), CliError> {
    let unreadable = |source| CliError::Unopenable { path: path.to_owned(), source: Box::new(source) };
    let (source, problems) = memfit_recording::open(path).map_err(unreadable)?;
    Ok((source, problems.iter().map(ToString::to_string).collect()))
}
