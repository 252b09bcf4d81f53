//! One vocabulary for everything that speaks about memory: phases, categories, causes, remedies and their
//! labels.
//!
//! Names are the contract's; codes are what event logs carry. This crate knows nothing of how any of it is
//! found or done.

mod assumption;
mod lever;
mod remark;

use std::fmt;

pub use assumption::Assumption;
pub use lever::{Harm, Stage};
pub use remark::Remark;
use serde::{Deserialize, Serialize};

/// Declares an enum whose variants have a stable code, a name in JSON, and a text for people.
macro_rules! vocabulary {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $code:literal, $json:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $json)] $variant = $code,)+
        }

        impl $name {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The code in event logs.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The one with this code, if there is one.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The name in JSON and in text.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $json,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(self.name())
            }
        }
    };
}

vocabulary! {
    /// What a training script is doing.
    Phase {
        /// Anything else: set-up, data, logging, between the others.
        Other = 0, "other";
        /// From the outermost module's call until the backward begins; the loss belongs to it.
        Forward = 1, "forward";
        /// Within `backward` or `autograd.grad`.
        Backward = 2, "backward";
        /// Within an optimizer's `step`.
        Optimizer = 3, "optimizer";
    }
}

vocabulary! {
    /// What a piece of reserved memory is for.
    Category {
        /// Weights that are trained or frozen.
        Parameters = 1, "parameters";
        /// What `backward` leaves in `.grad`.
        Gradients = 2, "gradients";
        /// Moments and the like, in an optimizer's state.
        Optimizer = 3, "optimizer";
        /// Made in the forward and kept for the backward, or handed from module to module.
        Activations = 4, "activations";
        /// Batches: what came from the host, and what the outermost module was given.
        Inputs = 5, "inputs";
        /// Buffers of modules: running statistics, masks, caches.
        Buffers = 6, "buffers";
        /// Scratch space that cuBLAS, cuDNN and other libraries were given.
        Workspace = 7, "workspace";
        /// Made and dropped within one module's call, one backward or one optimizer step.
        Temporary = 8, "temporary";
        /// Nothing is known about it.
        Unknown = 9, "unknown";
        /// What blocks have beyond what was asked for.
        Rounding = 10, "rounding";
        /// Reserved, and in no block in use.
        Fragmentation = 11, "fragmentation";
    }
}

vocabulary! {
    /// How far a remedy's training is the same training.
    Label {
        /// The same mathematics.
        Exact = 0, "exact";
        /// The same mathematics in another rounding order.
        Rounding = 1, "rounding";
        /// The same training in fewer bits, as most people run it.
        Precision = 2, "precision";
        /// Another optimizer, global batch or model.
        ChangesTraining = 3, "changes-training";
    }
}

vocabulary! {
    /// Why memory ran out.
    Cause {
        /// It did not, and nothing says that it will.
        None = 0, "none";
        /// Tensors that are all needed exceed the card.
        TooBig = 1, "too-big";
        /// There was room, in pieces that were too small.
        Fragmented = 2, "fragmented";
        /// Each step leaves something behind.
        Leaking = 3, "leaking";
        /// Each step leaves its whole graph behind.
        RetainedGraph = 4, "retained-graph";
        /// What one step made is still there while the next runs.
        TwoBatchesAlive = 5, "two-batches-alive";
        /// An evaluation keeps what only a backward would need.
        EvaluationWithGradients = 6, "evaluation-with-gradients";
        /// The optimizer's first step makes its state, and temporaries beside it.
        FirstStepSurprise = 7, "first-step-surprise";
        /// One request, or a few of its kind, is out of proportion.
        GiantRequest = 8, "giant-request";
        /// Other programs hold the card.
        OtherProcesses = 9, "other-processes";
        /// What lies outside the allocator takes the room: contexts, libraries, communication.
        Outside = 10, "outside";
        /// The room is in pools that others may not use.
        PrivatePools = 11, "private-pools";
        /// A setting of the allocator's keeps it from using what it has.
        SettingThatHurts = 12, "setting-that-hurts";
        /// Not even the model's own state fits.
        DoesNotFit = 13, "does-not-fit";
    }
}

