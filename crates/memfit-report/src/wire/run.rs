//! `memfit.run/1`: the report of a run.

use std::collections::BTreeMap;

use memfit_devices::Origin;
use memfit_vocabulary::{Category, Cause, Phase};
use serde::{Deserialize, Serialize};

use super::explain::{CodeLine, Fix};
use super::problem::ProblemKind;

/// The report of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// [`schema::RUN`](super::schema::RUN).
    pub schema: String,
    /// The answer.
    pub verdict: Verdict,
    /// The requested GPU.
    pub device: DeviceInfo,
    /// The peaks of the rank with the highest device peak.
    pub peak: Peak,
    /// The peaks with sizes that depend on computed values at their lower and upper bounds, if both were run.
    #[serde(default)]
    pub peak_interval: Option<PeakInterval>,
    /// Capacity minus the upper bound of the device peak.
    pub headroom: i64,
    /// Completed optimizer steps, or forward passes of a script without an optimizer.
    pub steps: u64,
    /// Parts of the training run that the completed steps included.
    pub coverage: Coverage,
    /// Memory at the peak by category; absent if nothing was recorded.
    pub at_peak: Option<AtPeak>,
    /// Typical size of the memory outside PyTorch's allocator at the device peak.
    pub outside: Outside,
    /// The parts of that memory, each with its interval and origin.
    #[serde(default)]
    pub outside_parts: Vec<OutsidePart>,
    /// The host's side.
    pub host: Host,
    /// The out-of-memory error, if there was one.
    pub oom: Option<Oom>,
    /// Cause of the out-of-memory error, as `memfit explain` reports it for the same recording; absent if
    /// memory did not run out, or nothing was recorded.
    #[serde(default)]
    pub cause: Option<Cause>,
    /// Remedies, best first. `evidence` `run` means that another run confirmed it.
    #[serde(default)]
    pub fixes: Vec<Fix>,
    /// The same peaks for each rank.
    pub ranks: Vec<Rank>,
    /// Peaks of each GPU, with the memory of all processes; empty on a real GPU.
    #[serde(default)]
    pub gpus: Vec<GpuPeak>,
    /// Wall time of the run, and the estimated time of a step.
    pub time: Time,
    /// Assumptions and gaps behind the figures.
    pub fidelity: Fidelity,
    /// `torch.__version__`.
    pub torch: Option<String>,
    /// The recording that was saved.
    pub recording: Option<String>,
    /// Outcome of the script itself.
    pub script: Script,
    /// The plan that was applied, with its levers.
    #[serde(default)]
    pub plan: Option<String>,
    /// Reason for the verdict `error` or `unknown`.
    pub problem: Option<Problem>,
}

/// The answer of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The steps that ran fit.
    Fits,
    /// Memory runs out.
    Oom,
    /// Something that is not modelled could change the verdict.
    Unknown,
    /// There is no answer.
    Error,
}

/// A virtual GPU, or a real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CardKind {
    /// Simulated.
    Virtual,
    /// In the machine.
    Real,
}

/// The requested GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// The name that the driver reports.
    pub name: String,
    /// Total memory in bytes, as PyTorch sees it.
    pub capacity: u64,
    /// Number of GPUs.
    pub count: u32,
    /// Virtual or real.
    pub kind: CardKind,
}

/// The three peaks in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// Tensors: bytes in used blocks of the allocator.
    pub allocated: u64,
    /// Segments that the allocator holds.
    pub reserved: u64,
    /// Memory used on the device: reserved memory plus the typical size of memory outside the allocator.
    pub device: u64,
    /// The same with memory outside the allocator at its upper bound; the verdict uses this.
    pub device_upper: u64,
}

/// The peaks at both bounds of sizes that depend on computed values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakInterval {
    /// With these sizes at their lower bounds.
    pub lower: PeakEnd,
    /// With these sizes at their upper bounds.
    pub upper: PeakEnd,
}

/// One bound of the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakEnd {
    /// The peaks; if memory ran out, those reached before.
    #[serde(flatten)]
    pub peak: Peak,
    /// `true` if it ran out of memory.
    pub out_of_memory: bool,
    /// `true` if it completed the same steps as the other bound, so that its peak is comparable.
    pub completed: bool,
}

