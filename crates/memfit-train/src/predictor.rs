//! Prediction of a micro-batch's memory need.
//!
//! A need is the peak during a micro-batch minus the live memory before its window. For one shape of sample
//! it is nearly linear in the number of samples, with a nonnegative constant part. One observed size
//! therefore bounds a larger one in proportion, and two determine a line, which is raised above all
//! observations.
//!
//! Across shapes of one kind (the same tensors with other lengths), a need grows with the elements of a
//! sample, linearly or faster, such as quadratically for attention. Between two observed shapes the chord is
//! above the curve; beyond the largest, the square of the ratio is an upper bound. Predictions for shapes
//! never seen are therefore upper bounds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Observations by kind of sample and by elements of a sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predictor {
    kinds: BTreeMap<String, BTreeMap<u64, Needs>>,
}

/// Highest need observed at each size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Needs(BTreeMap<u32, u64>);

impl Needs {
    /// Upper bound for the need at a size.
    fn upper_bound(&self, size: u32) -> Option<f64> {
        let (&first, &least) = self.0.first_key_value()?;
        let below = self.0.range(..=size).map(|(_, &need)| need).max().unwrap_or(0) as f64;
        if let Some(&exact) = self.0.get(&size) {
            return Some((exact as f64).max(below));
        }
        let line = match above(&self.0) {
            Some((base, slope)) => base + slope * f64::from(size),
            // More samples need at most proportionally more; fewer need at most as much.
            None => least as f64 * (f64::from(size) / f64::from(first)).max(1.0),
        };
        Some(line.max(below))
    }
}

impl Predictor {
    /// Records the need of a micro-batch.
    pub fn saw(&mut self, shape: &str, elements: u64, size: u32, need: u64) {
        let needs = self.kinds.entry(kind_of(shape)).or_default().entry(elements.max(1)).or_default();
        let highest = needs.0.entry(size).or_default();
        *highest = need.max(*highest);
    }

    /// Returns `true` if a micro-batch of this shape was observed that was at least as large.
    pub fn knows(&self, shape: &str, elements: u64, size: u32) -> bool {
        let own = self.kinds.get(&kind_of(shape)).and_then(|kind| kind.get(&elements.max(1)));
        own.is_some_and(|needs| needs.0.range(size..).next().is_some())
    }

    /// Returns `true` if two sizes of this shape, or a larger shape, were observed, so that the prediction
    /// needs no trial.
    pub fn is_sure(&self, shape: &str, elements: u64) -> bool {
        let Some(kind) = self.kinds.get(&kind_of(shape)) else { return false };
        match kind.get(&elements.max(1)) {
            Some(own) => own.0.len() > 1,
            None => kind.range(elements.max(1)..).next().is_some(),
        }
    }

    /// Upper bound for the need at a size, if samples of this kind were observed.
    pub fn need(&self, shape: &str, elements: u64, size: u32) -> Option<u64> {
        let kind = self.kinds.get(&kind_of(shape))?;
        let elements = elements.max(1);
        let smaller = kind.range(..=elements).next_back();
        let larger = kind.range(elements..).next();
        let need = match (smaller, larger) {
            (Some((&few, smaller)), Some((&many, larger))) if many > few => {
                let (low, high) =
                    (smaller.upper_bound(size)?, larger.upper_bound(size)?.max(smaller.upper_bound(size)?));
                low + (high - low) * ((elements - few) as f64 / (many - few) as f64)
            }
            (_, Some((_, larger))) => larger.upper_bound(size)?,
            (Some((&few, smaller)), None) => {
                let ratio = elements as f64 / few as f64;
                smaller.upper_bound(size)? * ratio * ratio
            }
            (None, None) => return None,
        };
        Some(need.ceil() as u64)
    }

    /// Largest size of at most `most` with a need of at most `room`; `None` if nothing is known, or if not
    /// even one sample fits.
    pub fn largest(&self, shape: &str, elements: u64, most: u32, room: u64) -> Option<u32> {
        largest(most, room, |size| self.need(shape, elements, size))
    }
}

/// Largest size of at most `most` with a need, which grows with the size, of at most `room`.
pub(crate) fn largest(most: u32, room: u64, need: impl Fn(u32) -> Option<u64>) -> Option<u32> {
    let (mut fits, mut fails) = (0, most.checked_add(1)?);
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        if need(middle)? <= room { fits = middle } else { fails = middle }
    }
    (fits > 0).then_some(fits)
}

