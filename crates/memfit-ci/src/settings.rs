//! `[tool.memfit.ci]` in pyproject.toml.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use memfit_devices::Bytes;
use memfit_report::wire::Peak;
use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer};

/// Name of a script whose command names no file.
const UNNAMED: &str = "script";

/// The settings of `memfit ci`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct CiSettings {
    /// The scripts.
    pub scripts: Vec<ScriptSettings>,
    /// GPUs of all scripts that do not name any.
    pub gpus: Vec<String>,
    /// Permitted growth.
    pub max_growth: Option<MaxGrowth>,
    /// Optimizer steps of each run.
    pub steps: Option<u64>,
    /// The peak that is compared.
    pub peak: JudgedPeak,
    /// Folder of the baselines, relative to the settings file.
    pub baselines: Option<PathBuf>,
    /// Files and folders outside git that are linked into the checkout of `--base`.
    pub link: Vec<PathBuf>,
}

/// A script: its command alone, or a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScriptSettings {
    /// Name in reports, and of the baseline's file.
    pub name: Option<String>,
    /// The command.
    pub command: Vec<String>,
    /// Working directory, relative to the settings file.
    pub folder: PathBuf,
    /// GPUs.
    pub gpus: Vec<String>,
    /// Permitted growth.
    pub max_growth: Option<MaxGrowth>,
    /// Optimizer steps.
    pub steps: Option<u64>,
    /// `true` to search for the largest batch that fits.
    pub largest_batch: bool,
}

/// A script of the settings on one GPU, with all defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// Name.
    pub name: String,
    /// GPU, as named in the settings: `NAME` or `NAME:N`.
    pub gpu: String,
    /// The command.
    pub command: Vec<String>,
    /// Working directory, relative to the settings file.
    pub folder: PathBuf,
    /// Permitted growth.
    pub max_growth: MaxGrowth,
    /// Optimizer steps.
    pub steps: Option<u64>,
    /// `true` to search for the largest batch that fits.
    pub largest_batch: bool,
}

/// What the list of scripts lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptsError {
    /// No GPU for a script.
    #[error("no GPU is named for `{name}`")]
    NoGpu {
        /// The script's name.
        name: String,
    },
    /// Two scripts would have one baseline.
    #[error("two scripts are called `{name}` on {gpu}")]
    SameName {
        /// The name.
        name: String,
        /// The GPU.
        gpu: String,
    },
    /// An empty list.
    #[error("no scripts are listed")]
    NoScripts,
}

impl ScriptsError {
    /// What to write in the settings.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoGpu { .. } => "name them: `gpus = [\"t4\"]` in `[tool.memfit.ci]`, or `--gpu`",
            Self::SameName { .. } => {
                "give each its own: `[[tool.memfit.ci.scripts]]`, `name = \"large\"`, `command = \"python train.py --large\"`"
            }
            Self::NoScripts => {
                "name scripts and GPUs in pyproject.toml: `[tool.memfit.ci]`, `gpus = [\"t4\"]`, `scripts = [\"python train.py\"]`"
            }
        }
    }
}

impl CiSettings {
    /// Default folder of the baselines.
    pub const BASELINES: &str = ".memfit/baselines";

    /// Folder of the baselines, relative to the settings file.
    pub fn baselines(&self) -> PathBuf {
        self.baselines.clone().unwrap_or_else(|| PathBuf::from(Self::BASELINES))
    }

    /// Every script on every GPU; `gpu` applies to scripts for which no setting names one. The error names
    /// what the settings lack.
    pub fn scripts(&self, gpu: Option<&str>) -> Result<Vec<Script>, ScriptsError> {
        let mut found: Vec<Script> = Vec::new();
        for script in &self.scripts {
            let name = script.name.clone().unwrap_or_else(|| default_name(&script.command));
            let gpus = [&script.gpus, &self.gpus].into_iter().find(|gpus| !gpus.is_empty());
            let gpus = gpus.cloned().unwrap_or_else(|| gpu.into_iter().map(str::to_owned).collect());
            if gpus.is_empty() {
                return Err(ScriptsError::NoGpu { name });
            }
            for gpu in gpus {
                let file = crate::file_name(&name, &gpu);
                if found.iter().any(|known| crate::file_name(&known.name, &known.gpu) == file) {
                    return Err(ScriptsError::SameName { name, gpu });
                }
                found.push(Script {
                    name: name.clone(),
                    gpu,
                    command: script.command.clone(),
                    folder: script.folder.clone(),
                    max_growth: script.max_growth.or(self.max_growth).unwrap_or_default(),
                    steps: script.steps.or(self.steps),
                    largest_batch: script.largest_batch,
                });
            }
        }
        if found.is_empty() { Err(ScriptsError::NoScripts) } else { Ok(found) }
    }
}

