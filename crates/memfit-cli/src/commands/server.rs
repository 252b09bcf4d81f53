//! `memfit server`

use std::error::Error as _;
use std::path::Path;

use memfit_lint::Config;

use crate::settings::Settings;
use crate::{CliError, Exit};

/// Serves an editor until it disconnects. The settings for a file are those of its own project, not of the
/// folder in which the editor was started.
pub(crate) fn server(isolated: bool) -> Result<Exit, CliError> {
    let settings = |file: &Path| config(file, isolated).map_err(|error| sentence(&error));
    memfit_server::serve_stdio(&settings, crate::VERSION)?;
    Ok(Exit::Good)
}

fn config(file: &Path, isolated: bool) -> Result<Config, CliError> {
    let settings = match file.parent().filter(|folder| folder.is_absolute() && !isolated) {
        Some(folder) => Settings::of_folder(folder)?,
        // A file that was never saved belongs to no project.
        None => Settings::load(isolated)?,
    };
    let config = Config {
        select: settings.select,
        extend: settings.extend_select,
        ignore: settings.ignore,
        severity: settings.severity,
        exclude: settings.exclude,
        root: settings.folder,
    };
    config.validate()?;
    Ok(config)
}

/// Formats an error with its chain of causes.
fn sentence(error: &CliError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
