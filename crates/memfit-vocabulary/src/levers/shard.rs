//! Parameters, gradients and optimizer state are sharded over the GPUs (FSDP2).

use crate::{Declaration, Docs, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[
        (Lever::GradientAsBucketView, "FSDP2 has no gradient buckets"),
        (Lever::EightBitOptimizer, "sharded optimizer state is not packed"),
        (Lever::Bf16OptimizerState, "sharded optimizer state is not packed"),
        (Lever::HostOptimizerState, "sharded optimizer state is not packed"),
    ],
    brief: "parameters, gradients and optimizer state sharded over the GPUs (FSDP2)",
    sentence: Sentence::Words("parameters, gradients and optimizer state sharded over the GPUs (FSDP2)"),
    search: Some(Search {
        instead_of: &[Lever::GradientAsBucketView],
        ..Search::new(Turn::IfMemoryShort, 190, sense)
    }),
    docs: Docs::new("", "FSDP2 over all ranks"),
    ..Declaration::new("shard", Stage::Model, Label::Rounding)
};

fn sense(situation: &Situation<'_>) -> Sense {
    let (training, cards) = (situation.training, situation.cards);
    if !training.optimizes || cards < 2 || !situation.is_worth(training.trained + training.state) {
        return Sense::Nothing;
    }
    if training.processes < 2 {
        return Sense::Against(format!(
            "one process trains on one of {cards} GPUs: use DistributedDataParallel in the script and start it with `torchrun --nproc-per-node {cards}`, and memfit plans for all of them"
        ));
    }
    Sense::when(training.replicated)
}
