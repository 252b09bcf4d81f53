//! Remarks on how far the figures can be trusted.

use memfit_vocabulary::Remark;

/// What the matter of a remark may change in the peaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: only who held the memory, or how long something took.
    None,
    /// As much as was booked for it: the true size may be anything up to about twice that.
    Booked,
    /// It is an upper bound: the true peak may be lower by as much as was booked.
    Bound,
    /// As much as the remark itself states.
    Stated,
    /// Nothing bounds it.
    Unbounded,
}

impl Effect {
    /// The wording for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::None => "changes no peak",
            Self::Booked => "may be off by as much as was booked for it",
            Self::Bound => "an upper bound: may be lower by as much as was booked for it",
            Self::Stated => "as much as it says",
            Self::Unbounded => "nothing bounds what it changes",
        }
    }
}

/// The text of a remark, with `{placeholders}`, and its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemarkText {
    /// The sentence for people.
    pub text: &'static str,
    /// What it may change.
    pub effect: Effect,
}

impl RemarkText {
    /// The row of a remark.
    pub const fn of(remark: Remark) -> Self {
        let (effect, text) = row(remark);
        Self { text, effect }
    }
}

const fn row(remark: Remark) -> (Effect, &'static str) {
    use Effect::{Booked, Bound, None, Stated, Unbounded};
    match remark {
        Remark::CudnnFind => (Booked, "cudnnFindConvolution: ranked by heuristics"),
        Remark::CudnnLayout => (Booked, "cuDNN before 9.8: sizes by an assumed layout"),
        Remark::CudnnCard => (Unbounded, "cuDNN: no heuristics for this card"),
        Remark::CufftAreas => (Booked, "cuFFT: work areas by the guide's formula"),
        Remark::Cupti => (None, "CUPTI: no activity of the device is recorded"),
        Remark::CusparseBuffers => (Booked, "cuSPARSE: buffers by formulas"),
        Remark::CusparseProduct => (Booked, "cuSPARSE: a product's entries are estimated"),
        Remark::CusparseSum => (Bound, "cuSPARSE: a sum's entries at their upper bound"),
        Remark::CusolverWorkspaces => (Booked, "cuSOLVER: workspaces by LAPACK's formulas"),
        Remark::NcclSplit => (None, "ncclCommSplit: size taken from the whole"),
        Remark::RanksFull => (Unbounded, "ranks cannot exchange values: run directory full"),
        Remark::RankSilent => (Unbounded, "a rank did not answer another: values guessed"),
        Remark::StaticRuntime => (Unbounded, "`{library}` was not loaded: it has a CUDA runtime of its own"),
        Remark::Checkpoints => (
            None,
            "checkpoints were written to the run's own folder, where the script finds them: in a dry run they hold zeros",
        ),
        Remark::PythonSkipped => (
            None,
            "`{path}`, which `PATH` names first, has no PyTorch: `{python}`, beside memfit, ran in its place",
        ),
        Remark::FilesKept => (
            None,
            "files that were there before the run stayed as they were: what the script wrote over them, renamed or removed, only the script sees",
        ),
        Remark::SyntheticData => (Unbounded, "synthetic data: {what}"),
        Remark::SyntheticWeights => {
            (None, "synthetic weights: {what}; their values are zeros, their shapes and types true")
        }
        Remark::LoneRank => (
            Unbounded,
            "this process stood for rank {rank} of {size} alone: what other ranks would have sent is taken to be what it sent itself",
        ),
        Remark::NoLoader => {
            (Unbounded, "no evaluation and no largest batch were run: the training uses no torch DataLoader")
        }
        Remark::LargestBatch => (Unbounded, "the largest batch was not run: {why}"),
        Remark::LargestSeen => (Unbounded, "the largest batch is of those items that were seen: {items}"),
        Remark::AllAlike => (Unbounded, "all items are taken to have one size: {items}"),
        Remark::NoWatcher => (None, "the watcher library is not loaded: what fills the memory is not known"),
        Remark::NoSizes => (None, "what tensors asked for is not known: {error}"),
        Remark::NoPlace => (None, "where memory ran out is not known: {error}"),
        Remark::ProbeLabel => (None, "the probe could not {what}: {error}"),
        Remark::ProbeFailed => (None, "the probe failed {where}: {error}"),
        Remark::ProbeUnarmed => (Unbounded, "the probe could not arm itself: {error}"),
        Remark::PlanFailed => (Unbounded, "the plan failed {where}: {error}"),
        Remark::TrainerKept => (Unbounded, "the Trainer's settings were left alone: {error}"),
        Remark::TrainerSettings => (
            None,
            "the plan's micro-batch went through the Trainer's own settings: per_device_train_batch_size={size}, gradient_accumulation_steps={accumulate}",
        ),
        Remark::Garbled => (None, "messages of the script's processes that could not be understood: {count}"),
        Remark::LogFull => (
            None,
            "the log of a process was full before its end: what filled the card is told of the logged part only",
        ),
        Remark::TallyFull => {
            (Unbounded, "more kinds of calls and values than are counted: there may have been others")
        }
        Remark::Pieces => (
            None,
            "of the {pieces} pieces of a batch no more than {run} were run: from the third on they are alike; times are those of a whole step",
        ),
        Remark::LeverRefused => (Unbounded, "the plan's `{lever}` was not applied: {why}"),
        Remark::PlanDiffers => (Unbounded, "{difference}"),
        Remark::TorchUntried => (
            Unbounded,
            "PyTorch {torch} is no release that memfit was run with ({tried}): what it calls may be modelled differently",
        ),
        Remark::Stalled => (
            Unbounded,
            "some ranks made no progress for 10 s after others had completed their steps; the figures are those of what ran",
        ),
        Remark::NotCovered => (Unbounded, "full cover was asked for, and no {what} was seen"),
        Remark::Sampled => (
            Unbounded,
            "on a real card the device peak is the most that was seen in use when it was looked at, five times a second; the other peaks are PyTorch's own",
        ),
        Remark::FirstCard => (Unbounded, "only the machine's first card was looked at"),
        Remark::Pending => (
            Stated,
            "{mib} MiB at the peak had been freed and still waited for another stream, for as long as the clock says; `--clock instant` and `--clock never` bound what that changes",
        ),
        Remark::WaitsForData => (
            None,
            "the card would wait for data: {how} makes the batches of a step in {loading} ms on this host, and a step takes {step} ms, {high} ms at most; `memfit data --loader` measures more workers",
        ),
        Remark::ClockInstant => (
            Unbounded,
            "the clock was stopped: all work on the card counted as done at once, a lower bound for memory that streams share",
        ),
        Remark::ClockNever => (
            Unbounded,
            "no work on the card counted as done before the script waited for it, an upper bound for memory that streams share",
        ),
        Remark::Outside => (
            Stated,
            "what lies outside the allocator is modelled, by what was seen with torch for CUDA {cuda}: the device peak is a best guess, its upper bound decides",
        ),
        Remark::OutsideStack => (
            Unbounded,
            "what lies outside the allocator was seen with torch for CUDA {seen}, and this torch is for CUDA {cuda}: it may be more than the interval says",
        ),
        Remark::Calibrated => {
            (None, "the card's memory, what lies outside the allocator, and its speeds: {source}")
        }
        Remark::OtherProcesses => (Stated, "other processes are {how} to hold {held} of the card"),
    }
}
