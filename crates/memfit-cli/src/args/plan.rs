//! Arguments of `memfit plan`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{ValueEnum, ValueHint};
use memfit_devices::Bytes;
use memfit_plan::movable;
use memfit_vocabulary::{Label, Lever};

use super::{CommandArgs, GpuChoice, OutputArgs, ScriptArgs, Timeout};

/// File name that means standard output.
pub(crate) const SHOWN: &str = "-";

#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:
  memfit plan --gpu t4 -- python train.py --batch-size 256
  memfit plan --gpu rtx-4090 --allow exact -o memfit.plan.toml -- python train.py
  memfit plan --gpu rtx-4060 --diff=memfit.patch -- python train.py
  memfit plan --gpu l4 --global-batch 512 --format json -- python train.py
  memfit plan --gpu h100-sxm:8 --nodes 2 --link ib-400 -o memfit.plan.toml -- python train.py"
)]
pub(crate) struct PlanArgs {
    /// The GPU: a name from `memfit gpus`, with `:N` for N of them.
    #[arg(long, short, value_name = "NAME[:N]")]
    pub(crate) gpu: Option<GpuChoice>,

    /// Number of machines; each has the GPUs of `--gpu`.
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) nodes: u32,

    /// The link between GPUs: `nvlink` or `pcie` within a machine [default: the GPU's own]; `ib-200`,
    /// `ib-400`, `ib-800`, `ethernet-10`, `ethernet-25` or `ethernet-100` between machines [default:
    /// ib-400]. Give the option twice for both kinds of link.
    #[arg(long, value_name = "NAME")]
    pub(crate) link: Vec<String>,

    /// Give the GPU this much memory, for example `12GiB` [default: that of the named GPU].
    #[arg(long, short, value_name = "SIZE")]
    pub(crate) memory: Option<Bytes>,

    /// Samples in one optimizer step [default: the script's own].
    #[arg(long, value_name = "SAMPLES")]
    pub(crate) global_batch: Option<u64>,

    /// How far the plan may change the training.
    #[arg(long, value_enum, value_name = "LABEL", default_value_t)]
    pub(crate) allow: Allow,

    /// Do not use this lever, for example `micro-batch`; may be given several times.
    #[arg(long, value_name = "LEVER", value_parser = lever)]
    pub(crate) without: Vec<Lever>,

    /// Also try `torch.compile`; each such run takes as long as compilation.
    #[arg(long)]
    pub(crate) compile: bool,

    /// Share of the GPU's memory that stays free.
    #[arg(long, value_name = "PERCENT", default_value = "3%")]
    pub(crate) margin: Margin,

    /// Time limit of a single run, for example `90s` or `20m`; 0 for none [default: 10m].
    #[arg(long, short, value_name = "TIME")]
    pub(crate) timeout: Option<Timeout>,

    /// Write the plan to this file.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// Write an HTML page to this file, with a plot of the peak against the step time of each plan.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,

    /// Turn the plan into a patch for `git apply`, and run the patched script to check it. Print the patch,
    /// or write it to this file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = SHOWN, value_hint = ValueHint::FilePath)]
    pub(crate) diff: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) script: ScriptArgs,

    #[command(flatten)]
    pub(crate) out: OutputArgs,

    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

/// The furthest label that a plan may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Allow {
    /// The same mathematics.
    Exact,
    /// The same mathematics; results differ by rounding.
    Rounding,
    /// The same training with fewer bits, as in common mixed precision.
    #[default]
    Precision,
    /// Changes training results: another optimizer, LoRA, fewer bits in state or weights, smaller inputs,
    /// batch normalisation over fewer samples.
    ChangesTraining,
}

impl From<Allow> for Label {
    fn from(allow: Allow) -> Self {
        match allow {
            Allow::Exact => Self::Exact,
            Allow::Rounding => Self::Rounding,
            Allow::Precision => Self::Precision,
            Allow::ChangesTraining => Self::ChangesTraining,
        }
    }
}

/// Parses the name of a lever that a plan can apply.
fn lever(name: &str) -> Result<Lever, String> {
    let movable = movable();
    movable.iter().copied().find(|lever| lever.name() == name).ok_or_else(|| {
        let names: Vec<&str> = movable.iter().map(|lever| lever.name()).collect();
        format!("there is no such lever; the levers of a plan are {}", names.join(", "))
    })
}

/// Share of the GPU's memory that stays free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Margin(pub(crate) f64);

impl Margin {
    /// Default margin of a plan.
    pub(crate) const DEFAULT: Self = Self(0.03);
}

impl FromStr for Margin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').unwrap_or(text).trim();
        match number.parse::<f64>() {
            Ok(percent) if (0.0..90.0).contains(&percent) => Ok(Self(percent / 100.0)),
            _ => {
                Err("a share of the GPU's memory in percent, such as `3%`, at least 0 and below 90"
                    .to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_is_a_share() {
        let share = |text: &str| text.parse::<Margin>().ok().map(|margin| (margin.0 * 1000.0).round());
        assert_eq!(share("3%"), Some(30.0));
        assert_eq!(share("0"), Some(0.0));
        assert_eq!(share("2.5 %"), Some(25.0));
        for wrong in ["", "%", "-1%", "90%", "nan", "3 GiB"] {
            assert_eq!(share(wrong), None, "{wrong}");
        }
    }
}