/// Parts of the training run that the completed steps included.
#[expect(clippy::struct_excessive_bools, reason = "the contract's shape")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Completed steps.
    pub steps: u64,
    /// `true` if no optimizer stepped; `steps` then counts forward passes of the outermost module.
    #[serde(default)]
    pub forward_only: bool,
    /// `true` if an evaluation ran.
    pub evaluation: bool,
    /// `true` if a batch of the data set's largest items ran.
    pub largest_batch: bool,
    /// `true` if an epoch ended.
    pub epoch_end: bool,
    /// `true` if the training takes its batches from a `torch.utils.data.DataLoader`.
    #[serde(default)]
    pub has_loader: bool,
    /// Growth of the allocated bytes per step after warm-up; absent if too few steps ran, or if their memory
    /// differs too much.
    pub growth_per_step: Option<i64>,
    /// Statements that use the GPU and did not run before the run was ended.
    #[serde(default)]
    pub not_run: Vec<NotRun>,
}

/// A statement of the script that did not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRun {
    /// File and line.
    pub place: String,
    /// First line of its source.
    pub code: String,
}

/// Bytes by category, in the order of [`Category::ALL`]. Serialises as an object with every category.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CategoryBytes(BTreeMap<Category, u64>);

impl CategoryBytes {
    /// The bytes of a category.
    pub fn get(&self, category: Category) -> u64 {
        self.0.get(&category).copied().unwrap_or(0)
    }

    /// All bytes together.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The non-empty categories, largest first.
    pub fn by_size(&self) -> Vec<(Category, u64)> {
        let mut present: Vec<_> = self
            .0
            .iter()
            .map(|(category, bytes)| (*category, *bytes))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        present.sort_by_key(|(category, bytes)| (std::cmp::Reverse(*bytes), *category));
        present
    }
}

impl FromIterator<(Category, u64)> for CategoryBytes {
    fn from_iter<I: IntoIterator<Item = (Category, u64)>>(entries: I) -> Self {
        let mut bytes = BTreeMap::new();
        // Empty entries are dropped, so that equal values have one representation.
        for (category, count) in entries.into_iter().filter(|(_, count)| *count > 0) {
            *bytes.entry(category).or_insert(0) += count;
        }
        Self(bytes)
    }
}

impl Serialize for CategoryBytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Category::ALL.iter().map(|category| (category.name(), self.get(*category))))
    }
}

impl<'de> Deserialize<'de> for CategoryBytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::<Category, u64>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Memory by category at the first moment with the most allocated bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtPeak {
    /// The step in progress, counted from 1.
    pub step: u64,
    /// The phase of the step.
    pub phase: Phase,
    /// Bytes in used blocks at that moment.
    pub allocated: u64,
    /// Bytes in segments then.
    pub reserved: u64,
    /// Parts of `reserved`, which they sum to.
    pub by_category: CategoryBytes,
    /// The modules with the most allocated bytes at that moment.
    pub modules: Vec<ModuleBytes>,
    /// Tensors that belong to no module; absent if there are none.
    #[serde(default)]
    pub outside_modules: Option<OutsideModules>,
}

/// Memory of tensors that belong to no module, such as batches and results that the script keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideModules {
    /// Requested bytes.
    pub bytes: u64,
    /// The line of the script that allocated most of it; absent if a module has more, or if stacks were not
    /// recorded.
    pub line: Option<CodeLine>,
}

/// Memory of one module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleBytes {
    /// The name in `named_modules()`.
    pub name: String,
    /// Live bytes that were requested for it.
    pub bytes: u64,
}

/// Memory outside PyTorch's allocator, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// CUDA contexts of this run.
    pub context: u64,
    /// cuBLAS, cuDNN and similar libraries.
    pub libraries: u64,
    /// NCCL's buffers.
    pub communication: u64,
    /// Programs unrelated to this run.
    pub other_processes: u64,
}

/// One part of the memory outside the allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsidePart {
    /// Name of the field in [`Outside`].
    pub name: String,
    /// No less than this.
    pub low: u64,
    /// Typical size, which the field has.
    pub typical: u64,
    /// Upper bound, which the verdict uses.
    pub high: u64,
    /// Origin of the figure.
    pub origin: Origin,
    /// Source.
    pub source: String,
}

impl Outside {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.context + self.libraries + self.communication + self.other_processes
    }
}

/// Host memory: peaks over the run, summed over its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Resident memory; shared pages count once.
    pub rss: u64,
    /// Page-locked memory.
    pub pinned: u64,
    /// Growth of `/dev/shm`.
    pub shared_memory: u64,
}