/// The stem of the file that a command runs, or its module.
fn default_name(command: &[String]) -> String {
    let is_python =
        |word: &&String| Path::new(word.as_str()).extension().is_some_and(|ending| ending == "py");
    let file = command.iter().find(is_python);
    let module = || command.iter().skip_while(|word| *word != "-m").nth(1);
    let name = file.map(|word| {
        let name = word.rsplit('/').next().unwrap_or(word);
        name.trim_end_matches(".py").to_owned()
    });
    name.or_else(|| module().cloned()).unwrap_or_else(|| UNNAMED.to_owned())
}

/// The peak whose growth is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JudgedPeak {
    /// Memory used on the device.
    #[default]
    Device,
    /// Segments held by the allocator.
    Reserved,
    /// Tensors.
    Allocated,
}

impl JudgedPeak {
    /// Bytes.
    pub const fn bytes_of(self, peak: &Peak) -> u64 {
        match self {
            Self::Device => peak.device,
            Self::Reserved => peak.reserved,
            Self::Allocated => peak.allocated,
        }
    }

    /// Name in settings and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Reserved => "reserved",
            Self::Allocated => "allocated",
        }
    }
}

/// Permitted growth of a peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MaxGrowth {
    /// A share of the base's peak.
    Share(f64),
    /// Bytes.
    Bytes(u64),
}

impl Default for MaxGrowth {
    /// One percent. With a few GiB, that is more than the granularity of PyTorch's allocator (2 or 20 MiB),
    /// and less than any change that affects the largest batch.
    fn default() -> Self {
        Self::Share(0.01)
    }
}

impl MaxGrowth {
    /// Permitted bytes above a peak.
    pub fn bytes(self, base: u64) -> u64 {
        match self {
            Self::Share(share) => (base as f64 * share) as u64,
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for MaxGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) => write!(f, "{} %", (share * 1e6).round() / 1e4),
            Self::Bytes(bytes) => write!(f, "{}", Bytes::new(*bytes)),
        }
    }
}

impl FromStr for MaxGrowth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(percent) = text.trim().strip_suffix('%') {
            return match percent.trim().parse::<f64>() {
                Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(Self::Share(percent / 100.0)),
                _ => Err(format!("`{text}` is not a percentage such as `1%`")),
            };
        }
        text.parse::<Bytes>().map(|bytes| Self::Bytes(bytes.get())).map_err(|error| error.to_string())
    }
}

impl<'de> Deserialize<'de> for MaxGrowth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A command: a list of words, or one text that is split like in a shell.
#[derive(Clone, Debug, Default, PartialEq)]
struct Words(Vec<String>);

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordsVisitor;
        impl<'de> Visitor<'de> for WordsVisitor {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a command, such as \"python train.py\", or a list of its words")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Words, E> {
                split(text).map(Words).map_err(E::custom)
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = list.next_element()? {
                    words.push(word);
                }
                if words.is_empty() { Err(de::Error::custom(EMPTY)) } else { Ok(Words(words)) }
            }
        }
        deserializer.deserialize_any(WordsVisitor)
    }
}

const EMPTY: &str = "the command is empty";

/// Splits a command at spaces outside quotes; nothing is expanded.
fn split(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().extend(letters.next()),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    match quote {
        Some(quote) => Err(format!("`{text}` has an open {quote}")),
        None if words.is_empty() => Err(EMPTY.to_owned()),
        None => Ok(words),
    }
}

/// The table of a script.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct ScriptTable {
    command: Words,
    name: Option<String>,
    #[serde(default)]
    folder: PathBuf,
    #[serde(default)]
    gpus: Vec<String>,
    max_growth: Option<MaxGrowth>,
    steps: Option<u64>,
    #[serde(default)]
    largest_batch: bool,
}

