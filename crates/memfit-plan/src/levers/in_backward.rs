//! `optimizer-in-backward`: each parameter is updated as soon as its gradient is there, and the gradient let go.

use memfit_levers::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const ENTRY: Entry = Entry {
    lever: Lever::OptimizerInBackward,
    turn: Turn::WhereShort,
    sense,
    instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
    with: &[],
};

fn sense(asked: Asked<'_>) -> Sense {
    if !asked.training.optimizes {
        return Sense::Nothing;
    }
    if asked.training.clips {
        return Sense::Against(
            "gradients are clipped over all parameters, which takes all of them together".to_owned(),
        );
    }
    if asked.training.own_accumulation > 1 || asked.limits.global_batch.is_some() {
        return Sense::Against(
            "gradients are accumulated, and would be gone before the next are added".to_owned(),
        );
    }
    when(asked.is_worth(asked.training.trained))
}
