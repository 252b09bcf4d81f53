//! Command-line arguments as typed. This module opens no file and looks nothing up.

mod calibrate;
mod cards;
mod check;
mod ci;
mod convert;
mod data;
#[cfg(test)]
mod documented;
mod launch;
mod plan;
mod replay;
mod script;
mod shrink;
mod watch;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Parser, Subcommand, ValueEnum, ValueHint};
use memfit_allocator::Release;
use memfit_channel::{ClockMode, HostTime};
use memfit_devices::Bytes;
use memfit_run::Sizes;
use memfit_vocabulary::Cause;
use serde::Deserialize;

pub(crate) use calibrate::CalibrateArgs;
pub(crate) use cards::CardsArgs;
pub(crate) use check::{CheckArgs, FailOn, FindingsFormat, RuleArgs};
pub(crate) use ci::{CiArgs, CiFormat};
pub(crate) use convert::{ConvertArgs, ConvertFormat, ConvertRows};
pub(crate) use data::DataArgs;
pub(crate) use launch::LaunchArgs;
pub(crate) use plan::{Margin, PlanArgs, SHOWN};
pub(crate) use replay::ReplayArgs;
pub(crate) use script::{CommandArgs, ScriptArgs};
pub(crate) use shrink::ShrinkArgs;
pub(crate) use watch::WatchArgs;

use crate::printer::Colour;

/// Make PyTorch training fit in GPU memory.
#[derive(Debug, Parser)]
#[command(
    name = "memfit",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    args_override_self = true,
    after_help = "Exit status: 0 on success; 1 if the script does not fit or a check fails; 2 if there is no answer."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,

    /// When to use colour.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", display_order = 900)]
    pub(crate) color: Colour,

    /// Print only the answer: no progress, no remarks.
    #[arg(long, short, global = true, display_order = 901)]
    pub(crate) quiet: bool,

    /// Ignore `[tool.memfit]` in pyproject.toml, and stored calibrations of this machine.
    #[arg(long, global = true, display_order = 902)]
    pub(crate) isolated: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a training script on a virtual GPU: does it fit, and what fills the memory?
    Run(Box<RunArgs>),
    /// Find the fastest plan with which a training script fits on a GPU.
    Plan(Box<PlanArgs>),
    /// Print the command that starts a plan's processes on several GPUs, or run it.
    Launch(LaunchArgs),
    /// Compare GPUs for a training script: where it fits, how fast it is there, and what it costs.
    Cards(Box<CardsArgs>),
    /// Measure techniques that make a model smaller, such as LoRA, quantization and pruning.
    Shrink(Box<ShrinkArgs>),
    /// Compare the peaks of a project's scripts with committed baselines, or with another commit.
    Ci(Box<CiArgs>),
    /// Explain an out-of-memory error: the cause, the line, and the changes that help.
    Explain(ExplainArgs),
    /// Replay PyTorch's caching allocator, as recorded or under other settings.
    Replay(ReplayArgs),
    /// Show a recording in the browser: memory over time, block by block.
    View(ViewArgs),
    /// Find mistakes in training scripts that waste or leak GPU memory, or make results wrong. Runs nothing.
    Check(CheckArgs),
    /// Show a rule's page, or list all rules.
    Rule(RuleArgs),
    /// Serve findings and fixes to an editor over the Language Server Protocol, on standard input and
    /// output.
    Server,
    /// Write a recording in another format: for PyTorch's memory_viz, Perfetto, Chrome, or a spreadsheet.
    Convert(ConvertArgs),
    /// Inspect a folder of images or a script's `DataLoader`: broken files, loading speed and host memory.
    Data(DataArgs),
    /// Watch runs in progress: GPU memory and completed steps.
    Watch(WatchArgs),
    /// List the known GPUs, or show one.
    Gpus(GpusArgs),
    /// Measure the GPU of this machine; later runs on this GPU model use the figures.
    Calibrate(CalibrateArgs),
    /// Show what is installed, and what would and would not work.
    Doctor(DoctorArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
}

