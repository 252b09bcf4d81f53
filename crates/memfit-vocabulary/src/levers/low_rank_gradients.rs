//! GaLore: AdamW in a low-rank space into which gradients are projected.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::EightBitOptimizer, "optimizer state is kept in one form"),
        (Lever::Bf16OptimizerState, "optimizer state is kept in one form"),
        (Lever::HostOptimizerState, "optimizer state is in one place"),
        (Lever::Adafactor, "an optimizer has one class"),
        (Lever::FusedOptimizer, "GaLore has no fused kernel"),
        (Lever::ForeachOff, "GaLore updates one parameter after the other"),
        (Lever::OptimizerInBackward, "its groups count their steps"),
        (Lever::PureBf16, "updates in bf16 without stochastic rounding would be lost"),
        (Lever::Lora, "adapters have a low rank already"),
        (Lever::Dora, "adapters have a low rank already"),
        (Lever::PeftQlora, "adapters have a low rank already"),
        (Lever::Shard, "a shard of a gradient is not a matrix"),
    ],
    brief: "AdamW on gradients projected to a low rank (GaLore)",
    docs: Docs::new(
        "rank",
        "GaLore: optimizer moments of the matrices in repeated blocks are low-rank, and all weights are trained; the projections come from a singular value decomposition every 200 steps, which takes time and memory; needs the library pytorch-optimizer, and checkpoints hold its objects",
    ),
    ..Declaration::new("low-rank-gradients", Stage::Optimizer, Label::ChangesTraining)
};
