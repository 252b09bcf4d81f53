//! The shared vocabulary for memory: phases, categories, causes, remedies and their labels.
//!
//! Names are part of the JSON format, codes are part of event logs. A remedy is a [`Lever`]: one file in
//! `levers/` has everything about it, from its name to the condition for trying it. How memory is measured,
//! searched or reported is up to other crates.

mod assumption;
mod declaration;
mod files;
mod held;
mod launcher;
mod levers;
mod parallel;
mod release;
mod remark;
mod shell;
mod shown;
mod situation;
mod size;
mod training;
mod value;

use std::fmt;

pub use assumption::Assumption;
pub use declaration::{Declaration, Docs, Harm, Keyword, ModelChange, Moved, Script, Sentence, Stage};
pub use files::{installed_path, is_user_file};
pub use held::Held;
pub use launcher::launcher_words;
pub use levers::Lever;
pub use parallel::{Bound, Parallel, Schedule};
pub use release::release;
pub use remark::Remark;
pub use shell::{shell_line, shell_word};
pub use shown::{acts, one_line, printable};
pub use situation::{Search, Sense, Situation, Turn};
pub use size::{format_milliseconds, format_size};
pub use training::{Loading, Measured, Parts, Training};
pub use value::{Value, counted, in_short};

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

            /// The variant with this code, if there is one.
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
    /// The part of a training step that is running.
    Phase {
        /// Everything else: set-up, data loading, logging.
        Other = 0, "other";
        /// From the call of the outermost module to the beginning of the backward pass, including the loss.
        Forward = 1, "forward";
        /// Within `backward` or `autograd.grad`.
        Backward = 2, "backward";
        /// Within an optimizer's `step`.
        Optimizer = 3, "optimizer";
    }
}

vocabulary! {
    /// The use of reserved memory.
    Category {
        /// Weights, trained or frozen.
        Parameters = 1, "parameters";
        /// Gradients, as `backward` leaves them in `.grad`.
        Gradients = 2, "gradients";
        /// Optimizer state, such as Adam's moments.
        Optimizer = 3, "optimizer";
        /// Created in the forward pass and kept for the backward pass, or passed from module to module.
        Activations = 4, "activations";
        /// Batches: data copied from the host, and arguments of the outermost module.
        Inputs = 5, "inputs";
        /// Buffers of modules: running statistics, masks, caches.
        Buffers = 6, "buffers";
        /// Scratch memory of cuBLAS, cuDNN and other libraries.
        Workspace = 7, "workspace";
        /// Created and freed within one module's call, one backward pass or one optimizer step.
        Temporary = 8, "temporary";
        /// Of unknown origin.
        Unknown = 9, "unknown";
        /// Bytes of blocks beyond the requested sizes.
        Rounding = 10, "rounding";
        /// Reserved but unallocated.
        Fragmentation = 11, "fragmentation";
    }
}

vocabulary! {
    /// Effect of a change on training results.
    Label {
        /// The same mathematics.
        Exact = 0, "exact";
        /// The same mathematics with operations in another order.
        Rounding = 1, "rounding";
        /// The same training with fewer bits, as in common mixed precision.
        Precision = 2, "precision";
        /// Another optimizer, global batch or model.
        ChangesTraining = 3, "changes-training";
    }
}

vocabulary! {
    /// A library with a training loop.
    Framework {
        /// The Trainer of Transformers.
        Transformers = 0, "transformers";
        /// Lightning.
        Lightning = 1, "lightning";
        /// Accelerate.
        Accelerate = 2, "accelerate";
    }
}

vocabulary! {
    /// Reason why memory ran out.
    Cause {
        /// Memory did not run out, and does not grow.
        None = 0, "none";
        /// All tensors are needed, and together they exceed the GPU.
        TooBig = 1, "too-big";
        /// Enough memory was free, but in pieces that were too small.
        Fragmented = 2, "fragmented";
        /// Each step leaves tensors behind.
        Leaking = 3, "leaking";
        /// Each step leaves its whole autograd graph behind.
        RetainedGraph = 4, "retained-graph";
        /// Tensors of one step are still allocated while the next step runs.
        TwoBatchesAlive = 5, "two-batches-alive";
        /// An evaluation keeps activations that only a backward pass would need.
        EvaluationWithGradients = 6, "evaluation-with-gradients";
        /// The optimizer's first step creates its state, and temporaries in addition.
        FirstStepSurprise = 7, "first-step-surprise";
        /// One request, or a few similar ones, are out of proportion.
        GiantRequest = 8, "giant-request";
        /// Other programs hold memory of the GPU.
        OtherProcesses = 9, "other-processes";
        /// CUDA contexts of other processes, such as workers of a loader.
        Outside = 10, "outside";
        /// The free memory is in pools that other allocations may not use.
        PrivatePools = 11, "private-pools";
        /// An allocator setting prevents the use of free memory.
        SettingThatHurts = 12, "setting-that-hurts";
        /// Not even the model's own state fits.
        DoesNotFit = 13, "does-not-fit";
        /// A tensor is replaced by a larger one each time, and both exist at once.
        GrowingCache = 14, "growing-cache";
        /// The host's memory ran out, not the GPU's.
        HostMemory = 15, "host-memory";
    }
}

vocabulary! {
    /// Evidence for the savings of a remedy.
    Proof {
        /// The recorded allocator calls were replayed with the remedy.
        Replayed = 0, "replayed";
        /// Arithmetic on the recorded data.
        Modelled = 1, "modelled";
        /// Another run of the script with the remedy.
        Run = 2, "run";
    }
}

impl Label {
    /// The effect on a training run, in a few words.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Exact => "same results",
            Self::Rounding => "results differ by rounding",
            Self::Precision => "lower precision",
            Self::ChangesTraining => "changes the training",
        }
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
