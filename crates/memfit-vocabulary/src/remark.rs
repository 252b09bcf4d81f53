//! Remarks on the accuracy of a report's figures.

use strum::{EnumString, IntoStaticStr, VariantArray};

/// A remark. Devices, the probe and the command identify it by its id; its text and possible effect are in
/// the report crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Remark {
    /// `cudnnFind…` does not measure anything.
    CudnnFind,
    /// cuDNN before 9.8 cannot be queried for a GPU that is not present.
    CudnnLayout,
    /// cuDNN rejects the GPU's description.
    CudnnCard,
    /// Work areas of cuFFT.
    CufftAreas,
    /// CUPTI records no activity of the device.
    Cupti,
    /// Buffers of cuSPARSE.
    CusparseBuffers,
    /// Number of entries in a product of sparse matrices.
    CusparseProduct,
    /// Number of entries in a sum of sparse matrices.
    CusparseSum,
    /// Workspaces of cuSOLVER.
    CusolverWorkspaces,
    /// Size of a part of a communicator whose other ranks are absent.
    NcclSplit,
    /// Ranks cannot exchange further values.
    RanksFull,
    /// A rank did not answer.
    RankSilent,
    /// An extension contains its own CUDA runtime.
    StaticRuntime,
    /// The interpreter on `PATH` has no PyTorch.
    PythonSkipped,
    /// Checkpoints that a dry run wrote.
    Checkpoints,
    /// The user's files that a dry run would have overwritten, renamed or removed.
    FilesKept,
    /// A synthetic data set.
    SyntheticData,
    /// Synthetic weights.
    SyntheticWeights,
    /// A single rank of many was run.
    LoneRank,
    /// There is no loader to inspect.
    NoLoader,
    /// The largest batch was not run.
    LargestBatch,
    /// The largest batch consists of the largest of the inspected items.
    LargestSeen,
    /// Not all items were inspected.
    AllAlike,
    /// No watcher: who holds the memory is unknown.
    NoWatcher,
    /// The requested sizes of tensors are unknown.
    NoSizes,
    /// The location of an out-of-memory error is unknown.
    NoPlace,
    /// The probe could not label something.
    ProbeLabel,
    /// The probe failed somewhere.
    ProbeFailed,
    /// The probe could not start.
    ProbeUnarmed,
    /// Applying the plan failed in the script's process.
    PlanFailed,
    /// A Trainer's settings could not be changed.
    TrainerKept,
    /// The micro-batch size was set in a Trainer's settings.
    TrainerSettings,
    /// Messages that could not be read.
    Garbled,
    /// An event log ended before its process: it was at its limit, or could not be extended.
    LogFull,
    /// More names than the ledger can count.
    TallyFull,
    /// Only some micro-batches of a batch were run.
    Pieces,
    /// A lever of the plan was not applied.
    LeverRefused,
    /// The plan was made for another environment.
    PlanDiffers,
    /// An untested release of torch.
    TorchUntried,
    /// Some ranks made no progress.
    Stalled,
    /// A process crashed after the script's last line.
    CrashedAtEnd,
    /// A requested part of the training was not covered.
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
    /// It was observed with other releases of CUDA.
    OutsideStack,
    /// The GPU was calibrated on a real one.
    Calibrated,
    /// Memory of other processes.
    OtherProcesses,
    /// A process used only one of several GPUs.
    OneGpuUsed,
    /// A process uses its GPUs unevenly.
    UnevenGpus,
    /// `nn.DataParallel` runs the model.
    DataParallel,
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
