//! Images are resized before they are copied to the GPU.

use crate::{Declaration, Docs, Harm, Label, Search, Sense, Sentence, Situation, Stage, Turn, Value};

/// Image sides are multiples of this, as most vision models require.
const MULTIPLE: u64 = 32;
/// Share of the free memory that is used, since memory is not quite proportional to the number of pixels.
const COUNTED_ON: f64 = 0.9;

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Samples,
    brief: "images are resized before they are copied to the GPU",
    sentence: Sentence::With(|moved| format!("images resized to {} pixels on the shorter side", moved.value)),
    search: Some(Search::new(Turn::IfMemoryShort, 250, sense)),
    docs: Docs::new("length", "images are resized on the host so that their shorter side has that length"),
    ..Declaration::new("resize-before-upload", Stage::Data, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    let training = situation.training;
    let (height, width) = training.pictures;
    let shorter = height.min(width);
    let fixed = training.parameters + training.trained + training.state;
    let (peak, budget) = (situation.device_upper, situation.budget);
    if shorter < 2 * MULTIPLE || peak <= budget || budget <= fixed {
        return Sense::Nothing;
    }
    let share = COUNTED_ON * (budget - fixed) as f64 / (peak - fixed) as f64;
    let side = (shorter as f64 * share.clamp(0.0, 1.0).sqrt()) as u64 / MULTIPLE * MULTIPLE;
    if side < MULTIPLE || side >= shorter { Sense::Nothing } else { Sense::Try(Value::Count(side)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Training;

    #[test]
    fn pictures_are_as_large_as_the_card_bears() {
        let side = |pictures: (u64, u64), device_upper: u64, budget: u64| {
            let training = Training { pictures, parameters: 100, ..Training::default() };
            sense(&Situation { device_upper, budget, ..Situation::new(&training) })
        };
        // A quarter of the pixels, minus the reserve.
        assert_eq!(side((1024, 2048), 8_100, 2_100), Sense::Try(Value::Count(480)));
        assert_eq!(side((224, 224), 1_000, 5_000), Sense::Nothing);
        assert_eq!(side((0, 0), 8_000, 2_000), Sense::Nothing);
        assert_eq!(side((32, 32), 8_000, 2_000), Sense::Nothing);
        assert_eq!(side((1024, 1024), 8_000, 90), Sense::Nothing);
    }
}
