//! Token sequences are truncated before they are copied to the GPU.

use crate::{Declaration, Docs, Harm, Label, Search, Sense, Sentence, Situation, Stage, Turn, Value};

/// Lengths are multiples of this, which matrix and attention kernels prefer.
const MULTIPLE: u64 = 64;
/// Share of the free memory that is used, since memory is not quite proportional to the number of tokens.
const COUNTED_ON: f64 = 0.9;

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Samples,
    brief: "sequences are cut before they are copied to the GPU",
    sentence: Sentence::With(|moved| format!("sequences cut to {} tokens", moved.value)),
    search: Some(Search::new(Turn::IfMemoryShort, 260, sense)),
    docs: Docs::new("tokens", "ids, labels and masks are truncated on the host to at most that many tokens"),
    ..Declaration::new("shorter-sequences", Stage::Data, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    let training = situation.training;
    let length = training.sequence;
    let fixed = training.parameters + training.trained + training.state;
    let (peak, budget) = (situation.device_upper, situation.budget);
    if length < 2 * MULTIPLE || peak <= budget || budget <= fixed {
        return Sense::Nothing;
    }
    let share = COUNTED_ON * (budget - fixed) as f64 / (peak - fixed) as f64;
    let kept = (length as f64 * share.clamp(0.0, 1.0)) as u64 / MULTIPLE * MULTIPLE;
    if kept < MULTIPLE || kept >= length { Sense::Nothing } else { Sense::Try(Value::Count(kept)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Training;

    #[test]
    fn sequences_are_as_long_as_the_card_bears() {
        let kept = |sequence: u64, device_upper: u64, budget: u64| {
            let training = Training { sequence, parameters: 100, ..Training::default() };
            sense(&Situation { device_upper, budget, ..Situation::new(&training) })
        };
        // A quarter of the tokens, minus the reserve.
        assert_eq!(kept(2048, 8_100, 2_100), Sense::Try(Value::Count(448)));
        assert_eq!(kept(512, 1_000, 5_000), Sense::Nothing);
        assert_eq!(kept(0, 8_000, 2_000), Sense::Nothing);
        assert_eq!(kept(96, 8_000, 2_000), Sense::Nothing);
        assert_eq!(kept(2048, 8_000, 90), Sense::Nothing);
    }
}
