//! How much memory a micro-batch will need, beyond what stands already.
//!
//! What is recorded is a need: the peak while a part ran, less what was live before its window. For one shape
//! of sample it grows with the number of samples, nearly in a straight line that does not begin below zero.
//! So one size that was seen bounds a larger one in proportion, and two give the line, which is lifted above
//! all that was seen.
//!
//! Across shapes of one kind (the same tensors, other lengths) a need grows with the elements of a sample, in
//! proportion or faster, as attention's square does. So between two shapes that were seen, the chord is above
//! the curve; beyond the largest, the square of the ratio is. A prediction for a shape that was never seen is
//! therefore one from above.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What was seen, by kind of sample, and in each by the elements of a sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predictor {
    kinds: BTreeMap<String, BTreeMap<u64, Needs>>,
}

/// The highest need that was seen at each size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Needs(BTreeMap<u32, u64>);

impl Needs {
    /// The need at a size, from above.
    fn at(&self, size: u32) -> Option<f64> {
        let (&first, &least) = self.0.first_key_value()?;
        let below = self.0.range(..=size).map(|(_, &need)| need).max().unwrap_or(0) as f64;
        if let Some(&exact) = self.0.get(&size) {
            return Some((exact as f64).max(below));
        }
        let line = match above(&self.0) {
            Some((base, slope)) => base + slope * f64::from(size),
            // More samples need no more than in proportion; fewer no more than these.
            None => least as f64 * (f64::from(size) / f64::from(first)).max(1.0),
        };
        Some(line.max(below))
    }
}

impl Predictor {
    /// A part of this size needed so much.
    pub fn saw(&mut self, shape: &str, elements: u64, size: u32, need: u64) {
        let needs = self.kinds.entry(kind_of(shape)).or_default().entry(elements.max(1)).or_default();
        let highest = needs.0.entry(size).or_default();
        *highest = need.max(*highest);
    }

    /// Whether parts of this shape were seen that were as large, or larger.
    pub fn knows(&self, shape: &str, elements: u64, size: u32) -> bool {
        let own = self.kinds.get(&kind_of(shape)).and_then(|kind| kind.get(&elements.max(1)));
        own.is_some_and(|needs| needs.0.range(size..).next().is_some())
    }

    /// Whether a line is known for a shape, or a chord between others: so that what is foreseen need not be
    /// tried first.
    pub fn is_sure(&self, shape: &str, elements: u64) -> bool {
        let Some(kind) = self.kinds.get(&kind_of(shape)) else { return false };
        match kind.get(&elements.max(1)) {
            Some(own) => own.0.len() > 1,
            None => kind.range(elements.max(1)..).next().is_some(),
        }
    }

    /// The need at a size, from above, if anything is known of such samples.
    pub fn need(&self, shape: &str, elements: u64, size: u32) -> Option<u64> {
        let kind = self.kinds.get(&kind_of(shape))?;
        let elements = elements.max(1);
        let smaller = kind.range(..=elements).next_back();
        let larger = kind.range(elements..).next();
        let need = match (smaller, larger) {
            (Some((&few, smaller)), Some((&many, larger))) if many > few => {
                let (low, high) = (smaller.at(size)?, larger.at(size)?.max(smaller.at(size)?));
                low + (high - low) * ((elements - few) as f64 / (many - few) as f64)
            }
            (_, Some((_, larger))) => larger.at(size)?,
            (Some((&few, smaller)), None) => {
                let ratio = elements as f64 / few as f64;
                smaller.at(size)? * ratio * ratio
            }
            (None, None) => return None,
        };
        Some(need.ceil() as u64)
    }

    /// The largest size of at most `most` whose need stays within a room; none if nothing is known, or if not
    /// even one sample does.
    pub fn largest(&self, shape: &str, elements: u64, most: u32, room: u64) -> Option<u32> {
        largest(most, room, |size| self.need(shape, elements, size))
    }
}

/// The largest size of at most `most` whose need, which grows with it, stays within a room.
pub(crate) fn largest(most: u32, room: u64, need: impl Fn(u32) -> Option<u64>) -> Option<u32> {
    let (mut fits, mut fails) = (0, most.checked_add(1)?);
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        if need(middle)? <= room { fits = middle } else { fails = middle }
    }
    (fits > 0).then_some(fits)
}

/// A shape without its lengths.
fn kind_of(shape: &str) -> String {
    shape.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

/// The line of least squares, lifted until no point is above it, and never falling: its base and slope. None
/// without two different sizes.
fn above(needs: &BTreeMap<u32, u64>) -> Option<(f64, f64)> {
    let count = needs.len() as f64;
    let points = || needs.iter().map(|(&size, &need)| (f64::from(size), need as f64));
    let (sum_x, sum_y) = points().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
    let (mean_x, mean_y) = (sum_x / count, sum_y / count);
    let (covariance, variance) = points().fold((0.0, 0.0), |(covariance, variance), (x, y)| {
        (covariance + (x - mean_x) * (y - mean_y), variance + (x - mean_x).powi(2))
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
        // Beyond what was seen: as the square.
        assert_eq!(predictor.need("int64[100]", 100, 1), Some(100_000));
        assert_eq!(predictor.need("float32[100]", 100, 1), None, "another kind of sample");
        predictor.saw("int64[30]", 30, 1, 5_000);
        // Between two: the chord.
        assert_eq!(predictor.need("int64[20]", 20, 1), Some(3_000));
        assert!(predictor.is_sure("int64[20]", 20));
        assert!(!predictor.is_sure("int64[40]", 40));
        // Below the smallest: no more than that.
        assert_eq!(predictor.need("int64[5]", 5, 1), Some(1_000));
    }

    proptest! {
        #[test]
        fn predictions_never_fall_and_never_undercut(
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

        /// Whatever a sample costs (in proportion to its elements, and to their square), and whichever sizes
        /// and lengths were seen: no prediction is below the truth.
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
