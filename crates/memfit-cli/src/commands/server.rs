//! `memfit server`

use memfit_lint::Config;

use crate::settings::Settings;
use crate::{CliError, Exit};

/// Serves an editor until it says goodbye.
pub(crate) fn server(settings: &Settings) -> Result<Exit, CliError> {
    let config = Config {
        select: settings.select.clone(),
        extend: settings.extend_select.clone(),
        ignore: settings.ignore.clone(),
        severity: settings.severity.clone(),
        ..Config::default()
    };
    config.validate()?;
    memfit_server::serve_stdio(config, crate::VERSION)?;
    Ok(Exit::Good)
}
