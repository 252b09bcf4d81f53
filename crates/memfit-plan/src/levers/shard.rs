//! `shard`: parameters, gradients and the optimizer's state are spread over the cards, instead of a copy on
//! each.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn};
use crate::setting::Value;

pub(super) const ENTRY: Entry = Entry {
    lever: Lever::Shard,
    turn: Turn::WhereShort,
    sense,
    instead_of: &[Lever::GradientAsBucketView],
    with: &[],
};

fn sense(asked: Asked<'_>) -> Sense {
    let (training, cards) = (asked.training, asked.limits.cards);
    if !training.optimizes || cards < 2 || !asked.is_worth(training.trained + training.state) {
        return Sense::Nothing;
    }
    if training.processes < 2 {
        return Sense::Against(format!(
            "one process trains on one of {cards} cards: with DistributedDataParallel in the script and `torchrun --nproc-per-node {cards}` before it, memfit plans for all of them"
        ));
    }
    if !training.replicated {
        return Sense::Nothing;
    }
    Sense::Try(Value::default())
}
