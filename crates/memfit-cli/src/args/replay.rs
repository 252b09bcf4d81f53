//! Arguments of `memfit replay`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueHint;
use memfit_allocator::Release;
use memfit_devices::Bytes;
use memfit_explain::{Change, Effect, Selector};

use super::OutputArgs;

#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "WHAT is a line (`train.py:42`), a category (`activations`), or a module with its children (`encoder.0`).

Examples:
  memfit replay snapshot.pickle
  memfit replay snapshot.pickle --alloc-conf expandable_segments:True
  memfit replay snapshot.pickle --capacity 16GiB --format json
  memfit replay run.memfit --each-step train.py:42
  memfit replay run.memfit --scale activations=0.5 --without optimizer"
)]
pub(crate) struct ReplayArgs {
    /// A PyTorch memory snapshot, a memfit recording, or `-` for standard input.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// Replay under these settings, as in PYTORCH_ALLOC_CONF; an empty string means the defaults.
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) alloc_conf: Option<String>,

    /// Replay with this much memory available to the allocator.
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<Bytes>,

    /// Memory of the GPU, if the file does not contain it; some settings are shares of it.
    #[arg(long, value_name = "SIZE")]
    pub(crate) card_memory: Option<Bytes>,

    /// Replay without the blocks of this line, category or module.
    #[arg(long, value_name = "WHAT")]
    without: Vec<Selector>,

    /// Replay with the sizes of this line, category or module multiplied by a factor.
    #[arg(long, value_name = "WHAT=FACTOR")]
    scale: Vec<Scale>,

    /// Replay with the blocks of this line, category or module freed at the end of the step that allocated
    /// them.
    #[arg(long, value_name = "WHAT")]
    each_step: Vec<Selector>,

    /// Replay this rank [default: the one that ran out of memory, else the fullest].
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,

    /// Replay this device [default: the one with the most events, in a recording the fullest].
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// Assume the allocator of this PyTorch release, for example 2.9; snapshots do not record the release.
    #[arg(long, value_name = "RELEASE")]
    pub(crate) torch: Option<Release>,

    #[command(flatten)]
    pub(crate) out: OutputArgs,
}

impl ReplayArgs {
    /// The requested changes to blocks.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let change = |of: &Selector, effect| Change { of: of.clone(), effect };
        let without = self.without.iter().map(|of| change(of, Effect::Drop));
        let scaled = self.scale.iter().map(|scale| change(&scale.of, Effect::Scale(scale.factor)));
        let each_step = self.each_step.iter().map(|of| change(of, Effect::EachStep));
        without.chain(scaled).chain(each_step).collect()
    }

    /// `true` if the replay is to differ from the recording.
    pub(crate) fn asks_what_if(&self) -> bool {
        let blocks = !(self.without.is_empty() && self.scale.is_empty() && self.each_step.is_empty());
        self.alloc_conf.is_some() || self.capacity.is_some() || blocks
    }
}

/// `activations=0.5`.
#[derive(Clone, Debug, PartialEq)]
struct Scale {
    of: Selector,
    factor: f64,
}

impl FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (of, factor) = text.rsplit_once('=').ok_or("write it as `activations=0.5`")?;
        let of = of.parse().map_err(|error: memfit_explain::SelectorError| error.to_string())?;
        let factor: f64 = factor
            .trim()
            .parse()
            .ok()
            .filter(|factor: &f64| factor.is_finite() && *factor >= 0.0)
            .ok_or_else(|| {
                format!("`{factor}` is not a factor: write a number of at least 0, such as 0.5")
            })?;
        Ok(Self { of, factor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_stands_behind_what_it_is_for() {
        let scale = |text: &str| text.parse::<Scale>();
        assert_eq!(
            scale("train.py:42=0.25"),
            Ok(Scale { of: Selector::Line { file: "train.py".to_owned(), line: 42 }, factor: 0.25 })
        );
        for text in ["activations", "activations=", "activations=-1", "activations=inf", "=2", "a.py:0=1"] {
            assert!(scale(text).is_err(), "{text}");
        }
    }
}
