//! `[tool.memfit]` in pyproject.toml: defaults for options. The command line takes precedence.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memfit_ci::CiSettings;
use memfit_devices::Bytes;
use memfit_run::{Samples, Sizes};
use serde::Deserialize;

use crate::CliError;
use crate::args::{Clock, Cover, FailOn, Format, GpuChoice, HostClock, Timeout};

/// The settings of a project.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Settings {
    /// `memfit check --select`
    pub(crate) select: Vec<String>,
    /// `memfit check --extend-select`
    pub(crate) extend_select: Vec<String>,
    /// `memfit check --ignore`
    pub(crate) ignore: Vec<String>,
    /// `memfit check --exclude`, relative to the settings file.
    pub(crate) exclude: Vec<String>,
    /// The folder of the settings file.
    #[serde(skip)]
    pub(crate) folder: PathBuf,
    /// Overridden severities, by rule; `off` disables the rule.
    pub(crate) severity: BTreeMap<String, memfit_lint::Level>,
    /// `memfit check --fail-on`
    pub(crate) fail_on: Option<FailOn>,
    /// `--gpu`
    pub(crate) gpu: Option<GpuChoice>,
    /// `--memory`
    pub(crate) memory: Option<Bytes>,
    /// `--steps`
    pub(crate) steps: Option<u64>,
    /// `--cover`
    pub(crate) cover: Option<Cover>,
    /// `--clock`
    pub(crate) clock: Option<Clock>,
    /// `--host-time`
    pub(crate) host_time: Option<HostClock>,
    /// `--timeout`
    pub(crate) timeout: Option<Timeout>,
    /// `--sizes`
    pub(crate) sizes: Option<Sizes>,
    /// `--synthetic-weights`
    pub(crate) synthetic_weights: bool,
    /// `--synthetic-data`
    pub(crate) synthetic_data: Option<Samples>,
    /// `--other-processes`
    pub(crate) other_processes: Option<Bytes>,
    /// `--format`
    pub(crate) format: Option<Format>,
    /// `--catalogue`, relative to the settings file.
    pub(crate) catalogue: Option<PathBuf>,
    /// `--calibration`, relative to the settings file.
    pub(crate) calibration: Option<PathBuf>,
    /// `true` if this machine's stored calibrations are ignored.
    #[serde(skip)]
    pub(crate) isolated: bool,
    /// `--container`
    pub(crate) container: Option<String>,
    /// `--show-output`
    pub(crate) show_output: bool,
    /// `memfit ci`
    pub(crate) ci: Option<CiSettings>,
}

/// The names of all settings.
pub(crate) const KEYS: &[&str] = &[
    "select",
    "extend-select",
    "ignore",
    "exclude",
    "severity",
    "fail-on",
    "gpu",
    "memory",
    "steps",
    "cover",
    "clock",
    "host-time",
    "timeout",
    "sizes",
    "synthetic-weights",
    "synthetic-data",
    "other-processes",
    "format",
    "catalogue",
    "calibration",
    "container",
    "show-output",
    "ci",
];

/// The parts of a pyproject.toml that are read.
#[derive(Deserialize)]
struct Project {
    tool: Option<Tool>,
}

#[derive(Deserialize)]
struct Tool {
    memfit: Option<toml::Table>,
}

impl Settings {
    /// The settings of the nearest pyproject.toml that has a `[tool.memfit]`, from the current directory
    /// upwards.
    pub(crate) fn load(isolated: bool) -> Result<Self, CliError> {
        match std::env::current_dir().ok().filter(|_| !isolated) {
            Some(start) => Self::of_folder(&start),
            None => Ok(Self { isolated, ..Self::default() }),
        }
    }

