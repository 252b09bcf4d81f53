//! One vocabulary for everything that speaks about memory: phases, categories, causes, remedies and their
//! labels.
//!
//! Names are the contract's; codes are what event logs carry. A remedy is a [`Lever`]: one file in `levers/`
//! says everything about it, from its name to the question whether it is worth a try. How memory is measured,
//! searched or reported belongs to other crates.

mod assumption;
mod declaration;
mod levers;
mod parallel;
mod release;
mod remark;
mod shown;
mod situation;
mod training;
mod value;

use std::fmt;

pub use assumption::Assumption;
pub use declaration::{
    Declaration, Docs, Framework, Harm, Keyword, ModelChange, Moved, Script, Sentence, Stage,
};
pub use levers::Lever;
pub use parallel::{Bound, Parallel, Schedule};
pub use release::release;
pub use remark::Remark;
pub use shown::{acts, one_line, printable};
pub use situation::{Held, Search, Sense, Situation, Turn};
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
    /// The part of a training step that is running.
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
    /// The use of a piece of reserved memory.
    Category {
        /// Weights that are trained or frozen.
        Parameters = 1, "parameters";
        /// Gradients, as `backward` leaves them in `.grad`.
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
        /// Bytes of blocks beyond the requested sizes.
        Rounding = 10, "rounding";
        /// Reserved, and in no block in use.
        Fragmentation = 11, "fragmentation";
    }
}

vocabulary! {
    /// Equivalence of a training under a remedy with the original one.
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
        /// Tensors that are all needed exceed the GPU.
        TooBig = 1, "too-big";
        /// There was room, in pieces that were too small.
        Fragmented = 2, "fragmented";
        /// Each step leaves something behind.
        Leaking = 3, "leaking";
        /// Each step leaves its whole graph behind.
        RetainedGraph = 4, "retained-graph";
        /// Tensors of one step are still allocated while the next step runs.
        TwoBatchesAlive = 5, "two-batches-alive";
        /// An evaluation keeps what only a backward would need.
        EvaluationWithGradients = 6, "evaluation-with-gradients";
        /// The optimizer's first step makes its state, and temporaries beside it.
        FirstStepSurprise = 7, "first-step-surprise";
        /// One request, or a few of its kind, is out of proportion.
        GiantRequest = 8, "giant-request";
        /// Other programs hold the GPU.
        OtherProcesses = 9, "other-processes";
        /// Memory outside the allocator takes the space: contexts, libraries, communication.
        Outside = 10, "outside";
        /// The room is in pools that others may not use.
        PrivatePools = 11, "private-pools";
        /// A setting of the allocator's keeps it from using what it has.
        SettingThatHurts = 12, "setting-that-hurts";
        /// Not even the model's own state fits.
        DoesNotFit = 13, "does-not-fit";
        /// A tensor is rebuilt larger each time, and old and new exist at once.
        GrowingCache = 14, "growing-cache";
    }
}

vocabulary! {
    /// Evidence for the savings of a remedy.
    Proof {
        /// The recorded calls were made once more, with the remedy.
        Replayed = 0, "replayed";
        /// Arithmetic on what was recorded.
        Modelled = 1, "modelled";
        /// The script was run once more, with the remedy.
        Run = 2, "run";
    }
}

impl Label {
    /// The meaning for a training, in a few words.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Exact => "the same mathematics",
            Self::Rounding => "the same mathematics, rounded in another order",
            Self::Precision => "the same training in fewer bits",
            Self::ChangesTraining => "another training",
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
