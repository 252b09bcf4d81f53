//! The techniques: levers with their settings, and the equivalent call in a script.

use memfit_vocabulary::{Harm, Label, Lever, Training, Value};

/// Sides of resized images are multiples of this, as most vision models require.
const SIDE_MULTIPLE: u64 = 32;

/// A technique.
#[derive(Clone, Copy, Debug)]
pub struct Technique {
    /// The name on the command line and in JSON.
    pub name: &'static str,
    /// Description in tables.
    pub title: &'static str,
    /// Levers and their settings.
    pub levers: &'static [(Lever, Given)],
    /// Runs that it changes.
    pub affects: Affects,
    /// The technique in the user's own code.
    pub how: &'static str,
    /// Cost besides memory.
    pub note: &'static str,
}

/// The part of a model's life that a technique affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affects {
    /// Training and inference.
    Both,
    /// Training only: the trained model is as large as before.
    Training,
    /// Inference only: it is applied to a trained model.
    Inference,
    /// Training with the technique's levers, and inference with these levers instead.
    Then(&'static [(Lever, Given)]),
}

/// The setting of a technique's lever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// On.
    On,
    /// A number.
    Count(u64),
    /// A word.
    Word(&'static str),
    /// Half of the shorter side of the training's images.
    HalfSide,
    /// Half of the length of the training's longest token sequence.
    HalfLength,
}

impl Given {
    /// The setting for a training run, or the reason why it cannot be determined.
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
            Self::HalfLength => match training.sequence {
                0 | 1 => return Err("no DataLoader gave sequences of tokens".to_owned()),
                length => Value::Count(length / 2),
            },
        })
    }
}

impl Technique {
    /// The levers' settings for a training run, or the reason why it cannot be applied to it.
    pub fn settings(&self, training: &Training) -> Result<Vec<(Lever, Value)>, String> {
        // DDP waits for the gradients of all parameters with which it was created.
        if training.replicated && self.levers.iter().any(|(lever, _)| lever.harm() == Harm::Model) {
            let why = "the model is in DistributedDataParallel already: apply it before the model is wrapped";
            return Err(why.to_owned());
        }
        settings(self.levers, training)
    }

    /// The levers' settings for inference.
    pub fn inference_settings(&self, training: &Training) -> Result<Vec<(Lever, Value)>, String> {
        match self.affects {
            Affects::Then(levers) => settings(levers, training),
            _ => self.settings(training),
        }
    }

    /// The label of the lever with the largest effect on training results.
    pub fn label(&self) -> Label {
        self.levers.iter().map(|(lever, _)| lever.label()).max().unwrap_or(Label::Exact)
    }
}

fn settings(levers: &[(Lever, Given)], training: &Training) -> Result<Vec<(Lever, Value)>, String> {
    levers.iter().map(|(lever, given)| Ok((*lever, given.value(training)?))).collect()
}

/// The technique with this name.
pub fn find(name: &str) -> Option<&'static Technique> {
    TECHNIQUES.iter().find(|technique| technique.name == name)
}

