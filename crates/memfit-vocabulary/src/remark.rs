//! Remarks on how far a report's figures can be trusted.

use strum::{EnumString, IntoStaticStr, VariantArray};

/// A remark. Devices, the probe and the command name it by its id; its text and what it may change stand in
/// the report crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Remark {
    /// `cudnnFind…` measures nothing.
    CudnnFind,
    /// cuDNN before 9.8 cannot be asked about a GPU that is not there.
    CudnnLayout,
    /// cuDNN refuses the GPU's description.
    CudnnCard,
    /// Work areas of cuFFT.
    CufftAreas,
    /// CUPTI records no activity of the device.
    Cupti,
    /// Buffers of cuSPARSE.
    CusparseBuffers,
    /// The number of entries in a product of sparse matrices.
    CusparseProduct,
    /// The number of entries in a sum of sparse matrices.
    CusparseSum,
    /// Workspaces of cuSOLVER.
    CusolverWorkspaces,
    /// The size of a part of a communicator whose other ranks are absent.
    NcclSplit,
    /// Ranks cannot exchange any more values.
    RanksFull,
    /// A rank did not answer.
    RankSilent,
    /// An extension brings a CUDA runtime of its own.
    StaticRuntime,
    /// The interpreter on the path has no PyTorch.
    PythonSkipped,
    /// Checkpoints that a dry run wrote.
    Checkpoints,
    /// Files of the user's that a dry run would have overwritten, renamed or removed.
    FilesKept,
    /// A synthetic data set.
    SyntheticData,
    /// Synthetic weights.
    SyntheticWeights,
    /// One rank of many, run alone.
    LoneRank,
    /// There is no loader to look into.
    NoLoader,
    /// The largest batch was not run.
    LargestBatch,
    /// The largest batch was made of those items that were looked at.
    LargestSeen,
    /// Not all items were looked at.
    AllAlike,
    /// No watcher: who holds the memory is unknown.
    NoWatcher,
    /// The requested sizes of tensors are unknown.
    NoSizes,
    /// The place of an out-of-memory error is unknown.
    NoPlace,
    /// The probe could not name something.
    ProbeLabel,
    /// The probe failed somewhere.
    ProbeFailed,
    /// The probe could not start.
    ProbeUnarmed,
    /// The plan failed in the script's process.
    PlanFailed,
    /// A Trainer's settings could not be changed.
    TrainerKept,
    /// The micro-batch went into a Trainer's settings.
    TrainerSettings,
    /// Messages that could not be read.
    Garbled,
    /// An event log was full.
    LogFull,
    /// More names than the ledger counts.
    TallyFull,
    /// Only some micro-batches of a batch were run.
    Pieces,
    /// A lever of the plan was not applied.
    LeverRefused,
    /// The plan was made for something else.
    PlanDiffers,
    /// A release of torch with which nothing was run.
    TorchUntried,
    /// Some ranks made no progress.
    Stalled,
    /// A part of what was to be covered was not seen.
    NotCovered,
    /// A real GPU is read at intervals.
    Sampled,
    /// Only the first of several real GPUs was read.
    FirstCard,
    /// Freed memory that waited for another stream.
    Pending,
    /// The clock was stopped.
    ClockInstant,
    /// The clock never advanced by itself.
    ClockNever,
    /// Memory outside the allocator is modelled.
    Outside,
    /// It was seen with other releases of CUDA.
    OutsideStack,
    /// The GPU was calibrated on a real one.
    Calibrated,
    /// Memory of other processes.
    OtherProcesses,
    /// The GPU would wait for data.
    WaitsForData,
}

impl Remark {
    /// All of them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The name in messages, in the ledger and in JSON.
    pub fn id(self) -> &'static str {
        self.into()
    }
}