/// Output of an answer.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct OutputArgs {
    /// Output format on standard output.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,

    /// Also write the answer as JSON to a file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:
  memfit run --gpu rtx-4090 -- python train.py --batch-size 64
  memfit run --gpu a100-80gb:2 --steps 5 -- torchrun --nproc-per-node 2 train.py
  memfit run --gpu h100:8 --rank 11 --world-size 512 -- python train.py
  memfit run --gpu t4 --memory 12GiB --format json -- python -m package.train"
)]
pub(crate) struct RunArgs {
    /// The GPU: a name from `memfit gpus`, with `:N` for N of them; or `local` for the real one.
    #[arg(long, short, value_name = "NAME[:N]")]
    pub(crate) gpu: Option<GpuChoice>,

    /// Give the GPU this much memory, for example `12GiB` [default: that of the named GPU].
    #[arg(long, short, value_name = "SIZE")]
    pub(crate) memory: Option<Bytes>,

    /// Stop after this many optimizer steps; 0 runs to the end [default: 3].
    #[arg(long, short, value_name = "K")]
    pub(crate) steps: Option<u64>,

    /// What to run: `steps` (the optimizer steps) or `full` (also the script's evaluation and a batch of the
    /// data set's largest items) [default: steps].
    #[arg(long, value_enum, value_name = "WHAT", hide_possible_values = true)]
    pub(crate) cover: Option<Cover>,

    /// Run one process as this rank of `--world-size` ranks; the other ranks do not run [default: 0].
    #[arg(long, value_name = "R", requires = "world_size")]
    pub(crate) rank: Option<u32>,

    /// Number of ranks.
    #[arg(long, value_name = "N")]
    pub(crate) world_size: Option<u32>,

    /// Time limit of a single run, for example `90s` or `20m`; 0 for none [default: 10m, none with `--steps
    /// 0`].
    #[arg(long, short, value_name = "TIME")]
    pub(crate) timeout: Option<Timeout>,

    /// Value assumed for sizes that only a GPU can compute: the `upper` or `lower` bound, a number from
    /// 0 (lower) to 1 (upper) such as `0.3`, or `both` bounds in two runs. With a number or `lower`, the
    /// verdict holds for these sizes [default: upper].
    #[arg(long, value_name = "BOUND")]
    pub(crate) sizes: Option<Sizes>,

    /// GPU memory held by other programs.
    #[arg(long, value_name = "SIZE")]
    pub(crate) other_processes: Option<Bytes>,

    /// When GPU work completes: `estimate` (after its estimated time), `instant` (at once) or `never` (only
    /// when the script waits for it). With `instant` the peaks are a lower bound, with `never` an upper one
    /// [default: estimate].
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    pub(crate) clock: Option<Clock>,

    /// How the script's CPU time advances the virtual GPU's clock: `modelled` (by a fixed time per call, the
    /// same on every machine) or `measured` (also by the CPU time between calls, as measured here) [default:
    /// modelled].
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    pub(crate) host_time: Option<HostClock>,

    /// Apply a plan to the unmodified script.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) plan: Option<PathBuf>,

    /// Save the recording.
    #[arg(long, short, value_name = "FILE.memfit", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// Show the script's output while it runs, on standard error.
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) show_output: bool,

    /// After an out-of-memory error: do not run the script again to confirm remedies.
    #[arg(long)]
    pub(crate) no_prove: bool,

    /// Keep the run's temporary folder, and print its path.
    #[arg(long)]
    pub(crate) keep: bool,

    /// A calibration written by `memfit calibrate --output`, here or on another machine.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) calibration: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) script: ScriptArgs,

    #[command(flatten)]
    pub(crate) out: OutputArgs,

    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:
  memfit explain train.log
  memfit explain snapshot.pickle
  memfit explain run.memfit --format json
  memfit explain snapshot.pickle --capacity 24GiB"
)]
pub(crate) struct ExplainArgs {
    /// A PyTorch memory snapshot, a recording of `memfit run`, a log with the error message, a profiler
    /// trace, an Nsight export or a notebook; `-` for standard input.
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "cause")]
    pub(crate) file: Option<PathBuf>,

    /// Show the page of a cause instead: how to recognise it, and what helps.
    #[arg(long, value_name = "CAUSE", value_parser = cause_with_page(), conflicts_with = "file")]
    pub(crate) cause: Option<Cause>,

    /// Memory available to the allocator, if the file does not say.
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<Bytes>,

    /// Explain this device [default: the one that ran out of memory, else the fullest].
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// Assume the allocator of this PyTorch release, for example 2.9; snapshots do not record the release.
    #[arg(long, value_name = "RELEASE")]
    pub(crate) torch: Option<Release>,

    /// Omit the command, paths, lines, messages, and names of functions and modules from shareable output:
    /// the answer as JSON.
    #[arg(long)]
    pub(crate) confidential: bool,

    #[command(flatten)]
    pub(crate) out: OutputArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memfit view snapshot.pickle
  memfit view run.memfit -o report.html
  memfit view before.memfit --compare after.memfit -o report.html")]