/// Shape without its lengths, which are in brackets: `float32[3, 224, 224]` is `float32[, , ]`.
fn kind_of(shape: &str) -> String {
    let mut depth = 0_u32;
    let mut is_kept = |letter: char| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 || !letter.is_ascii_digit()
    };
    shape.chars().filter(|letter| is_kept(*letter)).collect()
}

/// Least-squares line, raised until no point is above it, and never falling: constant and slope. `None` with
/// fewer than two sizes.
fn above(needs: &BTreeMap<u32, u64>) -> Option<(f64, f64)> {
    let count = needs.len() as f64;
    let points = || needs.iter().map(|(&size, &need)| (f64::from(size), need as f64));
    let mean = points().map(|(x, _)| x).sum::<f64>() / count;
    let (covariance, variance) = points().fold((0.0, 0.0), |(covariance, variance), (x, y)| {
        (covariance + (x - mean) * y, variance + (x - mean).powi(2))
    });
    if variance <= 0.0 || variance.is_nan() {
        return None;
    }
    let slope = (covariance / variance).max(0.0);
    let lift = points().map(|(x, y)| y - slope * x).fold(f64::NEG_INFINITY, f64::max);
    Some((lift, slope))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_sizes_give_the_rest_and_one_bounds_it() {
        let mut predictor = Predictor::default();
        assert_eq!(predictor.largest("a", 10, 64, 1 << 30), None);
        predictor.saw("a", 10, 2, 1_200);
        assert_eq!(predictor.need("a", 10, 1), Some(1_200));
        assert_eq!(predictor.need("a", 10, 4), Some(2_400));
        assert!(!predictor.is_sure("a", 10));
        predictor.saw("a", 10, 4, 1_400);
        assert!(predictor.is_sure("a", 10));
        assert_eq!(predictor.need("a", 10, 8), Some(1_800));
        assert_eq!(predictor.largest("a", 10, 64, 2_000), Some(10));
        assert_eq!(predictor.largest("a", 10, 64, 1_000), None);
    }

    #[test]
    fn another_length_is_judged_by_its_neighbours() {
        let mut predictor = Predictor::default();
        predictor.saw("int64[10]", 10, 1, 1_000);
        predictor.saw("int64[10]", 10, 2, 2_000);
        // Beyond the observations: the square.
        assert_eq!(predictor.need("int64[100]", 100, 1), Some(100_000));
        assert_eq!(predictor.need("float32[100]", 100, 1), None, "another kind of sample");
        assert_eq!(predictor.need("int32[10]", 10, 1), None, "another width of its numbers");
        predictor.saw("int64[30]", 30, 1, 5_000);
        // Between two: the chord.
        assert_eq!(predictor.need("int64[20]", 20, 1), Some(3_000));
        assert!(predictor.is_sure("int64[20]", 20));
        assert!(!predictor.is_sure("int64[40]", 40));
        // Below the smallest: no more than its need.
        assert_eq!(predictor.need("int64[5]", 5, 1), Some(1_000));
    }

    proptest! {
        #[test]
        fn predictions_are_monotonic_and_never_below_observations(
            seen in prop::collection::btree_map(1u32..64, 0u64..1 << 40, 1..8), room in 0u64..1 << 41,
        ) {
            let mut predictor = Predictor::default();
            for (&size, &need) in &seen {
                predictor.saw("a", 7, size, need);
            }
            for (&size, &need) in &seen {
                prop_assert!(predictor.need("a", 7, size) >= Some(need));
            }
            if let Some(size) = predictor.largest("a", 7, 64, room) {
                prop_assert!(predictor.need("a", 7, size) <= Some(room));
            }
        }

        /// For any cost of a sample (linear and quadratic in its elements) and any observed sizes and
        /// lengths, no prediction is below the truth.
        #[test]
        fn a_length_that_was_never_seen_is_bounded_from_above(
            base in 0u64..10_000, linear in 0u64..100, square in 0u64..10,
            seen in prop::collection::vec((1u64..50, 1u32..16), 1..8), asked in (1u64..100, 1u32..32),
        ) {
            let truth = |elements: u64, size: u32| {
                base + u64::from(size) * (linear * elements + square * elements * elements)
            };
            let mut predictor = Predictor::default();
            for (elements, size) in seen {
                predictor.saw(&format!("int64[{elements}]"), elements, size, truth(elements, size));
            }
            let (elements, size) = asked;
            let foreseen = predictor.need(&format!("int64[{elements}]"), elements, size);
            prop_assert!(foreseen >= Some(truth(elements, size)), "{foreseen:?}, in truth {}", truth(elements, size));
        }
    }
}
