//! Changes that the probe applies to training, in addition to watching it. They do not concern the device.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

use crate::{ChannelError, ClockMark, RunDir};

/// Changes that the probe applies to a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub struct Planned {
    /// `true` if the process stops before it first uses the device, and is forked there for each run.
    pub serves: bool,
    /// Maximum samples per forward and backward pass (micro-batch size).
    pub micro_batch: Option<u64>,
    /// Samples per batch of the script.
    pub batch: Option<u64>,
    /// `true` if the script builds its batches itself, with their size in a variable.
    pub by_name: bool,
    /// Batches of the loader per optimizer step.
    pub accumulate: u64,
    /// Batches of the loader after which the script itself steps its optimizer.
    pub own_accumulation: u64,
    /// Number of micro-batches per batch.
    pub pieces: u64,
    /// Micro-batches that are run of each batch, with one more in the last step; `None` if all are.
    pub most_pieces: Option<u64>,
    /// `true` if the script only runs forward passes: levers apply to its first one, and its batches are
    /// split without an optimizer step around them.
    pub infers: bool,
    /// Parallelism of the training that the process is a rank of; `None` for one GPU.
    pub parallel: Option<ParallelSetup>,
    /// Levers, in order.
    pub levers: Vec<LeverSetup>,
    /// `true` if repeated blocks are measured.
    pub measure: bool,
    /// Part of the run whose peaks are reported by themselves.
    pub part: Option<Part>,
}

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The training from the application of the levers on, without the memory for loading the model and
    /// applying them.
    Training,
    /// One forward pass under `inference_mode` instead of the training.
    Inference,
}

/// A rank's place in training that is spread over several. The degrees of parallelism are the setting of
/// the lever `shard`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParallelSetup {
    /// Rank of the process.
    pub rank: u32,
    /// Ranks per machine.
    pub per_machine: u32,
    /// How the script's training library distributes it; `None` if memfit applies the degrees.
    #[serde(default)]
    pub library: Option<LibrarySetup>,
}

/// How a training library distributes a script over the ranks, each of which gets an equal share of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LibrarySetup {
    /// Number of ranks.
    pub ranks: u32,
    /// `true` if they shard parameters, gradients and optimizer state; otherwise each has all of them.
    pub shards: bool,
    /// `true` if gathered parameters are freed after the forward pass.
    pub reshards: bool,
    /// Classes of the modules that are gathered one by one.
    pub blocks: Vec<String>,
    /// Environment variables that make the library do so.
    pub environment: BTreeMap<String, String>,
}

/// A lever with its setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeverSetup {
    /// Name of the lever.
    pub name: String,
    /// Setting.
    pub value: serde_json::Value,
}

impl Default for Planned {
    fn default() -> Self {
        Self {
            serves: false,
            micro_batch: None,
            batch: None,
            by_name: false,
            accumulate: 1,
            own_accumulation: 1,
            pieces: 1,
            most_pieces: None,
            infers: false,
            parallel: None,
            levers: Vec::new(),
            measure: false,
            part: None,
        }
    }
}

impl Planned {
    /// Returns `true` if the training differs from the script's.
    pub fn changes_training(&self) -> bool {
        self.micro_batch.is_some()
            || self.accumulate != self.own_accumulation
            || self.parallel.is_some()
            || !self.levers.is_empty()
            || self.part == Some(Part::Inference)
    }

    /// Number of micro-batches that represent all: the first creates the gradients, the second and all others
    /// add to them.
    const MIN_MICRO_BATCHES: u64 = 2;

    /// Returns the same plan limited to the micro-batches from which the others can be extrapolated.
    #[must_use]
    pub fn limited(self) -> Self {
        let most_pieces = (self.own_accumulation == 1 && self.pieces > Self::MIN_MICRO_BATCHES + 1)
            .then_some(Self::MIN_MICRO_BATCHES);
        Self { most_pieces, ..self }
    }

    /// Factor from the time of the last step to that of a whole step, extrapolated from the last two steps,
    /// of which the last had one more micro-batch; `None` if all were run, or if it cannot be derived.
    pub fn step_time_factor(&self, marks: &[ClockMark]) -> Option<f64> {
        let most = self.most_pieces?;
        let [.., first, second, third] = marks else { return None };
        let short = second.end.checked_sub(first.end)? as f64;
        let long = third.end.checked_sub(second.end).filter(|long| *long > 0)? as f64;
        let whole = short + self.pieces.saturating_sub(most) as f64 * (long - short).max(0.0);
        Some(whole / long)
    }

    /// Writes the plan to the file that the probe reads.
    pub fn write(&self, run_dir: &RunDir) -> Result<(), ChannelError> {
        let path = run_dir.plan();
        let text = serde_json::to_vec(self)
            .map_err(|error| ChannelError::Invalid { path: path.clone(), why: error.to_string() })?;
        fs::write(&path, text).map_err(|source| ChannelError::Io { path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_only_measures_changes_no_training() {
        assert!(!Planned { serves: true, measure: true, ..Planned::default() }.changes_training());
        assert!(!Planned { accumulate: 4, own_accumulation: 4, ..Planned::default() }.changes_training());
        for changed in [
            Planned { micro_batch: Some(2), ..Planned::default() },
            Planned { accumulate: 4, ..Planned::default() },
            Planned { part: Some(Part::Inference), ..Planned::default() },
            Planned {
                levers: vec![LeverSetup { name: "lora".to_owned(), value: 2.into() }],
                ..Planned::default()
            },
        ] {
            assert!(changed.changes_training(), "{changed:?}");
        }
    }

    #[test]
    fn the_time_of_a_whole_step_follows_from_two_short_ones() {
        let marks = |ends: &[u64]| -> Vec<ClockMark> {
            ends.iter().map(|end| ClockMark { end: *end, ..ClockMark::default() }).collect()
        };
        let stretch = |pieces, ends: &[u64]| {
            let planned = Planned { pieces, ..Planned::default() }.limited();
            planned.step_time_factor(&marks(ends)).map(|stretch| (stretch * 1000.0).round())
        };
        // Two micro-batches of 10 and a step of 5, then three of them: 35. Eight are 85.
        assert_eq!(stretch(8, &[100, 125, 160]), Some((85.0_f64 / 35.0 * 1000.0).round()));
        assert_eq!(stretch(3, &[100, 125, 160]), None, "all of them are run");
        assert_eq!(stretch(8, &[100, 125]), None);
    }
}