pub(crate) struct ViewArgs {
    /// A recording of `memfit run -o`, a PyTorch memory snapshot, a profiler trace, or an export of Nsight
    /// Systems.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// Write one HTML file instead of serving the page on this machine and opening it.
    #[arg(long, short, value_name = "FILE.html", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// Also show this recording, aligned with the first one step by step.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) compare: Option<PathBuf>,

    /// Leave out paths, lines, and the names of functions and modules.
    #[arg(long)]
    pub(crate) confidential: bool,

    /// Only this device.
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u8>,

    /// Leave out the cause and the remedies, for very long recordings.
    #[arg(long)]
    pub(crate) no_explain: bool,

    /// Do not start a browser; print the address.
    #[arg(long, conflicts_with = "output")]
    pub(crate) no_browser: bool,

    /// Serve on this port [default: a free port].
    #[arg(long, value_name = "PORT", conflicts_with = "output")]
    pub(crate) port: Option<u16>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memfit gpus
  memfit gpus rtx-4090")]
pub(crate) struct GpusArgs {
    /// Show this GPU; without it, list all.
    pub(crate) name: Option<String>,

    /// A calibration written by `memfit calibrate --output`, here or on another machine.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) calibration: Option<PathBuf>,

    /// A TOML file with GPUs of your own.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) catalogue: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) out: OutputArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) out: OutputArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memfit completions bash > ~/.local/share/bash-completion/completions/memfit
  memfit completions man > memfit.1")]
pub(crate) struct CompletionsArgs {
    /// The shell, or `man` for the manual page.
    #[arg(value_enum)]
    pub(crate) shell: Completions,
}

/// Targets of `memfit completions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Completions {
    Bash,
    Elvish,
    Fish,
    Nushell,
    Powershell,
    Zsh,
    Man,
}

/// Parts of the script that have to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cover {
    /// The steps.
    #[default]
    Steps,
    /// The steps, the script's own evaluation, and a batch of the data set's largest items.
    Full,
}

/// Clock of the virtual GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Clock {
    /// After its estimated time on the GPU.
    #[default]
    Estimate,
    /// At once.
    Instant,
    /// When the script waits for it.
    Never,
}

impl From<Clock> for ClockMode {
    fn from(clock: Clock) -> Self {
        match clock {
            Clock::Estimate => Self::Estimate,
            Clock::Instant => Self::Instant,
            Clock::Never => Self::Never,
        }
    }
}

/// Advance of the clock by the host's computing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HostClock {
    /// By a fixed time per call.
    #[default]
    Modelled,
    /// Also by the CPU time between calls.
    Measured,
}

impl From<HostClock> for HostTime {
    fn from(clock: HostClock) -> Self {
        match clock {
            HostClock::Modelled => Self::Modelled,
            HostClock::Measured => Self::Measured,
        }
    }
}

/// A GPU by name, and the number of GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct GpuChoice {
    /// Name, as typed.
    pub(crate) name: String,
    /// At least one.
    pub(crate) count: u32,
}

/// Maximum GPUs of one machine.
const MAX_GPUS: u32 = 16;