/// An out-of-memory error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oom {
    /// `true` if the script caught it.
    pub caught: bool,
    /// Requested bytes, as in PyTorch's message: the size of the segment.
    pub requested: u64,
    /// The step in progress, counted from 1.
    pub step: u64,
    /// The phase of the step.
    pub phase: Phase,
    /// The innermost module.
    pub module: Option<String>,
    /// `true` if it was in the forward pass of an evaluation.
    #[serde(default)]
    pub evaluation: bool,
    /// Python frames: the user's own, innermost first, then those of libraries, innermost first.
    pub stack: Vec<String>,
    /// PyTorch's message, verbatim.
    pub message: Option<String>,
}

/// One rank's peaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Number of the rank.
    pub rank: u32,
    /// The GPU that the rank used most.
    pub card: u32,
    /// Peaks.
    #[serde(flatten)]
    pub peak: Peak,
}

/// Peaks of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPeak {
    /// Its number.
    pub gpu: u32,
    /// Used memory with the typical size of what is outside PyTorch's allocator; 0 if the GPU was not used.
    pub device: u64,
    /// The same with the upper bound of what is outside.
    pub device_upper: u64,
}

impl GpuPeak {
    /// Returns `true` if the script used the GPU.
    pub const fn was_used(&self) -> bool {
        self.device > 0
    }
}

/// Wall time of the run, and the estimated time of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Time {
    /// Seconds of the first run. Runs with other assumed values and runs that try remedies are not included.
    pub wall_s: f64,
    /// Estimated milliseconds of a step on the GPU, or of a forward pass for inference; absent if there is no
    /// estimate.
    pub step_ms_estimate: Option<f64>,
    /// Lower bound of the estimate, within the accuracy of the model.
    #[serde(default)]
    pub step_ms_low: Option<f64>,
    /// Upper bound of the estimate, within the accuracy of the model.
    #[serde(default)]
    pub step_ms_high: Option<f64>,
    /// Milliseconds of GPU work in a step, by kind; concurrent work counts for each kind.
    #[serde(default)]
    pub busy_ms: BTreeMap<String, f64>,
    /// Clock of the run: `estimate`, `instant` or `never`; absent on a real GPU.
    #[serde(default)]
    pub clock: Option<String>,
}

/// Assumptions and gaps behind the figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fidelity {
    /// Refused calls that the virtual device does not model.
    pub unmodelled: Vec<CallCount>,
    /// Values that a kernel would have computed and the script read, by the assumed value.
    pub values: Vec<AssumedValue>,
    /// Further remarks.
    pub notes: Vec<String>,
    /// Possible effect of each on the peaks, in this order: calls, values, notes.
    #[serde(default)]
    pub effects: Vec<PossibleEffect>,
}

/// Possible effect of one uncertainty on the peaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PossibleEffect {
    /// Stable name: a remark from docs/remarks.md, or `unmodelled`, `value`, `number`, `condition`, `size`,
    /// `size-unbounded`.
    pub id: String,
    /// The call, the value or the note.
    pub what: String,
    /// Upper bound of the effect in bytes; absent if unbounded.
    pub bytes: Option<u64>,
    /// Explanation of that bound.
    pub why: String,
}

/// A name, and the number of its occurrences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCount {
    /// The name.
    pub call: String,
    /// Number of occurrences.
    pub count: u64,
}

/// A value that was assumed, and the lines of the script that read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssumedValue {
    /// Description.
    pub call: String,
    /// Number of times it was read.
    pub count: u64,
    /// First lines of the script that read it, as `file:line in function`; empty if unknown.
    #[serde(default)]
    pub lines: Vec<String>,
}

/// Outcome of the script itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// The command as it was started.
    pub command: Vec<String>,
    /// The interpreter that ran it.
    pub interpreter: Option<String>,
    /// Exit status, if it ended by itself.
    pub exit_status: Option<i32>,
    /// The signal that ended it, unless memfit sent it.
    pub signal: Option<String>,
    /// The uncaught exception.
    pub exception: Option<Exception>,
}

/// An uncaught exception.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    /// Qualified name of the type.
    pub r#type: String,
    /// `str(exception)`.
    pub message: String,
    /// The traceback, as Python prints it.
    pub traceback: String,
}

/// Reason why there is no answer, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Stable name; docs/problems.md lists all.
    pub kind: ProblemKind,
    /// Description.
    pub message: String,
    /// Advice.
    pub hint: Option<String>,
}
