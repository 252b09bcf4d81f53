//! Options shared by the verbs that run a script: `run`, `plan`, `cards` and `ci`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueHint;
use memfit_run::Samples;

/// Replacements for missing files, the user's own GPUs, and confidentiality.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ScriptArgs {
    /// Replace weights that are missing, or larger than this machine's memory, with zeros of their shapes.
    #[arg(long)]
    pub(crate) synthetic_weights: bool,

    /// Replace missing data sets with synthetic samples. Their format follows from the data set's class, or
    /// from FIELDS, in quotes for the shell: `'image:3x224x224:uint8,label:int64<1000'`.
    #[arg(
        long,
        value_name = "FIELDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto"
    )]
    pub(crate) synthetic_data: Option<DescribedSamples>,

    /// A TOML file with GPUs of your own.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) catalogue: Option<PathBuf>,

    /// Omit the command, paths, lines, messages, and names of functions and modules from shareable output:
    /// recordings, HTML pages, comments, and the answer as JSON.
    #[arg(long)]
    pub(crate) confidential: bool,

    /// Run in a container of this image [default: memfit's own], with docker, podman, nerdctl or finch. On
    /// macOS this is always so.
    #[arg(
        long,
        value_name = "IMAGE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub(crate) container: Option<String>,
}

impl ScriptArgs {
    /// These options as words, for a command that runs the same script again.
    pub(crate) fn words(&self) -> Vec<String> {
        let valued = |option: &str, value: &str, default: &str| {
            if value == default { option.to_owned() } else { format!("{option}={value}") }
        };
        let weights = self.synthetic_weights.then(|| "--synthetic-weights".to_owned());
        let data = self.synthetic_data.as_ref().map(|data| valued("--synthetic-data", &data.text, "auto"));
        let catalogue = self.catalogue.as_ref().map(|path| format!("--catalogue={}", path.display()));
        let container = self.container.as_ref().map(|image| valued("--container", image, ""));
        [weights, data, catalogue, container].into_iter().flatten().collect()
    }
}

/// Samples, with the text that describes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DescribedSamples {
    pub(crate) samples: Samples,
    text: String,
}

impl FromStr for DescribedSamples {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self { samples: text.parse()?, text: text.to_owned() })
    }
}

/// The training command, after `--`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CommandArgs {
    /// The training command.
    #[arg(
        id = "command",
        required = true,
        trailing_var_arg = true,
        value_name = "COMMAND",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub(crate) words: Vec<OsString>,
}

impl CommandArgs {
    /// The words as text.
    pub(crate) fn text(&self) -> Vec<String> {
        self.words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }
}
