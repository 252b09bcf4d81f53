//! `memfit.plan/1`: the result of a search for the fastest plan.

use memfit_vocabulary::{Bound, Framework, Label, Lever, Parallel, Value};
use serde::{Deserialize, Serialize};

use super::explain::FixProof;
use super::run::{AtPeak, Coverage, DeviceInfo, Peak, Problem};

/// The report of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanReport {
    /// [`schema::PLAN`](super::schema::PLAN).
    pub schema: String,
    /// The verdict; absent if there is none.
    pub verdict: Option<PlanVerdict>,
    /// The requested GPU.
    pub device: DeviceInfo,
    /// Bytes of its memory that a plan may use.
    pub budget: u64,
    /// Share of its memory that stays free.
    pub margin: f64,
    /// The largest change to the training that was allowed.
    pub allow: Label,
    /// The unchanged script; if it does not fit, a run with unlimited memory.
    pub baseline: Option<PlanRun>,
    /// The fastest plan that fits.
    pub chosen: Option<PlanRun>,
    /// Largest micro-batch of the plan.
    pub limit: Option<PlanLimit>,
    /// Pareto front of the candidates in memory and time, fastest first.
    pub pareto: Vec<PlanRun>,
    /// Levers that are not in the plan, with reasons.
    pub rejected: Vec<RejectedLever>,
    /// Next steps, or changes to allow.
    pub advice: Vec<String>,
    /// The smallest GPU of the catalogue on which a run of the unchanged script fits.
    pub smallest_card: Option<SmallestCard>,
    /// Parts of the training that a run of the unchanged script included; the plan's runs included no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<Coverage>,
    /// Runs of the script.
    pub evaluations: u64,
    /// Seconds from the start to the answer.
    pub wall_s: f64,
    /// `true` if the search ended early: it was interrupted, or reached its limit of runs. Without a plan
    /// there is then no verdict.
    pub interrupted: bool,
    /// The fewest GPUs on which a run of the plan fits, if it is for several.
    #[serde(default)]
    pub fewest_gpus: Option<u32>,
    /// Number of machines, each with that many GPUs.
    pub nodes: u32,
    /// Links between the GPUs, as given by the user.
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
    /// The plan as a patch of the script, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<PlanPatch>,
    /// Reason why there is no answer.
    pub problem: Option<Problem>,
}

/// A plan as a patch of a script.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanPatch {
    /// The script, as named in the patch.
    pub file: String,
    /// A unified diff for `git apply` and `patch -p1`; empty if there is no patch.
    pub diff: String,
    /// The file that it was written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// The levers in the patch.
    pub levers: Vec<String>,
    /// Levers that the patch leaves out, with reasons.
    pub left: Vec<RejectedLever>,
    /// Remarks for users who apply the patch.
    pub remarks: Vec<String>,
    /// Result of running the changed script with the memory that a plan may use.
    pub proof: Option<FixProof>,
    /// Comparison of the changed script's training with the original's, on this machine's CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<PatchNumbers>,
}

/// Comparison of the original and the changed script on this machine's CPU, with small batches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PatchNumbers {
    /// `true` if all gradients, updates, buffers and optimizer settings are equal within rounding; absent if
    /// they could not be compared.
    pub equal: Option<bool>,
    /// Reason why they could not be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Levers in the compared script; levers that reduce precision are left out.
    pub levers: Vec<String>,
    /// Optimizer steps that were compared.
    pub steps: u64,
    /// Maximum samples in a batch.
    pub batch: u64,
    /// Samples in a micro-batch, if the batch was split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u64>,
    /// Largest relative difference between gradients, or of `state`; absent if it is not finite.
    pub difference: Option<f64>,
    /// The parameter whose gradient has the largest difference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// The buffer, other parameter or optimizer setting that differs although the gradients are equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The first line in which the changed script prints other numbers, and the original line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printed: Option<(String, String)>,
}

impl PatchNumbers {
    /// The difference, as part of a sentence.
    pub fn difference_told(&self) -> String {
        if let Some(name) = &self.state {
            return match self.difference {
                Some(share) if share < 10.0 => format!("`{name}` differs by {:.3} %", share * 100.0),
                Some(share) => format!("`{name}` differs by a factor of {share:.3}"),
                None => format!("`{name}` differs"),
            };
        }
        let of = self.parameter.as_ref().map_or(String::new(), |name| format!(" of `{name}`"));
        match self.difference {
            Some(share) if share < 0.001 => format!("gradients{of} differ by {share:.1e}"),
            Some(share) if share < 10.0 => format!("gradients{of} differ by {:.3} %", share * 100.0),
            Some(share) => format!("gradients{of} differ by a factor of {share:.3}"),
            None => format!("a gradient{of} is NaN or infinite"),
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
    /// Does not fit with any allowed lever.
    DoesNotFit,
}

/// One plan that was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanRun {
    /// The levers, including the micro-batch.
    pub levers: Vec<PlanLever>,
    /// Maximum samples in one forward and backward pass; absent if no loader reports it.
    pub micro_batch: Option<u64>,
    /// Forward and backward passes in one optimizer step.
    pub micro_batches_per_step: u64,
    /// The loader's batches in one optimizer step.
    pub accumulate: u64,
    /// How the training is spread over several GPUs; absent for one.
    #[serde(default)]
    pub parallel: Option<Parallel>,
    /// The label of that parallelism for this training; absent for one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_label: Option<Label>,
    /// Training library whose settings spread the training; absent where `memfit.Step` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<Framework>,
    /// Ranks that were run.
    #[serde(default)]
    pub ranks: Vec<PlanRank>,
    /// Number of GPUs that the run used; a plan for several GPUs is run as one rank at a time.
    #[serde(default)]
    pub gpus_used: u32,
    /// The kind of work that takes most of a step; absent if its time is unknown.
    #[serde(default)]
    pub bound_by: Option<Bound>,
    /// The peaks.
    pub peak: Peak,
    /// Estimated milliseconds of an optimizer step on the GPU.
    pub step_ms_estimate: Option<f64>,
    /// Lower bound of the estimate, within the accuracy of the model.
    pub step_ms_low: Option<f64>,
    /// Upper bound of the estimate, within the accuracy of the model.
    pub step_ms_high: Option<f64>,
    /// `true` if a run on the GPU fits.
    pub fits: bool,
    /// `true` if a run on the GPU does not fit.
    #[serde(default)]
    pub refuted: bool,
    /// Memory at the peak by category.
    pub at_peak: Option<AtPeak>,
}

/// The run of one rank of a plan for several GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRank {
    /// Number.
    pub rank: u32,
    /// Peaks.
    pub peak: Peak,
}

/// One lever of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanLever {
    /// Name of the lever.
    #[serde(rename = "name")]
    pub lever: Lever,
    /// Setting.
    pub value: Value,
    /// Label for this training.
    pub label: Label,
    /// Reason why the label could not be verified; it is then the worst possible one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverified: Option<String>,
}

/// Largest micro-batch of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanLimit {
    /// The largest batch size that fits in a run.
    pub largest: u64,
    /// A batch size that does not fit in a run; absent if the whole batch fits.
    pub refuted: Option<u64>,
}

/// A lever that is not in the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedLever {
    /// Name.
    pub lever: String,
    /// Reason.
    pub why: String,
}

/// A GPU on which the unchanged script fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallestCard {
    /// Name.
    pub name: String,
    /// Memory in bytes.
    pub capacity: u64,
}
