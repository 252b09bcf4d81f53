//! What is true of each lever however it is applied: its label, where in a script's life it takes hold, and
//! what it cannot stand beside.

use crate::{Label, Lever};

/// When a lever takes hold, in the order in which levers are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Before the process starts.
    Environment,
    /// Where batches are made.
    Data,
    /// On the model, before the optimizer is made.
    Model,
    /// On the optimizer.
    Optimizer,
    /// Around each step.
    Step,
    /// Nothing that a program could do to another: a change of the script's source, or of the machine.
    ByHand,
}

impl Stage {
    /// The name in JSON and in text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Data => "data",
            Self::Model => "model",
            Self::Optimizer => "optimizer",
            Self::Step => "step",
            Self::ByHand => "by-hand",
        }
    }
}

/// What a lever takes from what is learnt, the least first. Labels tell whether a training is another one;
/// this tells how far another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Harm {
    /// Digits, at most: the same model learns from the same samples by the same rule.
    #[default]
    Digits,
    /// Another rule updates it.
    Rule,
    /// Less of the model learns, or is used.
    Model,
    /// It is shown less of its samples.
    Samples,
}

impl Harm {
    /// All of them, the least first.
    pub const ALL: [Self; 4] = [Self::Digits, Self::Rule, Self::Model, Self::Samples];

    /// What it does, as the end of a sentence about a lever.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Digits => "computes in fewer digits",
            Self::Rule => "updates the model by another rule",
            Self::Model => "has less of the model learn or be used",
            Self::Samples => "shows the model less of each sample",
        }
    }
}

/// Pairs that cannot stand beside each other, and why.
const EXCLUDED: &[(Lever, Lever, &str)] = {
    use Lever as L;
    &[
        (L::FusedOptimizer, L::ForeachOff, "one kernel for all, or one parameter at a time"),
        (L::FusedOptimizer, L::Adafactor, "Adafactor has no fused kernel"),
        (L::EightBitOptimizer, L::Bf16OptimizerState, "a moment has one type"),
        (L::EightBitOptimizer, L::HostOptimizerState, "a moment is in one place"),
        (L::Bf16OptimizerState, L::HostOptimizerState, "a moment is in one place"),
        (L::Adafactor, L::EightBitOptimizer, "rows and columns of moments are small already"),
        (L::Adafactor, L::Bf16OptimizerState, "rows and columns of moments are small already"),
        (L::Adafactor, L::HostOptimizerState, "rows and columns of moments are small already"),
        (L::AutocastBf16, L::AutocastFp16, "an operation runs in one type"),
        (L::AutocastBf16, L::PureBf16, "everything is in bf16 already"),
        (L::AutocastFp16, L::PureBf16, "an operation runs in one type"),
        (L::OptimizerInBackward, L::MicroBatch, "a gradient is gone before the next one could be added"),
        (
            L::OptimizerInBackward,
            L::AutocastFp16,
            "whether gradients overflowed is known only after the backward",
        ),
        (L::OptimizerInBackward, L::Shard, "gradients are not reduced yet when they appear"),
        (L::OptimizerInBackward, L::GradientAsBucketView, "gradients are not exchanged yet when they appear"),
        (
            L::PureBf16,
            L::Adafactor,
            "Adafactor's updates are not rounded by chance, and bf16 would lose most",
        ),
        (L::PureBf16, L::Shard, "a shard's updates are not rounded by chance, and bf16 would lose most"),
        (L::Shard, L::GradientAsBucketView, "sharded gradients are in no bucket"),
        (L::Shard, L::EightBitOptimizer, "a shard's moments are not cut again"),
        (L::Shard, L::Bf16OptimizerState, "a shard's moments are not cut again"),
        (L::Shard, L::HostOptimizerState, "a shard's moments are not cut again"),
        (L::Shard, L::QuantizedBase, "packed weights cannot be sharded"),
        (L::Lora, L::QuantizedWeights, "weights beside which matrices are trained are `quantized-base`"),
        (L::QuantizedBase, L::QuantizedWeights, "a weight has one type"),
        (L::QuantizedBase, L::PureBf16, "a weight has one type"),
        (L::Lora, L::Shard, "matrices beside a shard are not sharded with it"),
        (L::KvCache8Bit, L::KvCacheWindow, "a layer's cache is of one kind"),
        (L::ExpandableSegments, L::AllocatorSettings, "the settings name all of them"),
    ]
};

impl Lever {
    /// How far a training with it is the same training. A batch normalisation makes `micro-batch` one that
    /// changes it, which only a look at the model can tell.
    pub const fn label(self) -> Label {
        match self {
            Self::FusedOptimizer
            | Self::MicroBatch
            | Self::ChunkedLoss
            | Self::Sdpa
            | Self::Compile
            | Self::ActivationBudget
            | Self::ChannelsLast
            | Self::Shard => Label::Rounding,
            Self::AutocastBf16 | Self::AutocastFp16 | Self::Tf32 => Label::Precision,
            Self::EightBitOptimizer
            | Self::Bf16OptimizerState
            | Self::Adafactor
            | Self::PureBf16
            | Self::SmallerBatch
            | Self::LengthBuckets
            | Self::ResizeBeforeUpload
            | Self::Lora
            | Self::QuantizedBase
            | Self::QuantizedWeights
            | Self::KvCache8Bit
            | Self::KvCacheWindow => Label::ChangesTraining,
            _ => Label::Exact,
        }
    }