vocabulary! {
    /// What can be done about memory.
    Lever {
        /// Segments that grow instead of many of fixed size.
        ExpandableSegments = 0, "expandable-segments";
        /// An allocator setting is left out.
        DropSetting = 1, "drop-setting";
        /// Blocks above a size are not split.
        MaxSplitSize = 2, "max-split-size";
        /// Sizes are rounded so that freed blocks can be used again.
        RoundupSizes = 3, "roundup-sizes";
        /// Idle cached memory is given back.
        GarbageCollection = 4, "garbage-collection";
        /// One pool for all captured graphs.
        SharePool = 5, "share-pool";
        /// A pool lends its free memory to requests that would fail.
        PoolOnOom = 6, "pool-on-oom";
        /// What is kept over steps is kept without its graph, and not on the card.
        KeepOffTheCard = 7, "keep-off-the-card";
        /// The graph is let go after the backward.
        ReleaseGraph = 8, "release-graph";
        /// Gradients are dropped before the next forward.
        ZeroGradEarlier = 9, "zero-grad-earlier";
        /// Variables are dropped before the next step.
        DropVariables = 10, "drop-variables";
        /// No graph is recorded where no backward comes.
        NoGrad = 11, "no-grad";
        /// One kernel updates a parameter, without temporaries.
        FusedOptimizer = 12, "fused-optimizer";
        /// Parameters are updated one by one.
        ForeachOff = 13, "foreach-off";
        /// Optimizer state in 8 bits.
        EightBitOptimizer = 14, "8-bit-optimizer";
        /// Activations are made once more in the backward instead of kept.
        Checkpointing = 15, "checkpointing";
        /// Most operations in bf16.
        AutocastBf16 = 16, "autocast-bf16";
        /// The batch in pieces, gradients added up.
        MicroBatch = 17, "micro-batch";
        /// The loss over pieces of the logits.
        ChunkedLoss = 18, "chunked-loss";
        /// Attention without its matrix.
        Sdpa = 19, "sdpa";
        /// Images are made small before they go to the card.
        ResizeBeforeUpload = 20, "resize-before-upload";
        /// Loader workers stay off the card.
        WorkersOffTheCard = 21, "workers-off-the-card";
        /// The other program ends first, or goes elsewhere.
        EndOtherProcess = 22, "end-other-process";
        /// State is spread over several cards.
        Shard = 23, "shard";
        /// A card with more memory.
        LargerCard = 24, "larger-card";
        /// The batch is smaller.
        SmallerBatch = 25, "smaller-batch";
        /// Most operations in fp16, the loss scaled.
        AutocastFp16 = 26, "autocast-fp16";
        /// Products of fp32 matrices in TF32.
        Tf32 = 27, "tf32";
        /// Weights, gradients and moments in bf16.
        PureBf16 = 28, "pure-bf16";
        /// Activations wait for the backward in the host's memory.
        ActivationOffload = 29, "activation-offload";
        /// Each parameter is updated as soon as its gradient is there.
        OptimizerInBackward = 30, "optimizer-in-backward";
        /// Optimizer state in bf16.
        Bf16OptimizerState = 31, "bf16-optimizer-state";
        /// Optimizer state in the host's memory.
        HostOptimizerState = 32, "host-optimizer-state";
        /// An optimizer whose second moments are rows and columns.
        Adafactor = 33, "adafactor";
        /// Kernels that are fused by a compiler.
        Compile = 34, "compile";
        /// Pictures with their channels last in memory.
        ChannelsLast = 35, "channels-last";
        /// Gradients live in the buckets that are exchanged.
        GradientAsBucketView = 36, "gradient-as-bucket-view";
        /// Samples of like length go together, so that little is padded.
        LengthBuckets = 37, "length-buckets";
        /// How many processes load, and how far ahead.
        LoaderWorkers = 38, "loader-workers";
        /// Small matrices are trained beside frozen weights.
        Lora = 39, "lora";
        /// Frozen weights in 8 or 4 bits.
        QuantizedBase = 40, "quantized-base";
        /// The allocator's settings as a whole.
        AllocatorSettings = 41, "allocator-settings";
        /// Weights that are not trained, in 8 or 4 bits.
        QuantizedWeights = 42, "quantized-weights";
        /// Keys and values of the tokens so far in 8 bits.
        KvCache8Bit = 43, "kv-cache-8-bit";
        /// Only the last tokens' keys and values are kept.
        KvCacheWindow = 44, "kv-cache-window";
        /// Compiled graphs keep a share of what they would, and compute the rest again.
        ActivationBudget = 45, "activation-budget";
    }
}

vocabulary! {
    /// How it is known what a remedy would save.
    Proof {
        /// The recorded calls were made once more, with the remedy.
        Replayed = 0, "replayed";
        /// Arithmetic on what was recorded.
        Modelled = 1, "modelled";
        /// The script was run once more, with the remedy.
        Run = 2, "run";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_are_distinct_and_go_both_ways() {
        for (index, category) in Category::ALL.iter().enumerate() {
            assert_eq!(Category::from_code(category.code()), Some(*category));
            assert!(Category::ALL[..index].iter().all(|other| other.name() != category.name()));
        }
        for phase in Phase::ALL {
            assert_eq!(Phase::from_code(phase.code()), Some(*phase));
        }
        for (index, cause) in Cause::ALL.iter().enumerate() {
            assert!(Cause::ALL[..index].iter().all(|other| other.name() != cause.name()));
        }
        for (index, lever) in Lever::ALL.iter().enumerate() {
            assert!(Lever::ALL[..index].iter().all(|other| other.name() != lever.name()));
        }
        assert_eq!(Category::from_code(0), None);
        assert_eq!(Category::from_code(200), None);
    }

    #[test]
    fn labels_are_ordered_from_the_strictest() {
        assert!(Label::Exact < Label::Rounding);
        assert!(Label::Rounding < Label::Precision);
        assert!(Label::Precision < Label::ChangesTraining);
    }
}
