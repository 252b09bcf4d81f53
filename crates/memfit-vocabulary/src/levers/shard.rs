//! Parameters, gradients and optimizer state are sharded over the cards (FSDP2).

use crate::{Declaration, Docs, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[
        (Lever::GradientAsBucketView, "sharded gradients are in no bucket"),
        (Lever::EightBitOptimizer, "a shard's moments are not cut again"),
        (Lever::Bf16OptimizerState, "a shard's moments are not cut again"),
        (Lever::HostOptimizerState, "a shard's moments are not cut again"),
    ],
    brief: "parameters, gradients and optimizer state are sharded over the cards (FSDP2)",
    sentence: Sentence::Words("shards of parameters, gradients and state instead of replicas (FSDP2)"),
    search: Some(Search {
        instead_of: &[Lever::GradientAsBucketView],
        ..Search::new(Turn::WhereShort, 190, sense)
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
            "one process trains on one of {cards} cards: with DistributedDataParallel in the script and `torchrun --nproc-per-node {cards}` before it, memfit plans for all of them"
        ));
    }
    Sense::when(training.replicated)
}