    /// How far what is learnt with it is something else.
    pub const fn harm(self) -> Harm {
        match self {
            Self::Adafactor | Self::SmallerBatch => Harm::Rule,
            Self::Lora | Self::QuantizedBase | Self::KvCacheWindow => Harm::Model,
            Self::ResizeBeforeUpload => Harm::Samples,
            _ => Harm::Digits,
        }
    }

    /// When it takes hold.
    pub const fn stage(self) -> Stage {
        match self {
            Self::ExpandableSegments
            | Self::DropSetting
            | Self::MaxSplitSize
            | Self::RoundupSizes
            | Self::GarbageCollection
            | Self::AllocatorSettings => Stage::Environment,
            Self::LengthBuckets | Self::LoaderWorkers | Self::ResizeBeforeUpload | Self::SmallerBatch => {
                Stage::Data
            }
            Self::Lora
            | Self::QuantizedBase
            | Self::QuantizedWeights
            | Self::KvCache8Bit
            | Self::KvCacheWindow
            | Self::PureBf16
            | Self::ChannelsLast
            | Self::Sdpa
            | Self::Checkpointing
            | Self::ActivationOffload
            | Self::ChunkedLoss
            | Self::Shard
            | Self::GradientAsBucketView
            | Self::Compile
            | Self::ActivationBudget => Stage::Model,
            Self::FusedOptimizer
            | Self::ForeachOff
            | Self::EightBitOptimizer
            | Self::Bf16OptimizerState
            | Self::HostOptimizerState
            | Self::Adafactor
            | Self::OptimizerInBackward => Stage::Optimizer,
            Self::MicroBatch | Self::AutocastBf16 | Self::AutocastFp16 | Self::Tf32 => Stage::Step,
            _ => Stage::ByHand,
        }
    }

    /// Why it cannot stand beside another one; none where it can.
    pub fn excludes(self, other: Self) -> Option<&'static str> {
        EXCLUDED
            .iter()
            .find(|(one, two, _)| (*one, *two) == (self, other) || (*one, *two) == (other, self))
            .map(|(_, _, why)| *why)
    }

    /// The lever without which this one makes no sense.
    pub const fn needs(self) -> Option<Self> {
        match self {
            Self::QuantizedBase => Some(Self::Lora),
            _ => None,
        }
    }

    /// The one with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|lever| lever.name() == name)
    }

    /// What is wrong with a set of levers, if something is: two that exclude each other, or one without what
    /// it needs.
    pub fn conflict(chosen: &[Self]) -> Option<String> {
        for (index, one) in chosen.iter().enumerate() {
            if let Some(needed) = one.needs()
                && !chosen.contains(&needed)
            {
                return Some(format!("`{one}` needs `{needed}`"));
            }
            for two in &chosen[index + 1..] {
                if one == two {
                    return Some(format!("`{one}` is named twice"));
                }
                if let Some(why) = one.excludes(*two) {
                    return Some(format!("`{one}` and `{two}` cannot stand beside each other: {why}"));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusion_goes_both_ways_and_none_excludes_itself() {
        for one in Lever::ALL {
            assert_eq!(one.excludes(*one), None);
            for two in Lever::ALL {
                assert_eq!(one.excludes(*two), two.excludes(*one));
            }
        }
        assert!(Lever::FusedOptimizer.excludes(Lever::ForeachOff).is_some());
        assert_eq!(Lever::Checkpointing.excludes(Lever::MicroBatch), None);
    }

    #[test]
    fn what_harms_more_than_digits_is_another_training() {
        for lever in Lever::ALL {
            assert!(lever.harm() == Harm::Digits || lever.label() == Label::ChangesTraining, "{lever}");
        }
        assert!(Harm::ALL.is_sorted());
        assert!(Lever::EightBitOptimizer.harm() < Lever::Adafactor.harm());
        assert!(Lever::Lora.harm() < Lever::ResizeBeforeUpload.harm());
    }

    #[test]
    fn conflicts_are_named() {
        assert_eq!(Lever::conflict(&[Lever::Checkpointing, Lever::AutocastBf16, Lever::MicroBatch]), None);
        for (chosen, text) in [
            (vec![Lever::QuantizedBase], "`quantized-base` needs `lora`"),
            (vec![Lever::Tf32, Lever::Tf32], "`tf32` is named twice"),
            (
                vec![Lever::MicroBatch, Lever::Sdpa, Lever::OptimizerInBackward],
                "`micro-batch` and `optimizer-in-backward` cannot stand beside each other: a gradient is gone before the \
                 next one could be added",
            ),
        ] {
            assert_eq!(Lever::conflict(&chosen).as_deref(), Some(text));
        }
    }

    #[test]
    fn names_lead_back() {
        for lever in Lever::ALL {
            assert_eq!(Lever::from_name(lever.name()), Some(*lever));
        }
        assert_eq!(Lever::from_name("no-such-lever"), None);
    }
}