impl FromStr for GpuChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, count) = match text.rsplit_once(':') {
            None => (text, 1),
            Some((name, count)) => {
                let count = count.parse().ok().filter(|count| (1..=MAX_GPUS).contains(count));
                let problem =
                    || format!("how many GPUs must be a number from 1 to {MAX_GPUS}, as in `{name}:2`");
                (name, count.ok_or_else(problem)?)
            }
        };
        if name.trim().is_empty() {
            return Err("a GPU needs a name; `memfit gpus` lists them".to_owned());
        }
        Ok(Self { name: name.to_owned(), count })
    }
}

impl TryFrom<String> for GpuChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// A duration: a number of seconds, or with a unit `s`, `m`, `h`; 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "TimeoutText")]
pub(crate) struct Timeout(pub(crate) Option<Duration>);

#[derive(Deserialize)]
#[serde(untagged)]
enum TimeoutText {
    Seconds(u64),
    Text(String),
}

impl TryFrom<TimeoutText> for Timeout {
    type Error = String;

    fn try_from(text: TimeoutText) -> Result<Self, Self::Error> {
        match text {
            TimeoutText::Seconds(seconds) => seconds.to_string().parse(),
            TimeoutText::Text(text) => text.parse(),
        }
    }
}

impl FromStr for Timeout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let (number, unit) = match text.char_indices().last() {
            Some((at, 's')) => (&text[..at], 1.0),
            Some((at, 'm')) => (&text[..at], 60.0),
            Some((at, 'h')) => (&text[..at], 3600.0),
            _ => (text, 1.0),
        };
        let seconds = number
            .trim()
            .parse::<f64>()
            .ok()
            .and_then(|number| Duration::try_from_secs_f64(number * unit).ok())
            .ok_or_else(|| format!("`{text}` is not a time such as `90s`, `20m` or `1h`"))?;
        Ok(Self((!seconds.is_zero()).then_some(seconds)))
    }
}

/// Parses a cause that has a page.
fn cause_with_page() -> impl TypedValueParser<Value = Cause> {
    let pages = || Cause::ALL.iter().copied().filter(|cause| *cause != Cause::None);
    PossibleValuesParser::new(pages().map(Cause::name))
        .map(move |name| pages().find(|cause| cause.name() == name).unwrap_or(Cause::None))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_gpu_is_a_name_and_a_number() {
        let parse = |text: &str| text.parse::<GpuChoice>();
        assert_eq!(parse("t4"), Ok(GpuChoice { name: "t4".into(), count: 1 }));
        assert_eq!(parse("RTX 4090:2"), Ok(GpuChoice { name: "RTX 4090".into(), count: 2 }));
        for wrong in ["", ":2", "t4:", "t4:0", "t4:17", "t4:-1", "t4:x"] {
            assert!(parse(wrong).is_err(), "{wrong:?} was accepted");
        }
    }

    #[test]
    fn a_time_has_units() {
        let parse = |text: &str| text.parse::<Timeout>().map(|timeout| timeout.0);
        assert_eq!(parse("90"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(parse("90s"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(parse("1.5m"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(parse("2h"), Ok(Some(Duration::from_hours(2))));
        assert_eq!(parse("0"), Ok(None));
        for wrong in ["", "s", "-1s", "10 days", "nan", "inf", "1e400"] {
            assert!(parse(wrong).is_err(), "{wrong:?} was accepted");
        }
    }

    #[test]
    fn the_command_keeps_its_own_options() {
        let args = Args::try_parse_from([
            "memfit", "run", "--gpu", "t4", "--", "python", "train.py", "--gpu", "0", "--steps", "7",
        ])
        .unwrap();
        let Verb::Run(run) = args.verb else { panic!("not a run") };
        assert_eq!(run.command.words, ["python", "train.py", "--gpu", "0", "--steps", "7"]);
        assert_eq!(run.steps, None);
    }

    #[test]
    fn an_unknown_option_before_the_command_is_not_taken_for_it() {
        for verb in ["run", "plan", "cards", "shrink", "launch"] {
            let error =
                Args::try_parse_from(["memfit", verb, "--page", "x.html", "--", "python", "train.py"])
                    .unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument, "{verb}: {error}");
        }
    }
}
