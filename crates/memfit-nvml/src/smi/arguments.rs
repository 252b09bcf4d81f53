//! The command line of `nvidia-smi`, as far as scripts use it.

use std::path::PathBuf;
use std::time::Duration;

use super::Failure;

/// Text of `--help`.
pub(super) const HELP: &str = "\
NVIDIA System Management Interface of a virtual machine made by memfit

    nvidia-smi                              a table of the GPUs and their processes
    -L, --list-gpus                         a line for each GPU
    -q, --query [-d MEMORY,PIDS,...]        all that is known of each GPU
    --query-gpu=FIELD,...                   fields of each GPU, with --format
    --query-compute-apps=FIELD,...          fields of each process, with --format
    --format=csv[,noheader][,nounits]       how fields are written
    -i, --id=ID,...                         only these GPUs, by index, UUID or PCI address
    -f, --filename=FILE                     write to a file
    -l, --loop=SEC, -lms, --loop-ms=MS      again and again
";

/// Requested output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Table,
    List,
    /// Everything, or only these sections.
    Report {
        sections: Vec<String>,
    },
    Cards {
        fields: Vec<String>,
    },
    Processes {
        fields: Vec<String>,
    },
    Help,
}

/// Format of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) header: bool,
    pub(super) units: bool,
}

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) wanted: Wanted,
    pub(super) style: Style,
    /// Selected devices; all of them if empty.
    pub(super) cards: Vec<String>,
    pub(super) file: Option<PathBuf>,
    /// Time between two outputs, if there are several.
    pub(super) pause: Option<Duration>,
}

impl Arguments {
    /// Parses a command line without the program's name.
    pub(super) fn parse(words: &[String]) -> Result<Self, Failure> {
        let mut arguments = Self {
            wanted: Wanted::Table,
            style: Style { header: true, units: true },
            cards: Vec::new(),
            file: None,
            pause: None,
        };
        let mut formatted = false;
        let mut sections = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (name, joined) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let mut value = || {
                let value = joined.clone().or_else(|| words.next().cloned());
                value.ok_or_else(|| Failure::usage(format!("Option \"{name}\" is missing its value.")))
            };
            match name {
                "-L" | "--list-gpus" => arguments.wanted = Wanted::List,
                "-q" | "--query" => arguments.wanted = Wanted::Report { sections: Vec::new() },
                "-d" | "--display" => sections = list(&value()?),
                "--query-gpu" => arguments.wanted = Wanted::Cards { fields: list(&value()?) },
                "--query-compute-apps" => arguments.wanted = Wanted::Processes { fields: list(&value()?) },
                "--format" => {
                    let style = list(&value()?);
                    formatted = style.iter().any(|word| word == "csv");
                    arguments.style.header = !style.iter().any(|word| word == "noheader");
                    arguments.style.units = !style.iter().any(|word| word == "nounits");
                }
                "-i" | "--id" => arguments.cards = list(&value()?),
                "-f" | "--filename" => arguments.file = Some(value()?.into()),
                "-l" | "--loop" => arguments.pause = Some(pause(&value()?, 1000)?),
                "-lms" | "--loop-ms" => arguments.pause = Some(pause(&value()?, 1)?),
                "-h" | "--help" => arguments.wanted = Wanted::Help,
                _ => {
                    return Err(Failure::usage(format!(
                        "Invalid combination of input arguments: the virtual nvidia-smi does not know \"{word}\". Please run 'nvidia-smi -h' for help."
                    )));
                }
            }
        }
        match &mut arguments.wanted {
            Wanted::Cards { .. } | Wanted::Processes { .. } if !formatted => {
                return Err(Failure::usage(
                    "The --format= switch is required when a --query-* switch is used, with \"csv\" in it.",
                ));
            }
            Wanted::Report { sections: wanted } => *wanted = sections,
            _ => {}
        }
        Ok(arguments)
    }
}

fn list(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn pause(value: &str, unit_ms: u64) -> Result<Duration, Failure> {
    let count = value.parse::<u64>().ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| Failure::usage(format!("\"{value}\" is not a valid interval.")))?;
    Ok(Duration::from_millis(count.saturating_mul(unit_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, Failure> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Arguments::parse(&words)
    }

    #[test]
    fn values_are_joined_or_follow() {
        let joined = parse("--query-gpu=name,memory.used --format=csv,noheader,nounits -i 1").unwrap();
        let apart = parse("--query-gpu name,memory.used --format csv,noheader,nounits --id=1").unwrap();
        assert_eq!(joined, apart);
        assert_eq!(joined.wanted, Wanted::Cards { fields: vec!["name".into(), "memory.used".into()] });
        assert_eq!(joined.style, Style { header: false, units: false });
        assert_eq!(joined.cards, ["1"]);
        assert_eq!(parse("").unwrap().wanted, Wanted::Table);
        assert_eq!(parse("-q -d MEMORY").unwrap().wanted, Wanted::Report { sections: vec!["MEMORY".into()] });
        assert_eq!(parse("-lms 250").unwrap().pause, Some(Duration::from_millis(250)));
    }

    #[test]
    fn invalid_arguments_are_a_usage_error() {
        for line in ["--query-gpu=name", "-i", "-l 0", "dmon", "-pl 300"] {
            assert_eq!(parse(line).unwrap_err().status, 2, "{line}");
        }
    }
}
