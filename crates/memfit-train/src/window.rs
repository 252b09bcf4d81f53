//! A window: the batches between two optimizer steps, and what their losses are divided by.
//!
//! The gradient of a window is that of one mean over everything in it. Each micro-batch contributes the sum
//! of its losses (a mean times what it was taken over) divided by the window's divisor, and nothing else
//! divides.
//!
//! The divisor has to be known before the first backward. Where it is (one batch a window, counts that follow
//! from the batch), it is exact from the start. Where it is not (batches that are still to come, counts that
//! only the loss function tells), the expected count stands in, and the gradients are multiplied once by
//! [`Window::correction`] before anything looks at them. A correction of one, the usual one, is no
//! multiplication at all.

use serde::{Deserialize, Serialize};

use crate::TrainError;

/// The batches between two optimizer steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// How many batches make a whole one.
    accumulate: u32,
    /// Batches that arrived.
    batches: u32,
    /// What the micro-batches that ran counted, on this rank.
    counted: f64,
    /// What the first batch made one expect; none before it.
    expected: Option<f64>,
    /// What the losses of this window are divided by; none before the first batch.
    divisor: Option<f64>,
}

impl Window {
    /// A window of so many batches.
    pub fn new(accumulate: u32) -> Result<Self, TrainError> {
        if accumulate == 0 {
            return Err(TrainError::Zero { name: "accumulate" });
        }
        Ok(Self { accumulate, batches: 0, counted: 0.0, expected: None, divisor: None })
    }

    /// A batch arrives that is expected to count so much; whether it is the window's first.
    ///
    /// The first one sets the divisor: its own count for each batch that is to come.
    pub fn arrive(&mut self, expected: f64) -> Result<bool, TrainError> {
        let expected = checked(expected)?;
        self.batches += 1;
        let first = self.divisor.is_none();
        if first {
            let whole = expected * f64::from(self.accumulate);
            // A batch that counts nothing itself says nothing of those to come.
            self.expected = Some(if whole > 0.0 { whole } else { 1.0 });
            self.divisor = self.expected;
        }
        Ok(first)
    }

    /// Sets the divisor to what all ranks together know the window to count, before its first backward.
    pub fn divide_by(&mut self, divisor: f64) -> Result<(), TrainError> {
        let divisor = checked(divisor)?;
        if divisor > 0.0 {
            self.divisor = Some(divisor);
        }
        Ok(())
    }

    /// What the losses are divided by.
    pub fn divisor(&self) -> f64 {
        self.divisor.unwrap_or(1.0)
    }

    /// A micro-batch was run, and counted so much.
    pub fn count(&mut self, count: f64) -> Result<(), TrainError> {
        self.counted += checked(count)?;
        Ok(())
    }

    /// What the micro-batches that ran counted.
    pub fn counted(&self) -> f64 {
        self.counted
    }

    /// How many batches arrived.
    pub fn batches(&self) -> u32 {
        self.batches
    }

    /// Whether as many batches arrived as a window has.
    pub fn is_whole(&self) -> bool {
        self.batches >= self.accumulate
    }

    /// Whether nothing arrived.
    pub fn is_empty(&self) -> bool {
        self.batches == 0
    }

    /// What the gradients have to be multiplied by, given what all ranks' micro-batches counted together.
    pub fn correction(&self, total: f64) -> Result<f64, TrainError> {
        let total = checked(total)?;
        if total == 0.0 { Err(TrainError::NothingCounted) } else { Ok(self.divisor() / total) }
    }

    /// Sets how many batches make a whole one, from here on.
    pub(crate) fn set_length(&mut self, accumulate: u32) {
        self.accumulate = accumulate.max(1);
    }

    /// The window is run again from its start: its batches stay, and what was learned while they ran is
    /// forgotten, so that the new attempt is what it would have been as the first one.
    pub fn rewind(&mut self) {
        self.counted = 0.0;
        self.divisor = self.expected;
    }

    /// The step is done: the next window begins.
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
        /// Whatever was expected, divided losses times the correction are the mean over what was counted.
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