    /// The same, starting from a folder.
    pub(crate) fn of_folder(start: &Path) -> Result<Self, CliError> {
        for folder in start.ancestors() {
            let file = folder.join("pyproject.toml");
            match std::fs::read_to_string(&file) {
                Ok(text) => {
                    if let Some(settings) = Self::parse(&file, &text)? {
                        return Ok(settings);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(CliError::io("read", file)(error)),
            }
        }
        Ok(Self::default())
    }

    /// The settings in a pyproject.toml, if it has any.
    fn parse(file: &Path, text: &str) -> Result<Option<Self>, CliError> {
        // Most projects do not configure memfit, and their files may be large.
        if !text.contains("memfit") {
            return Ok(None);
        }
        let broken = |source| CliError::Settings { file: file.to_owned(), source: Box::new(source) };
        let project: Project = toml::from_str(text).map_err(broken)?;
        let Some(table) = project.tool.and_then(|tool| tool.memfit) else { return Ok(None) };
        if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let near = |known: &&&str| strsim::damerau_levenshtein(key, known);
            let suggestion = KEYS.iter().min_by_key(near).filter(|known| near(known) <= 2);
            return Err(CliError::UnknownSetting {
                file: file.to_owned(),
                key: key.clone(),
                suggestion: suggestion.map(|known| (*known).to_owned()),
            });
        }
        let mut settings: Self = table.try_into().map_err(broken)?;
        if let Some(folder) = file.parent() {
            folder.clone_into(&mut settings.folder);
            for path in [&mut settings.catalogue, &mut settings.calibration].into_iter().flatten() {
                *path = folder.join(&path);
            }
        }
        Ok(Some(settings))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(text: &str) -> Result<Option<Settings>, CliError> {
        Settings::parse(Path::new("/project/pyproject.toml"), text)
    }

    #[test]
    fn every_setting_is_read() {
        let settings = parse(
            r#"
            [tool.memfit]
            gpu = "a100-80gb:2"
            memory = "12 GiB"
            steps = 5
            cover = "full"
            clock = "never"
            host-time = "measured"
            timeout = "2m"
            format = "json"
            catalogue = "cards.toml"
            calibration = "t4.json"
            show-output = true
            "#,
        )
        .unwrap()
        .unwrap();
        assert_eq!(settings.gpu, Some(GpuChoice { name: "a100-80gb".into(), count: 2 }));
        assert_eq!(settings.memory, Some(Bytes::from_gib(12)));
        assert_eq!(settings.steps, Some(5));
        assert_eq!(settings.cover, Some(Cover::Full));
        assert_eq!(settings.clock, Some(Clock::Never));
        assert_eq!(settings.host_time, Some(HostClock::Measured));
        assert_eq!(settings.timeout, Some(Timeout(Some(Duration::from_mins(2)))));
        assert_eq!(settings.format, Some(Format::Json));
        assert_eq!(settings.catalogue, Some(PathBuf::from("/project/cards.toml")));
        assert_eq!(settings.calibration, Some(PathBuf::from("/project/t4.json")));
        assert!(settings.show_output);
    }

    #[test]
    fn files_without_memfit_settings_are_skipped() {
        assert!(parse("[tool.ruff]\nline-length = 100").unwrap().is_none());
        assert!(parse("[project]\ndependencies = ['memfit']").unwrap().is_none());
    }

    #[test]
    fn unknown_settings_are_errors_with_the_one_that_was_meant() {
        let Err(CliError::UnknownSetting { key, suggestion, .. }) = parse("[tool.memfit]\ngpus = 't4'")
        else {
            panic!("accepted")
        };
        assert_eq!((key.as_str(), suggestion.as_deref()), ("gpus", Some("gpu")));
        let Err(CliError::UnknownSetting { suggestion: None, .. }) = parse("[tool.memfit]\nunrelated = 1")
        else {
            panic!("accepted")
        };
    }

    #[test]
    fn values_are_checked() {
        for wrong in ["gpu = 't4:0'", "memory = '24'", "steps = -1", "timeout = 'soon'", "format = 'xml'"] {
            let text = format!("[tool.memfit]\n{wrong}");
            assert!(matches!(parse(&text), Err(CliError::Settings { .. })), "{wrong} was accepted");
        }
    }
}
