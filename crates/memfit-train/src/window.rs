//! Accumulation window: the batches between two optimizer steps, and the divisor of their losses.
//!
//! The gradient of a window is that of a single mean over its content. Each micro-batch contributes the sum
//! of its losses (a mean times its weight) divided by the window's divisor; there is no other division.
//!
//! The divisor must be known before the first backward pass. If it is (one batch for each window, or weights
//! that follow from the batch), it is exact from the start. Otherwise (later batches, weights known only to
//! the loss function), the expected weight is used, and the gradients are multiplied once by
//! [`Window::correction`] before anything reads them. For the usual correction of one, nothing is multiplied.

use serde::{Deserialize, Serialize};

use crate::TrainError;

/// Batches between two optimizer steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Number of batches in a complete window.
    accumulate: u32,
    /// Number of batches so far.
    batches: u32,
    /// Weight of this rank's micro-batches so far.
    counted: f64,
    /// Expected weight of the window, computed from its first batch; `None` before it.
    expected: Option<f64>,
    /// Divisor of the losses; `None` before the first batch.
    divisor: Option<f64>,
}

impl Window {
    /// Creates a window of `accumulate` batches.
    pub fn new(accumulate: u32) -> Result<Self, TrainError> {
        if accumulate == 0 {
            return Err(TrainError::Zero { name: "accumulate" });
        }
        Ok(Self { accumulate, batches: 0, counted: 0.0, expected: None, divisor: None })
    }

    /// Adds a batch with an expected weight. Returns `true` if it is the window's first.
    ///
    /// The first batch sets the divisor: its weight times the number of batches in a window.
    pub fn arrive(&mut self, expected: f64) -> Result<bool, TrainError> {
        let expected = checked(expected)?;
        self.batches += 1;
        let first = self.divisor.is_none();
        if first {
            let whole = expected * f64::from(self.accumulate);
            // A batch of weight zero says nothing about later ones.
            self.expected = Some(if whole > 0.0 { whole } else { 1.0 });
            self.divisor = self.expected;
        }
        Ok(first)
    }

    /// Sets the divisor to the window's weight, if all ranks know it before its first backward pass.
    pub fn divide_by(&mut self, divisor: f64) -> Result<(), TrainError> {
        let divisor = checked(divisor)?;
        if divisor > 0.0 {
            self.divisor = Some(divisor);
        }
        Ok(())
    }

    /// Divisor of the losses.
    pub fn divisor(&self) -> f64 {
        self.divisor.unwrap_or(1.0)
    }

    /// Adds the weight of a micro-batch.
    pub fn count(&mut self, count: f64) -> Result<(), TrainError> {
        self.counted += checked(count)?;
        Ok(())
    }

    /// Weight of the micro-batches so far.
    pub fn counted(&self) -> f64 {
        self.counted
    }

    /// Returns `true` if the window has all its batches.
    pub fn is_whole(&self) -> bool {
        self.batches >= self.accumulate
    }

    /// Returns `true` if there are no batches.
    pub fn is_empty(&self) -> bool {
        self.batches == 0
    }

    /// Factor for the gradients, given the total weight of all ranks' micro-batches.
    pub fn correction(&self, total: f64) -> Result<f64, TrainError> {
        let total = checked(total)?;
        if total == 0.0 { Err(TrainError::NothingCounted) } else { Ok(self.divisor() / total) }
    }

    /// Sets the number of batches in a complete window.
    pub(crate) fn set_length(&mut self, accumulate: u32) {
        self.accumulate = accumulate.max(1);
    }

    /// Resets the window for a new attempt: its batches stay, and the weights counted so far are dropped.
    pub fn rewind(&mut self) {
        self.counted = 0.0;
        self.divisor = self.expected;
    }

    /// Completes the window and begins the next.
    pub fn close(&mut self) {
        self.batches = 0;
        self.counted = 0.0;
        self.expected = None;
        self.divisor = None;
    }
}

fn checked(count: f64) -> Result<f64, TrainError> {
    if count.is_finite() && count >= 0.0 { Ok(count) } else { Err(TrainError::Count { count }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_batch_a_window_needs_no_correction() {
        let mut window = Window::new(1).expect("one is a window");
        assert!(window.arrive(32.0).expect("a count"));
        window.count(20.0).expect("a count");
        window.count(12.0).expect("a count");
        assert!(window.is_whole());
        assert_eq!(window.correction(32.0), Ok(1.0));
    }

    #[test]
    fn a_partial_window_weighs_what_it_has() {
        let mut window = Window::new(4).expect("four make a window");
        window.arrive(8.0).expect("a count");
        assert!((window.divisor() - 32.0).abs() < f64::EPSILON);
        window.count(8.0).expect("a count");
        assert!(!window.is_whole());
        assert_eq!(window.correction(window.counted()), Ok(4.0));
    }

    #[test]
    fn a_window_that_counts_nothing_has_no_mean() {
        let mut window = Window::new(1).expect("one is a window");
        window.arrive(0.0).expect("a count");
        assert_eq!(window.correction(0.0), Err(TrainError::NothingCounted));
        assert!(matches!(window.count(f64::NAN), Err(TrainError::Count { .. })));
        assert!(matches!(window.arrive(-1.0), Err(TrainError::Count { .. })));
        assert_eq!(Window::new(0), Err(TrainError::Zero { name: "accumulate" }));
    }

    proptest! {
        /// For any expectation, divided losses times the correction are the mean over the counted weights.
        #[test]
        fn the_mean_is_over_what_was_counted(
            accumulate in 1u32..6,
            batches in prop::collection::vec(prop::collection::vec((0u32..50, -5.0f64..5.0), 1..5), 1..6),
        ) {
            let mut window = Window::new(accumulate).expect("at least one");
            let (mut gradient, mut sum, mut total) = (0.0, 0.0, 0.0);
            for batch in batches.iter().take(accumulate as usize) {
                window.arrive(batch.iter().map(|part| f64::from(part.0)).sum()).expect("a count");
                for &(count, loss) in batch {
                    let losses = loss * f64::from(count);
                    gradient += losses / window.divisor();
                    window.count(f64::from(count)).expect("a count");
                    sum += losses;
                    total += f64::from(count);
                }
            }
            prop_assume!(total > 0.0);
            let mean = gradient * window.correction(window.counted()).expect("something was counted");
            prop_assert!((mean - sum / total).abs() <= 1e-12 * (1.0 + (sum / total).abs()));
        }
    }
}
