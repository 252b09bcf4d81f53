//! How much memory a micro-batch will need.
//!
//! For one shape of sample the peak grows with the number of samples, nearly in a straight line: what stands already
//! (weights, moments), and so much a sample. Two sizes that were seen give the line; from there on the prediction for a
//! larger one is taken above the line by the largest error that was seen. Across shapes, what a sample needs is taken to
//! grow with its number of elements, which is a lower bound where attention is quadratic; so another shape's figures are
//! only used to choose a first size, never to pass one that failed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What was seen, by shape.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predictor {
    shapes: BTreeMap<String, Shape>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Shape {
    /// Elements in one sample.
    elements: u64,
    /// The highest peak that was seen at each size.
    peaks: BTreeMap<u32, u64>,
}

/// A straight line above what was seen: bytes at a size are `base + slope * size`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    base: f64,
    slope: f64,
}

impl Line {
    fn at(self, size: u32) -> f64 {
        self.base + self.slope * f64::from(size)
    }
}

impl Predictor {
    /// A micro-batch of this size had this peak.
    pub fn saw(&mut self, shape: &str, elements: u64, size: u32, peak: u64) {
        let entry = self.shapes.entry(shape.to_owned()).or_default();
        entry.elements = elements;
        let highest = entry.peaks.entry(size).or_default();
        *highest = peak.max(*highest);
    }

    /// The peak at a size, if it can be told. Never below what was seen at a smaller or the same size.
    pub fn peak(&self, shape: &str, elements: u64, size: u32) -> Option<u64> {
        let own = self.shapes.get(shape);
        let seen = own.and_then(|own| own.peaks.range(..=size).map(|(_, &peak)| peak).max()).unwrap_or(0);
        if let Some(&exact) = own.and_then(|own| own.peaks.get(&size)) {
            return Some(exact.max(seen));
        }
        let line = self.line(shape, elements)?;
        Some((line.at(size).ceil() as u64).max(seen))
    }

    /// The largest size of at most `most` whose peak stays within a budget; none if nothing is known, or if not even one
    /// sample does.
    pub fn largest(&self, shape: &str, elements: u64, most: u32, budget: u64) -> Option<u32> {
        self.peak(shape, elements, most)?;
        // Predictions grow with the size, so the answer can be bisected.
        let (mut fits, mut fails) = (0, most.checked_add(1)?);
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            if self.peak(shape, elements, middle)? <= budget { fits = middle } else { fails = middle }
        }
        (fits > 0).then_some(fits)
    }

    /// A line for a shape: its own, or else one from all shapes by their elements.
    fn line(&self, shape: &str, elements: u64) -> Option<Line> {
        if let Some(own) = self.shapes.get(shape)
            && let Some(line) = above(own.peaks.iter().map(|(&size, &peak)| (f64::from(size), peak as f64)))
        {
            return Some(line);
        }
        let scaled = self.shapes.values().flat_map(|shape| {
            shape.peaks.iter().map(|(&size, &peak)| (f64::from(size) * shape.elements as f64, peak as f64))
        });
        let line = above(scaled)?;
        Some(Line { base: line.base, slope: line.slope * elements as f64 })
    }
}

/// The line of least squares, lifted until no point is above it, and never falling. None without two different sizes.
fn above(points: impl Iterator<Item = (f64, f64)> + Clone) -> Option<Line> {
    let count = points.clone().count() as f64;
    let (sum_x, sum_y) = points.clone().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
    let (mean_x, mean_y) = (sum_x / count, sum_y / count);
    let (covariance, variance) = points.clone().fold((0.0, 0.0), |(covariance, variance), (x, y)| {
        (covariance + (x - mean_x) * (y - mean_y), variance + (x - mean_x).powi(2))
    });
    if variance <= 0.0 || variance.is_nan() {
        return None;
    }
    let slope = (covariance / variance).max(0.0);
    let lift = points.map(|(x, y)| y - slope * x).fold(f64::NEG_INFINITY, f64::max);
    Some(Line { base: lift, slope })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_sizes_give_the_rest() {
        let mut predictor = Predictor::default();
        assert_eq!(predictor.largest("a", 10, 64, 1 << 30), None);
        predictor.saw("a", 10, 2, 1_200);
        assert_eq!(predictor.peak("a", 10, 2), Some(1_200));
        assert_eq!(predictor.peak("a", 10, 4), None);
        predictor.saw("a", 10, 4, 1_400);
        assert_eq!(predictor.peak("a", 10, 8), Some(1_800));
        assert_eq!(predictor.largest("a", 10, 64, 2_000), Some(10));
        assert_eq!(predictor.largest("a", 10, 64, 1_000), None);
    }

    #[test]
    fn another_shape_is_judged_by_its_elements() {
        let mut predictor = Predictor::default();
        predictor.saw("short", 10, 2, 1_200);
        predictor.saw("short", 10, 4, 1_400);
        // Ten times the elements: ten times the bytes a sample.
        assert_eq!(predictor.peak("long", 100, 1), Some(2_000));
        assert_eq!(predictor.largest("long", 100, 8, 3_000), Some(2));
    }

    proptest! {
        #[test]
        fn predictions_never_fall_and_never_undercut(
            seen in prop::collection::btree_map(1u32..64, 0u64..1 << 40, 2..8), budget in 0u64..1 << 41,
        ) {
            let mut predictor = Predictor::default();
            for (&size, &peak) in &seen {
                predictor.saw("a", 7, size, peak);
            }
            for (&size, &peak) in &seen {
                prop_assert!(predictor.peak("a", 7, size) >= Some(peak));
            }
            if let Some(size) = predictor.largest("a", 7, 64, budget) {
                prop_assert!(predictor.peak("a", 7, size) <= Some(budget));
            }
        }
    }
}
