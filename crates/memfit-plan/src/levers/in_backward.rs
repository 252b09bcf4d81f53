//! `optimizer-in-backward`: each parameter is updated as soon as its gradient is there, and the gradient let
//! go.

use memfit_vocabulary::Lever;

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
    if asked.training.alternates {
        return Sense::Against(
            "its optimizers take turns, and the backward of one reaches what the other updates".to_owned(),
        );
    }
    if asked.training.backwards > 1 {
        return Sense::Against(format!(
            "{} backwards add up to a step's gradients, or train other parameters, and each would update all that it reaches",
            asked.training.backwards
        ));
    }
    if asked.training.replicated {
        return Sense::Against(
            "gradients are exchanged between processes, and are not yet when they appear".to_owned(),
        );
    }
    when(asked.is_worth(asked.training.trained))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Expected;
    use crate::search::Limits;
    use crate::trial::Training;

    fn told(training: Training) -> String {
        let training = Training { optimizes: true, trained: 1 << 30, own_accumulation: 1, ..training };
        let (peak, limits) = (Expected { device_upper: 1 << 31, ..Expected::default() }, Limits::default());
        match sense(Asked { training: &training, peak: &peak, limits: &limits }) {
            Sense::Against(why) => why,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn what_needs_gradients_after_one_backward_is_not_updated_in_it() {
        let one = Training { backwards: 1, ..Training::default() };
        assert!(told(one.clone()).starts_with("Try"), "{}", told(one));
        for (training, text) in [
            (Training { clips: true, ..Training::default() }, "clipped"),
            (Training { alternates: true, ..Training::default() }, "take turns"),
            (Training { backwards: 2, ..Training::default() }, "2 backwards"),
            (Training { replicated: true, ..Training::default() }, "exchanged"),
        ] {
            assert!(told(training.clone()).contains(text), "{}", told(training));
        }
    }
}
