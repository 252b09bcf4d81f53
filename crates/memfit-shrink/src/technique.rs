//! The techniques: levers with their settings, and the call that does the same in a script.

use memfit_vocabulary::{Harm, Label, Lever, Training, Value};

/// Sides of resized images are multiples of this, as most models of images require.
const SIDE_MULTIPLE: u64 = 32;

/// A technique.
#[derive(Clone, Copy, Debug)]
pub struct Technique {
    /// The name on the command line and in JSON.
    pub name: &'static str,
    /// Its description in tables.
    pub title: &'static str,
    /// Levers and their settings.
    pub levers: &'static [(Lever, Given)],
    /// What it changes.
    pub affects: Affects,
    /// The same in the user's own code.
    pub how: &'static str,
    /// Its cost besides memory.
    pub note: &'static str,
}

/// Part of a model's life that a technique changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affects {
    /// Training and inference.
    Both,
    /// Training only: the trained model is as large as before.
    Training,
    /// Inference only: it is applied to a trained model.
    Inference,
}

/// The setting of a technique's lever.
#[derive(Clone, Copy, Debug)]
pub enum Given {
    /// On.
    On,
    /// A number.
    Count(u64),
    /// A word.
    Word(&'static str),
    /// Half of the shorter side of the training's images.
    HalfSide,
}

impl Given {
    /// The setting for a training, or the reason why there is none.
    fn value(self, training: &Training) -> Result<Value, String> {
        Ok(match self {
            Self::On => Value::Switch(true),
            Self::Count(count) => Value::Count(count),
            Self::Word(word) => Value::Word(word.to_owned()),
            Self::HalfSide => {
                let shorter = training.pictures.0.min(training.pictures.1);
                let half = shorter / 2 / SIDE_MULTIPLE * SIDE_MULTIPLE;
                if shorter == 0 {
                    return Err("no DataLoader gave images".to_owned());
                }
                if half == 0 {
                    return Err(format!("the images have only {shorter} pixels on the shorter side"));
                }
                Value::Count(half)
            }
        })
    }
}

impl Technique {
    /// The levers' settings for a training, or the reason why it cannot be applied to it.
    pub fn settings(&self, training: &Training) -> Result<Vec<(Lever, Value)>, String> {
        // DDP waits for the gradients of all parameters with which it was created.
        if training.replicated && self.levers.iter().any(|(lever, _)| lever.harm() == Harm::Model) {
            let why = "the model is in DistributedDataParallel already: apply it before the model is wrapped";
            return Err(why.to_owned());
        }
        self.levers.iter().map(|(lever, given)| Ok((*lever, given.value(training)?))).collect()
    }

    /// The label of the lever that changes training most.
    pub fn label(&self) -> Label {
        self.levers.iter().map(|(lever, _)| lever.label()).max().unwrap_or(Label::Exact)
    }
}

/// The technique with this name.
pub fn find(name: &str) -> Option<&'static Technique> {
    TECHNIQUES.iter().find(|technique| technique.name == name)
}