/// All techniques, in the order of tables.
pub const TECHNIQUES: &[Technique] = &[
    Technique {
        name: "lora",
        title: "LoRA adapters, rank 16",
        levers: &[(Lever::Lora, Given::Count(16))],
        affects: Affects::Both,
        how: "memfit.shrink.lora(model, optimizer, rank=16)",
        note: "needs pretrained weights; inference is measured with separate adapters: merged ones add nothing to it",
    },
    Technique {
        name: "dora",
        title: "DoRA adapters, rank 16",
        levers: &[(Lever::Dora, Given::Count(16))],
        affects: Affects::Both,
        how: "memfit.shrink.dora(model, optimizer, rank=16)",
        note: "needs pretrained weights; the full weight is built in each forward pass",
    },
    Technique {
        name: "qlora",
        title: "LoRA on 4-bit weights (QLoRA)",
        levers: &[(Lever::Lora, Given::Count(16)), (Lever::QuantizedBase, Given::Word("4-bit"))],
        affects: Affects::Both,
        how: "memfit.shrink.qlora(model, optimizer, rank=16, bits=4)",
        note: "needs pretrained weights; weights are dequantized where they are used, which takes time",
    },
    Technique {
        name: "qlora-8-bit",
        title: "LoRA on 8-bit weights",
        levers: &[(Lever::Lora, Given::Count(16)), (Lever::QuantizedBase, Given::Word("8-bit"))],
        affects: Affects::Both,
        how: "memfit.shrink.qlora(model, optimizer, rank=16, bits=8)",
        note: "needs pretrained weights; weights are dequantized where they are used, which takes time",
    },
    Technique {
        name: "peft-qlora",
        title: "LoRA of peft on NF4 weights of bitsandbytes",
        levers: &[(Lever::PeftQlora, Given::Count(16))],
        affects: Affects::Both,
        how: "memfit.shrink.peft_qlora(model, optimizer, rank=16)",
        note: "needs pretrained weights; saved with peft",
    },
    Technique {
        name: "torchao-qlora",
        title: "LoRA of peft on int8 weights of torchao",
        levers: &[(Lever::TorchaoQlora, Given::Count(16))],
        affects: Affects::Both,
        how: "memfit.shrink.torchao_qlora(model, optimizer, rank=16)",
        note: "needs pretrained weights; saved with peft, which cannot merge these adapters",
    },
    Technique {
        name: "train-head",
        title: "train the head only",
        levers: &[(Lever::TrainOnly, Given::Word("head"))],
        affects: Affects::Training,
        how: "memfit.shrink.train_only(model, \"head\", optimizer)",
        note: "needs pretrained weights",
    },
    Technique {
        name: "train-last-blocks",
        title: "train the last 2 blocks",
        levers: &[(Lever::TrainOnly, Given::Word("last-2-blocks"))],
        affects: Affects::Training,
        how: "memfit.shrink.train_only(model, \"last-2-blocks\", optimizer)",
        note: "needs pretrained weights",
    },
    Technique {
        name: "train-biases",
        title: "train biases only (BitFit)",
        levers: &[(Lever::TrainOnly, Given::Word("biases"))],
        affects: Affects::Training,
        how: "memfit.shrink.train_only(model, \"biases\", optimizer)",
        note: "needs pretrained weights; the backward pass still runs through all layers",
    },
    Technique {
        name: "train-norms",
        title: "train norms only",
        levers: &[(Lever::TrainOnly, Given::Word("norms"))],
        affects: Affects::Training,
        how: "memfit.shrink.train_only(model, \"norms\", optimizer)",
        note: "needs pretrained weights; the backward pass still runs through all layers",
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
        name: "low-rank-gradients",
        title: "gradients of rank 128 (GaLore)",
        levers: &[(Lever::LowRankGradients, Given::Count(128))],
        affects: Affects::Training,
        how: "memfit.shrink.low_rank_gradients(model, optimizer, rank=128)",
        note: "all weights are trained; every 200 steps take a singular value decomposition",
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
        name: "float8-training",
        title: "products of linear layers in float8",
        levers: &[(Lever::Float8Training, Given::On)],
        affects: Affects::Training,
        how: "memfit.shrink.float8_training(model)",
        note: "for speed, and only with `torch.compile`; needs a GPU with float8",
    },
    Technique {
        name: "qat",
        title: "quantization-aware training for 4-bit weights",
        levers: &[(Lever::Qat, Given::Word("int4"))],
        affects: Affects::Then(&[(Lever::TorchaoWeights, Given::Word("int8-int4"))]),
        how: "memfit.shrink.qat(model)",
        note: "for the quality of quantized weights: training takes more memory; torchao keeps the 4-bit weights for inference in 8 bits",
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
        name: "depthwise",
        title: "depthwise and 1x1 convolutions",
        levers: &[(Lever::LighterConvolutions, Given::Word("depthwise"))],
        affects: Affects::Both,
        how: "memfit.shrink.lighter_convolutions(model, \"depthwise\", optimizer)",
        note: "the new layers begin with random weights",
    },
    Technique {
        name: "grouped",
        title: "convolutions in 4 groups",
        levers: &[(Lever::LighterConvolutions, Given::Word("grouped"))],
        affects: Affects::Both,
        how: "memfit.shrink.lighter_convolutions(model, \"grouped\", optimizer)",
        note: "the new layers begin with random weights",
    },
    Technique {
        name: "small-kernels",
        title: "kernels of 3x3 instead of larger ones",
        levers: &[(Lever::LighterConvolutions, Given::Word("small-kernels"))],
        affects: Affects::Both,
        how: "memfit.shrink.lighter_convolutions(model, \"small-kernels\", optimizer)",
        note: "the new layers begin with random weights",
    },
    Technique {
        name: "mobilenet",
        title: "torchvision's mobilenet_v3_large",
        levers: &[(Lever::DropInNetwork, Given::Word("mobilenet_v3_large"))],
        affects: Affects::Both,
        how: "memfit.shrink.drop_in_network(model, images, \"mobilenet_v3_large\", optimizer)",
        note: "torchvision publishes 75.27 % top-1 on ImageNet for its IMAGENET1K_V2 weights (ResNet-50: 80.86 %)",
    },
    Technique {
        name: "efficientnet",
        title: "torchvision's efficientnet_b0",
        levers: &[(Lever::DropInNetwork, Given::Word("efficientnet_b0"))],
        affects: Affects::Both,
        how: "memfit.shrink.drop_in_network(model, images, \"efficientnet_b0\", optimizer)",
        note: "torchvision publishes 77.69 % top-1 on ImageNet for its IMAGENET1K_V1 weights (ResNet-50: 80.86 %)",
    },
    Technique {
        name: "regnet",
        title: "torchvision's regnet_y_800mf",
        levers: &[(Lever::DropInNetwork, Given::Word("regnet_y_800mf"))],
        affects: Affects::Both,
        how: "memfit.shrink.drop_in_network(model, images, \"regnet_y_800mf\", optimizer)",
        note: "torchvision publishes 78.83 % top-1 on ImageNet for its IMAGENET1K_V2 weights (ResNet-50: 80.86 %)",
    },
    Technique {
        name: "rexnet",
        title: "timm's rexnet_150",
        levers: &[(Lever::DropInNetwork, Given::Word("timm/rexnet_150"))],
        affects: Affects::Both,
        how: "memfit.shrink.drop_in_network(model, images, \"timm/rexnet_150\", optimizer)",
        note: "timm publishes 80.32 % top-1 on ImageNet for rexnet_150.nav_in1k at 224 pixels (resnet50.a1h_in1k: 80.68 %)",
    },
    Technique {
        name: "convnext",
        title: "timm's convnext_pico",
        levers: &[(Lever::DropInNetwork, Given::Word("timm/convnext_pico"))],
        affects: Affects::Both,
        how: "memfit.shrink.drop_in_network(model, images, \"timm/convnext_pico\", optimizer)",
        note: "timm publishes 80.41 % top-1 on ImageNet for convnext_pico.d1_in1k at 288 pixels (resnet50.a1_in1k: 81.21 %)",
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
        name: "shorter-sequences",
        title: "sequences of half the tokens",
        levers: &[(Lever::ShorterSequences, Given::HalfLength)],
        affects: Affects::Both,
        how: "a smaller max_length in the tokenizer or the data set",
        note: "the model sees less of each text",
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
        name: "torchao-int4",
        title: "torchao int4 weights for inference, the rest in bf16",
        levers: &[(Lever::PureBf16, Given::On), (Lever::TorchaoWeights, Given::Word("int4"))],
        affects: Affects::Inference,
        how: "memfit.shrink.bf16_weights(model), then memfit.shrink.torchao_weights(model, \"int4\")",
        note: "after training; only linear layers; needs a GPU from Ampere on",
    },
    Technique {
        name: "torchao-fp8",
        title: "torchao fp8 weights for inference",
        levers: &[(Lever::TorchaoWeights, Given::Word("fp8"))],
        affects: Affects::Inference,
        how: "memfit.shrink.torchao_weights(model, \"fp8\")",
        note: "after training; only linear layers; products are fast on GPUs with fp8 only",
    },
    Technique {
        name: "semi-structured",
        title: "2:4 sparsity for inference, in bf16",
        levers: &[(Lever::PureBf16, Given::On), (Lever::SemiStructured, Given::On)],
        affects: Affects::Inference,
        how: "memfit.shrink.bf16_weights(model), then memfit.shrink.semi_structured(model)",
        note: "after training, best trained further with the zeros; only linear layers; needs a GPU of compute capability 8.x",
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
            if let Affects::Then(levers) = technique.affects {
                let levers: Vec<Lever> = levers.iter().map(|(lever, _)| *lever).collect();
                assert_eq!(Lever::conflict(&levers), None, "{}", technique.name);
            }
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

    #[test]
    fn sequences_are_halved_where_a_loader_gave_some() {
        let tokens = |sequence| Given::HalfLength.value(&Training { sequence, ..Training::default() });
        assert_eq!(tokens(513), Ok(Value::Count(256)));
        assert!(tokens(0).is_err_and(|why| why.contains("DataLoader")));
    }
}