impl<'de> Deserialize<'de> for ScriptSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScriptVisitor;
        impl<'de> Visitor<'de> for ScriptVisitor {
            type Value = ScriptSettings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a command, or a table with a `command`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ScriptSettings, E> {
                let command = split(text).map_err(E::custom)?;
                Ok(ScriptSettings { command, ..ScriptSettings::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ScriptSettings, A::Error> {
                let table = ScriptTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ScriptSettings {
                    name: table.name,
                    command: table.command.0,
                    folder: table.folder,
                    gpus: table.gpus,
                    max_growth: table.max_growth,
                    steps: table.steps,
                    largest_batch: table.largest_batch,
                })
            }
        }
        deserializer.deserialize_any(ScriptVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<CiSettings, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn a_script_is_a_command_or_a_table() {
        let settings = parse(
            r#"
            scripts = [
                "python 'my train.py' --name \"a b\" c\\ d",
                { command = ["python", "-m", "pack.eval"], gpus = ["l4:2"], max-growth = "50 MiB", steps = 7 },
                { command = "python sub/train.py", name = "other", folder = "sub", largest-batch = true },
            ]
            gpus = ["t4", "rtx-4090"]
            max-growth = "2.5%"
            "#,
        )
        .unwrap();
        let scripts = settings.scripts(Some("h100")).unwrap();
        let found: Vec<_> = scripts.iter().map(|one| (one.name.as_str(), one.gpu.as_str())).collect();
        assert_eq!(
            found,
            [
                ("my train", "t4"),
                ("my train", "rtx-4090"),
                ("pack.eval", "l4:2"),
                ("other", "t4"),
                ("other", "rtx-4090"),
            ]
        );
        assert_eq!(scripts[0].command, ["python", "my train.py", "--name", "a b", "c d"]);
        assert_eq!(scripts[0].max_growth, MaxGrowth::Share(0.025));
        assert_eq!((scripts[2].max_growth, scripts[2].steps), (MaxGrowth::Bytes(50 << 20), Some(7)));
        assert_eq!(scripts[3].folder, PathBuf::from("sub"));
        assert!(scripts[3].largest_batch && !scripts[2].largest_batch);
    }

    #[test]
    fn scripts_need_a_gpu_and_a_name_of_their_own() {
        let settings = parse("scripts = ['python a.py']").unwrap();
        assert!(settings.scripts(None).unwrap_err().to_string().contains("no GPU"));
        assert_eq!(settings.scripts(Some("t4")).unwrap()[0].max_growth, MaxGrowth::Share(0.01));
        let twice = parse("scripts = ['python a.py', 'python b/a.py']").unwrap();
        let error = twice.scripts(Some("t4")).unwrap_err();
        assert_eq!(error.to_string(), "two scripts are called `a` on t4");
        assert!(error.hint().contains("`name = "));
        assert!(CiSettings::default().scripts(Some("t4")).is_err());
    }

    #[test]
    fn wrong_settings_are_named() {
        for (text, why) in [
            ("scripts = [{ name = 'a' }]", "missing field `command`"),
            ("scripts = [{ command = 'a', memory = 1 }]", "unknown field `memory`"),
            ("scripts = ['python \"a']", "open"),
            ("scripts = ['']", "empty"),
            ("script = ['a']", "unknown field `script`"),
            ("max-growth = '1'", ""),
            ("max-growth = '-1%'", "percentage"),
            ("max-growth = 'nan%'", "percentage"),
            ("peak = 'host'", "unknown variant"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn growth_is_permitted_in_percent_or_bytes() {
        let bytes = |text: &str| text.parse::<MaxGrowth>().unwrap().bytes(1000 << 20);
        assert_eq!(bytes("1%"), 10 << 20);
        assert_eq!(bytes("0%"), 0);
        assert_eq!(bytes("50 MiB"), 50 << 20);
        assert_eq!("0.3 %".parse::<MaxGrowth>().unwrap().to_string(), "0.3 %");
        assert_eq!(MaxGrowth::Bytes(50 << 20).to_string(), "50 MiB");
    }
}