/// All of them, in the order of tables.
pub const TECHNIQUES: &[Technique] = &[
    Technique {
        name: "lora",
        title: "LoRA adapters, rank 16",
        levers: &[(Lever::Lora, Given::Count(16))],
        affects: Affects::Both,
        how: "memfit.shrink.lora(model, optimizer, rank=16)",
        note: "for pretrained weights; merged adapters add nothing to inference",
    },
    Technique {
        name: "dora",
        title: "DoRA adapters, rank 16",
        levers: &[(Lever::Dora, Given::Count(16))],
        affects: Affects::Both,
        how: "memfit.shrink.dora(model, optimizer, rank=16)",
        note: "for pretrained weights; the full weight is built in each forward pass",
    },
    Technique {
        name: "qlora",
        title: "LoRA on 4-bit weights (QLoRA)",
        levers: &[(Lever::Lora, Given::Count(16)), (Lever::QuantizedBase, Given::Word("4-bit"))],
        affects: Affects::Both,
        how: "memfit.shrink.qlora(model, optimizer, rank=16, bits=4)",
        note: "for pretrained weights; weights are dequantized where they are used, which takes time",
    },
    Technique {
        name: "qlora-8-bit",
        title: "LoRA on 8-bit weights",
        levers: &[(Lever::Lora, Given::Count(16)), (Lever::QuantizedBase, Given::Word("8-bit"))],
        affects: Affects::Both,
        how: "memfit.shrink.qlora(model, optimizer, rank=16, bits=8)",
        note: "for pretrained weights; weights are dequantized where they are used, which takes time",
    },
    Technique {
        name: "train-head",
        title: "train the head only",
        levers: &[(Lever::TrainOnly, Given::Word("head"))],
        affects: Affects::Training,
        how: "memfit.shrink.train_only(model, \"head\", optimizer)",
        note: "for pretrained weights",
    },
    Technique {
        name: "train-last-blocks",
        title: "train the last 2 blocks",
        levers: &[(Lever::TrainOnly, Given::Word("last-2-blocks"))],
        affects: Affects::Training,
        how: "memfit.shrink.train_only(model, \"last-2-blocks\", optimizer)",
        note: "for pretrained weights",
    },
    Technique {
        name: "train-biases",
        title: "train biases only (BitFit)",
        levers: &[(Lever::TrainOnly, Given::Word("biases"))],
        affects: Affects::Training,
        how: "memfit.shrink.train_only(model, \"biases\", optimizer)",
        note: "for pretrained weights; the backward pass still runs through all layers",
    },
    Technique {
        name: "train-norms",
        title: "train norms only",
        levers: &[(Lever::TrainOnly, Given::Word("norms"))],
        affects: Affects::Training,
        how: "memfit.shrink.train_only(model, \"norms\", optimizer)",
        note: "for pretrained weights; the backward pass still runs through all layers",
    },
    Technique {
        name: "8-bit-optimizer",
        title: "optimizer state in 8 bits",
        levers: &[(Lever::EightBitOptimizer, Given::On)],
        affects: Affects::Training,
        how: "memfit.shrink.eight_bit_optimizer(model, optimizer)",
        note: "",
    },
    Technique {
        name: "bf16-weights",
        title: "bf16 weights, stochastic rounding",
        levers: &[(Lever::PureBf16, Given::On)],
        affects: Affects::Both,
        how: "memfit.shrink.bf16_weights(model, optimizer)",
        note: "needs a GPU with bf16",
    },
    Technique {
        name: "prune-channels",
        title: "structured pruning, 50 % of channels",
        levers: &[(Lever::PruneChannels, Given::Count(50))],
        affects: Affects::Both,
        how: "memfit.shrink.prune_channels(model, example, optimizer, percent=50)",
        note: "prune a trained model, then train it further",
    },
    Technique {
        name: "prune-masks",
        title: "pruning masks, 50 % of weights",
        levers: &[(Lever::PruneMasks, Given::Count(50))],
        affects: Affects::Both,
        how: "memfit.shrink.prune_masks(model, optimizer, percent=50)",
        note: "zeros take as much memory as other weights: `prune-channels` makes layers smaller",
    },
    Technique {
        name: "fewer-blocks",
        title: "half of the blocks",
        levers: &[(Lever::FewerBlocks, Given::Count(50))],
        affects: Affects::Both,
        how: "memfit.shrink.fewer_blocks(model, optimizer, percent=50)",
        note: "train it further, best with the original model as teacher",
    },
    Technique {
        name: "smaller-images",
        title: "images of half the side",
        levers: &[(Lever::ResizeBeforeUpload, Given::HalfSide)],
        affects: Affects::Both,
        how: "a smaller size in the transform of the data set",
        note: "training and inference with the same size",
    },
    Technique {
        name: "int8-weights",
        title: "8-bit weights for inference",
        levers: &[(Lever::QuantizedWeights, Given::Word("8-bit"))],
        affects: Affects::Inference,
        how: "memfit.shrink.quantized_weights(model, bits=8)",
        note: "after training; only linear layers; dequantized where they are used",
    },
    Technique {
        name: "int4-weights",
        title: "4-bit weights for inference",
        levers: &[(Lever::QuantizedWeights, Given::Word("4-bit"))],
        affects: Affects::Inference,
        how: "memfit.shrink.quantized_weights(model, bits=4)",
        note: "after training; only linear layers; dequantized where they are used",
    },
    Technique {
        name: "torchao-int8",
        title: "torchao int8 weights for inference",
        levers: &[(Lever::TorchaoWeights, Given::Word("int8"))],
        affects: Affects::Inference,
        how: "memfit.shrink.torchao_weights(model, \"int8\")",
        note: "after training; only linear layers",
    },
    Technique {
        name: "torchao-fp8",
        title: "torchao fp8 weights for inference",
        levers: &[(Lever::TorchaoWeights, Given::Word("fp8"))],
        affects: Affects::Inference,
        how: "memfit.shrink.torchao_weights(model, \"fp8\")",
        note: "after training; only linear layers; products are fast on GPUs with fp8 only",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_words_and_lead_back() {
        for (place, technique) in TECHNIQUES.iter().enumerate() {
            let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            assert!(technique.name.bytes().all(is_word), "{}", technique.name);
            assert_eq!(TECHNIQUES.iter().position(|other| other.name == technique.name), Some(place));
            assert_eq!(find(technique.name).map(|found| found.name), Some(technique.name));
        }
        assert!(find("magic").is_none());
    }

    #[test]
    fn levers_can_be_combined_and_the_label_is_theirs() {
        for technique in TECHNIQUES {
            let levers: Vec<Lever> = technique.levers.iter().map(|(lever, _)| *lever).collect();
            assert_eq!(Lever::conflict(&levers), None, "{}", technique.name);
            assert_eq!(technique.label(), Label::ChangesTraining, "{}", technique.name);
        }
    }

    #[test]
    fn a_wrapped_model_keeps_its_parameters() {
        let settings = |name: &str, replicated| {
            let training = Training { replicated, ..Training::default() };
            find(name).is_some_and(|technique| technique.settings(&training).is_ok())
        };
        for name in ["lora", "train-head", "fewer-blocks"] {
            assert!(settings(name, false) && !settings(name, true), "{name}");
        }
        for name in ["8-bit-optimizer", "bf16-weights"] {
            assert!(settings(name, true), "{name}");
        }
    }

    #[test]
    fn images_are_halved_to_a_multiple_that_models_take() {
        let side = |pictures| Given::HalfSide.value(&Training { pictures, ..Training::default() });
        assert_eq!(side((224, 224)), Ok(Value::Count(96)));
        assert_eq!(side((640, 512)), Ok(Value::Count(256)));
        assert!(side((32, 32)).is_err_and(|why| why.contains("32 pixels")));
        assert!(side((0, 0)).is_err_and(|why| why.contains("DataLoader")));
    }
}
