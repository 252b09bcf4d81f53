//! Remarks on the accuracy of the figures.

use memfit_vocabulary::Remark;

/// The possible effect of a remark on the peaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// No effect on sizes: it concerns only who held the memory, or a duration.
    None,
    /// At most the booked amount: the true size may be up to about twice as large.
    Booked,
    /// The figure is an upper bound: the true peak may be lower by up to the booked amount.
    Bound,
    /// At most the amount that the remark states.
    Stated,
    /// Nothing bounds it.
    Unbounded,
}

impl Effect {
    /// The wording for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::None => "changes no peak",
            Self::Booked => "may be off by up to the counted amount",
            Self::Bound => "an upper bound: may be lower by up to the counted amount",
            Self::Stated => "as stated in the text",
            Self::Unbounded => "no known bound",
        }
    }
}

/// The text of a remark, with `{placeholders}`, and its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemarkText {
    /// The text for people.
    pub text: &'static str,
    /// Possible effect.
    pub effect: Effect,
}

impl RemarkText {
    /// The row of a remark.
    pub const fn for_remark(remark: Remark) -> Self {
        let (effect, text) = row(remark);
        Self { text, effect }
    }
}

const fn row(remark: Remark) -> (Effect, &'static str) {
    use Effect::{Booked, Bound, None, Stated, Unbounded};
    match remark {
        Remark::CudnnFind => (Booked, "`cudnnFindConvolution`: ranked by heuristics, not by timing"),
        Remark::CudnnLayout => (Booked, "cuDNN before 9.8: workspace sizes assume the layout of 9.8"),
        Remark::CudnnCard => (Unbounded, "cuDNN has no heuristics for this GPU: its workspaces are unknown"),
        Remark::CufftAreas => (Booked, "cuFFT: work area sizes from the formula in its documentation"),
        Remark::Cupti => (None, "CUPTI: the profiler records no GPU activity"),
        Remark::CusparseBuffers => (Booked, "cuSPARSE: buffer sizes from formulas"),
        Remark::CusparseProduct => {
            (Booked, "cuSPARSE: the number of entries of a sparse product is estimated")
        }
        Remark::CusparseSum => {
            (Bound, "cuSPARSE: the number of entries of a sparse sum is at its upper bound")
        }
        Remark::CusolverWorkspaces => (Booked, "cuSOLVER: workspace sizes from LAPACK's formulas"),
        Remark::NcclSplit => (None, "`ncclCommSplit`: the new communicator has the parent's size"),
        Remark::RanksFull => (Unbounded, "ranks could not exchange values: the run's directory is full"),
        Remark::RankSilent => {
            (Unbounded, "a rank did not receive another rank's values in time, and assumed them")
        }
        Remark::StaticRuntime => (Unbounded, "`{library}` was not loaded: it contains its own CUDA runtime"),
        Remark::Checkpoints => (
            None,
            "checkpoints went to the run's own folder, where the script finds them; in a dry run they hold zeros",
        ),
        Remark::PythonSkipped => (
            None,
            "`{path}`, the first on `PATH`, has no PyTorch; ran `{python}`, the interpreter next to memfit",
        ),
        Remark::FilesKept => (
            None,
            "files that the script overwrote, renamed or removed are unchanged on your disk: only the script sees these changes",
        ),
        Remark::SyntheticData => (Unbounded, "synthetic data: {what}"),
        Remark::SyntheticWeights => {
            (None, "synthetic weights: {what}; values are zeros, shapes and data types are real")
        }
        Remark::LoneRank => {
            (Unbounded, "only rank {rank} of {size} ran: data from other ranks is assumed to equal its own")
        }
        Remark::NoLoader => (
            Unbounded,
            "neither an evaluation nor a batch of the data set's largest items was run: the training uses no `torch.utils.data.DataLoader`",
        ),
        Remark::LargestBatch => (Unbounded, "no batch of the data set's largest items was run: {why}"),
        Remark::LargestSeen => {
            (Unbounded, "the batch of the largest items was chosen from the items that were read: {items}")
        }
        Remark::AllAlike => (Unbounded, "all items are assumed to have the same size: {items}"),
        Remark::NoWatcher => {
            (None, "the watcher library is not loaded, so it is unknown what fills the memory")
        }
        Remark::NoSizes => (None, "requested sizes of tensors are unknown: {error}"),
        Remark::NoPlace => (None, "the line that ran out of memory is unknown: {error}"),
        Remark::ProbeLabel => (None, "the probe could not {what}: {error}"),
        Remark::ProbeFailed => (None, "the probe failed {where}: {error}"),
        Remark::ProbeUnarmed => (Unbounded, "the probe could not install itself: {error}"),
        Remark::PlanFailed => (Unbounded, "applying the plan failed {where}: {error}"),
        Remark::TrainerKept => (Unbounded, "the Trainer's settings were not changed: {error}"),
        Remark::TrainerSettings => (
            None,
            "the plan's micro-batch was set in the Trainer's own settings: per_device_train_batch_size={size}, gradient_accumulation_steps={accumulate}",
        ),
        Remark::Garbled => (None, "{count} messages from the script's processes could not be read"),
        Remark::LogFull => (
            None,
            "a process's event log ended before the process, at its limit of 1 GiB or because it could not be extended, such as on a full disk: the breakdown by category covers only the events up to then",
        ),
        Remark::TallyFull => (Unbounded, "the list of calls and values was full: there may have been others"),
        Remark::Pieces => (
            None,
            "only {run} of a batch's {pieces} micro-batches ran, since later ones allocate the same; times are for the whole batch",
        ),
        Remark::LeverRefused => (Unbounded, "the plan's `{lever}` was not applied: {why}"),
        Remark::PlanDiffers => (Unbounded, "{difference}"),
        Remark::TorchUntried => (
            Unbounded,
            "memfit has not been tested with PyTorch {torch}, only with {tried}: some calls may be modelled wrongly",
        ),
        Remark::Stalled => (
            Unbounded,
            "{who} made no progress for 10 s after the others had completed their steps; the figures cover what ran",
        ),
        Remark::CrashedAtEnd => (
            None,
            "the process was killed by {signal} while it shut down, after the script's last line: the figures are complete",
        ),
        Remark::NotCovered => (Unbounded, "`--cover full` found no {what}"),
        Remark::Sampled => (
            Unbounded,
            "on a real GPU the device peak is the largest of samples that are taken every 0.2 to 2 s; the other peaks are PyTorch's own counters",
        ),
        Remark::FirstCard => (Unbounded, "only the machine's first GPU was watched"),
        Remark::Pending => (
            Stated,
            "{mib} MiB at the peak were freed but still waiting for another stream, by the estimated clock; `--clock instant` and `--clock never` give the bounds",
        ),
        Remark::WaitsForData => (
            None,
            "the GPU would wait for data: {how} loads a step's batches in {loading} ms on this host, and a step takes {step} ms (at most {high} ms); `memfit data --loader` measures more workers",
        ),
        Remark::ClockInstant => (
            Unbounded,
            "`--clock instant`: all GPU work counted as done at once, a lower bound for memory that streams share",
        ),
        Remark::ClockNever => (
            Unbounded,
            "`--clock never`: GPU work counted as done only once the script waited for it, an upper bound for memory that streams share",
        ),
        Remark::Outside => (
            Stated,
            "memory outside PyTorch's allocator is modelled from measurements with torch for CUDA {cuda}: the device peak is a best guess, and its upper bound decides the verdict",
        ),
        Remark::OutsideStack => (
            Unbounded,
            "memory outside PyTorch's allocator was measured with torch for CUDA {seen}, and this torch is for CUDA {cuda}: that memory may exceed the interval",
        ),
        Remark::Calibrated => {
            (None, "the GPU's memory, overhead outside PyTorch's allocator and speeds are from {source}")
        }
        Remark::OtherProcesses => (Stated, "other processes are {how} to hold {held} of the GPU"),
        Remark::OneGpuUsed => (
            None,
            "only GPU {gpu} of {count} was used: a process uses another one only where the script places tensors on it; `memfit plan --gpu {all}` plans for all of them",
        ),
        Remark::UnevenGpus => (
            None,
            "the GPUs are used unevenly, at most {listed}: move layers with about {move} from GPU {gpu} to the others. In a model that is split by layers, one GPU computes at a time; `memfit plan --gpu {all}` with the script for one GPU plans data parallelism, in which all of them compute at the same time",
        ),
        Remark::DataParallel => (
            None,
            "`nn.DataParallel` copies the model to every GPU in each forward pass, and gathers outputs and gradients on the first GPU, which fills first; `DistributedDataParallel`, started by torchrun, needs the same memory on each GPU and is faster",
        ),
    }
}
