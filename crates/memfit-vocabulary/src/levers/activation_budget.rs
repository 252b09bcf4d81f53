//! Compiled graphs save a share of their activations, and recompute the rest.

use crate::{
    Declaration, Docs, Label, ModelChange, Moved, Script, Search, Sense, Sentence, Situation, Stage, Turn,
    Value,
};

/// Half of the activations: the others are mostly cheap to recompute within the kernels that need them.
const HALF: u64 = 50;

pub(super) const LEVER: Declaration = Declaration {
    brief: "compiled graphs save at most this share of their activations and recompute the rest",
    sentence: Sentence::With(sentence),
    unit: "%",
    search: Some(Search { of_compiled: true, ..Search::new(Turn::IfMemoryShort, 120, sense) }),
    script: Script::Model(&[ModelChange::Share {
        statement: "torch._functorch.config.activation_memory_budget = {share}",
        imports: &["torch._functorch.config"],
    }]),
    docs: Docs::new(
        "percent",
        "compiled graphs save that percentage of their activations and recompute the rest; graphs that draw random numbers save all",
    ),
    ..Declaration::new("activation-budget", Stage::Model, Label::Rounding)
};

fn sense(situation: &Situation<'_>) -> Sense {
    let training = situation.training;
    if !training.optimizes || !(training.compiled || situation.compiles) {
        return Sense::Nothing;
    }
    if training.draws {
        return Sense::against(
            "the model draws random numbers (dropout, for example), and PyTorch draws new ones when a compiled graph recomputes them: \
             the gradients would be wrong",
        );
    }
    Sense::Try(Value::Count(HALF))
}

fn sentence(moved: Moved<'_>) -> String {
    format!("compiled graphs save {} % of their activations and recompute the rest", moved.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Training;

    #[test]
    fn activation_budget_needs_compiled_code_without_random_numbers() {
        let of = |compiled: bool, compiles: bool, draws: bool| {
            let training = Training { optimizes: true, compiled, draws, ..Training::default() };
            sense(&Situation { compiles, ..Situation::new(&training) })
        };
        assert_eq!(of(false, false, false), Sense::Nothing);
        assert_eq!(of(true, false, false), Sense::Try(Value::Count(HALF)));
        assert_eq!(of(false, true, false), Sense::Try(Value::Count(HALF)));
        assert!(matches!(of(false, true, true), Sense::Against(why) if why.contains("dropout")));
    }
}
