//! Each parameter is updated as soon as its gradient is computed.

use crate::{Declaration, Docs, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[
        (Lever::MicroBatch, "each gradient is freed before the next micro-batch's could be added"),
        (Lever::AutocastFp16, "overflowed gradients are found only after the backward pass"),
        (Lever::Shard, "gradients are not reduced yet when autograd produces them"),
        (Lever::GradientAsBucketView, "gradients are not reduced yet when autograd produces them"),
    ],
    brief: "each parameter is updated in the backward pass, and its gradient freed",
    sentence: Sentence::Words(
        "each parameter is updated in the backward pass as soon as its gradient is computed, which is then freed",
    ),
    search: Some(Search {
        instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
        ..Search::new(Turn::IfMemoryShort, 130, sense)
    }),
    docs: Docs::new(
        "",
        "each parameter is updated in the backward pass, as soon as its gradient is computed, and the gradient is freed; cannot be combined with gradient accumulation, clipping or a scaler; a second backward pass before the step (as in a GAN) is refused when it reaches a parameter that was already updated",
    ),
    ..Declaration::new("optimizer-in-backward", Stage::Optimizer, Label::Exact)
};

fn sense(situation: &Situation<'_>) -> Sense {
    let training = situation.training;
    if !training.optimizes {
        return Sense::Nothing;
    }
    if training.clips {
        return Sense::against(
            "gradients are clipped by their norm over all parameters, which needs all of them at once",
        );
    }
    if training.own_accumulation > 1 || situation.global_batch.is_some() {
        return Sense::against("gradients are accumulated, and would be freed before the next are added");
    }
    if training.alternates {
        return Sense::against(
            "its optimizers take turns, and the backward pass of one reaches parameters that the other updates",
        );
    }
    if training.backwards > 1 {
        return Sense::Against(format!(
            "a step has {} backward passes, and each would update all parameters that it reaches",
            training.backwards
        ));
    }
    if training.replicated {
        return Sense::against("gradients are reduced between processes after autograd produces them");
    }
    Sense::when(situation.is_worth(training.trained))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Training;

    fn decision(training: Training) -> String {
        let training = Training { optimizes: true, trained: 1 << 30, own_accumulation: 1, ..training };
        match sense(&Situation { device_upper: 1 << 31, ..Situation::new(&training) }) {
            Sense::Against(why) => why,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn trainings_that_need_gradients_after_a_backward_are_not_updated_in_it() {
        let one = Training { backwards: 1, ..Training::default() };
        assert!(decision(one.clone()).starts_with("Try"), "{}", decision(one));
        for (training, text) in [
            (Training { clips: true, ..Training::default() }, "clipped"),
            (Training { alternates: true, ..Training::default() }, "take turns"),
            (Training { backwards: 2, ..Training::default() }, "2 backward passes"),
            (Training { replicated: true, ..Training::default() }, "reduced between processes"),
        ] {
            assert!(decision(training.clone()).contains(text), "{}", decision(training));
        }
    }
}
