//! `resize-before-upload`: pictures of fewer pixels, as few as the card's memory needs.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn};
use crate::setting::Value;

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::ResizeBeforeUpload, turn: Turn::WhereShort, sense, instead_of: &[], with: &[] };

/// Sides are multiples of this, as most models of pictures have them.
const MULTIPLE: u64 = 32;
/// What of the room is counted on: memory is not quite in proportion to the pixels.
const COUNTED_ON: f64 = 0.9;

fn sense(asked: Asked<'_>) -> Sense {
    let training = asked.training;
    let (height, width) = training.pictures;
    let shorter = height.min(width);
    let fixed = training.parameters + training.trained + training.state;
    let (peak, budget) = (asked.peak.device_upper, asked.limits.budget);
    if shorter < 2 * MULTIPLE || peak <= budget || budget <= fixed {
        return Sense::Nothing;
    }
    let share = COUNTED_ON * (budget - fixed) as f64 / (peak - fixed) as f64;
    let side = (shorter as f64 * share.clamp(0.0, 1.0).sqrt()) as u64 / MULTIPLE * MULTIPLE;
    if side < MULTIPLE || side >= shorter { Sense::Nothing } else { Sense::Try(Value::Count(side)) }
}

#[cfg(test)]
mod tests {
    use memfit_vocabulary::Label;

    use super::*;
    use crate::plan::Expected;
    use crate::search::Limits;
    use crate::trial::Training;

    #[test]
    fn pictures_are_as_large_as_the_card_bears() {
        let side = |pictures: (u64, u64), peak: u64, budget: u64| {
            let training = Training { pictures, parameters: 100, ..Training::default() };
            let peak = Expected { device_upper: peak, ..Expected::default() };
            let limits = Limits { budget, allow: Label::ChangesTraining, ..Limits::default() };
            sense(Asked { training: &training, peak: &peak, limits: &limits })
        };
        // A quarter of the pixels, less what is not counted on.
        assert_eq!(side((1024, 2048), 8_100, 2_100), Sense::Try(Value::Count(480)));
        assert_eq!(side((224, 224), 1_000, 5_000), Sense::Nothing);
        assert_eq!(side((0, 0), 8_000, 2_000), Sense::Nothing);
        assert_eq!(side((32, 32), 8_000, 2_000), Sense::Nothing);
        assert_eq!(side((1024, 1024), 8_000, 90), Sense::Nothing);
    }
}
