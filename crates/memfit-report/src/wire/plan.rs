//! `memfit.plan/1`: what a search for the fastest plan found.

use memfit_vocabulary::{Bound, Label, Lever, Parallel, Value};
use serde::{Deserialize, Serialize};

use super::explain::FixProof;
use super::run::{AtPeak, DeviceInfo, Peak, Problem};

/// The report of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanReport {
    /// [`schema::PLAN`](super::schema::PLAN).
    pub schema: String,
    /// The answer; nothing where the question could not be answered.
    pub verdict: Option<PlanVerdict>,
    /// The GPU that the question was about.
    pub device: DeviceInfo,
    /// Bytes of it that a plan may take.
    pub budget: u64,
    /// The share of it that stays free.
    pub margin: f64,
    /// The largest change to the training that was allowed.
    pub allow: Label,
    /// The script as it is; where it does not fit, as it would be on a GPU with memory without end.
    pub baseline: Option<PlanRun>,
    /// The fastest plan that fits.
    pub chosen: Option<PlanRun>,
    /// Largest micro-batch of the plan.
    pub limit: Option<PlanLimit>,
    /// Candidates that no other one beats in both memory and time, the fastest first.
    pub pareto: Vec<PlanRun>,
    /// Levers that are not in the plan, and why.
    pub rejected: Vec<RejectedLever>,
    /// Further steps, or changes to allow.
    pub advice: Vec<String>,
    /// The smallest GPU of the catalogue on which the script was seen to fit as it is.
    pub smallest_card: Option<SmallestCard>,
    /// Runs of the script.
    pub evaluations: u64,
    /// Seconds from the start to the answer.
    pub wall_s: f64,
    /// `true` if it was interrupted.
    pub interrupted: bool,
    /// The fewest of the GPUs on which the plan was seen to fit, if it is for several.
    #[serde(default)]
    pub fewest_gpus: Option<u32>,
    /// Machines with that many GPUs each.
    pub nodes: u32,
    /// Links between the GPUs that the user named.
    #[serde(default)]
    pub links: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
    /// `torch.__version__`.
    pub torch: Option<String>,
    /// The command.
    pub command: Vec<String>,
    /// The plan file that was written.
    pub plan: Option<String>,
    /// The plan as a change of the script, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<PlanPatch>,
    /// Why there is no answer.
    pub problem: Option<Problem>,
}

/// A plan as a change of a script's source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanPatch {
    /// The script, as the change names it.
    pub file: String,
    /// A unified diff, as `git apply` and `patch -p1` take it; empty where nothing could be written.
    pub diff: String,
    /// The file that it was written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// The levers that are in it.
    pub levers: Vec<String>,
    /// Levers that the change leaves out, with reasons.
    pub left: Vec<RejectedLever>,
    /// Remarks for people who apply it.
    pub remarks: Vec<String>,
    /// Result of running the changed script with the memory that a plan may use.
    pub proof: Option<FixProof>,
    /// Comparison of the changed script's gradients with the original's, on this machine's CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<PatchNumbers>,
}

/// The script and the changed script, computed on this machine's processor with small batches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PatchNumbers {
    /// `true` if all gradients are equal within rounding; absent if they could not be compared.
    pub equal: Option<bool>,
    /// Why they could not be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Levers that were in the change; those of fewer bits are left out of it.
    pub levers: Vec<String>,
    /// Optimizer steps that were compared.
    pub steps: u64,
    /// Samples in a batch, at most.
    pub batch: u64,
    /// Samples in a part of a batch, where it was divided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u64>,
    /// The largest relative difference of a gradient; nothing where one has no number in it.
    pub difference: Option<f64>,
    /// The parameter that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// The first line that the changed script prints with other numbers, and the script's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printed: Option<(String, String)>,
}

impl PatchNumbers {
    /// Difference of the gradients, as part of a sentence.
    pub fn difference_told(&self) -> String {
        let of = self.parameter.as_ref().map_or(String::new(), |name| format!(" of `{name}`"));
        match self.difference {
            Some(share) if share < 0.001 => format!("gradients{of} differ by {share:.1e}"),
            Some(share) if share < 10.0 => format!("gradients{of} differ by {:.3} %", share * 100.0),
            Some(share) => format!("gradients{of} differ by a factor of {share:.3}"),
            None => format!("a gradient{of} is no number"),
        }
    }
}

/// The answer of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanVerdict {
    /// Without any change.
    FitsAsIs,
    /// With the plan.
    FitsWithPlan,
    /// With nothing that is allowed.
    DoesNotFit,
}

/// One plan that was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanRun {
    /// The levers, that of the micro-batch among them.
    pub levers: Vec<PlanLever>,
    /// Samples in one forward and backward, at most; nothing where no loader told.
    pub micro_batch: Option<u64>,
    /// Forwards and backwards in one optimizer step.
    pub micro_batches_per_step: u64,
    /// The loader's batches in one optimizer step.
    pub accumulate: u64,
    /// Spread over several GPUs; absent for one.
    #[serde(default)]
    pub parallel: Option<Parallel>,
    /// The label of that spread for this training; absent for one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_label: Option<Label>,
    /// Ranks that were run.
    #[serde(default)]
    pub ranks: Vec<PlanRank>,
    /// Part that takes most of a step; absent where its time is not known.
    #[serde(default)]
    pub bound_by: Option<Bound>,
    /// The peaks.
    pub peak: Peak,
    /// Milliseconds that an optimizer step takes on the GPU, as an estimate.
    pub step_ms_estimate: Option<f64>,
    /// No less than this, as far as the model goes.
    pub step_ms_low: Option<f64>,
    /// No more than this.
    pub step_ms_high: Option<f64>,
    /// `true` if a run on the GPU fitted.
    pub fits: bool,
    /// `true` if it was run on the GPU and did not fit.
    #[serde(default)]
    pub refuted: bool,
    /// Memory at the peak by category.
    pub at_peak: Option<AtPeak>,
}

/// One rank of a plan for several GPUs, as it was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRank {
    /// Its number.
    pub rank: u32,
    /// Its peaks.
    pub peak: Peak,
}

/// One lever of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanLever {
    /// Name of the lever.
    #[serde(rename = "name")]
    pub lever: Lever,
    /// Its setting.
    pub value: Value,
    /// Its label for this training.
    pub label: Label,
    /// Why the label is not known to be true, where it is the worst that may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverified: Option<String>,
}

/// Largest micro-batch of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanLimit {
    /// The most samples together that were seen to fit.
    pub largest: u64,
    /// A size that was seen not to fit; absent if the whole batch fits.
    pub refuted: Option<u64>,
}

/// A lever that is not in the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedLever {
    /// Its name.
    pub lever: String,
    /// Why.
    pub why: String,
}

/// A GPU on which the script fits as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallestCard {
    /// Its name.
    pub name: String,
    /// Its memory in bytes.
    pub capacity: u64,
}
