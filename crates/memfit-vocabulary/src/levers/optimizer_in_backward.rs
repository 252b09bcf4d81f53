//! Each parameter is updated as soon as its gradient is there.

use crate::{Declaration, Docs, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[
        (Lever::MicroBatch, "a gradient is gone before the next one could be added"),
        (Lever::AutocastFp16, "whether gradients overflowed is known only after the backward"),
        (Lever::Shard, "gradients are not reduced yet when they appear"),
        (Lever::GradientAsBucketView, "gradients are not exchanged yet when they appear"),
    ],
    brief: "each parameter is updated as soon as its gradient is there",
    sentence: Sentence::Words(
        "each parameter is updated as soon as its gradient is there, which is then let go",
    ),
    search: Some(Search {
        instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
        ..Search::new(Turn::WhereShort, 130, sense)
    }),
    docs: Docs::new(
        "",
        "each gradient is used and gone; no accumulation, clipping or scaler, and no second backward before the step, as the two models of a GAN have it: it is refused when it reaches a parameter that was updated",
    ),
    ..Declaration::new("optimizer-in-backward", Stage::Optimizer, Label::Exact)
};

fn sense(situation: &Situation<'_>) -> Sense {
    let training = situation.training;
    if !training.optimizes {
        return Sense::Nothing;
    }
    if training.clips {
        return Sense::against("gradients are clipped over all parameters, which takes all of them together");
    }
    if training.own_accumulation > 1 || situation.global_batch.is_some() {
        return Sense::against("gradients are accumulated, and would be gone before the next are added");
    }
    if training.alternates {
        return Sense::against(
            "its optimizers take turns, and the backward of one reaches what the other updates",
        );
    }
    if training.backwards > 1 {
        return Sense::Against(format!(
            "{} backwards add up to a step's gradients, or train other parameters, and each would update all that it reaches",
            training.backwards
        ));
    }
    if training.replicated {
        return Sense::against("gradients are exchanged between processes, and are not yet when they appear");
    }
    Sense::when(situation.is_worth(training.trained))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Training;

    fn told(training: Training) -> String {
        let training = Training { optimizes: true, trained: 1 << 30, own_accumulation: 1, ..training };
        match sense(&Situation { device_upper: 1 << 31, ..Situation::new(&training) }) {
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
