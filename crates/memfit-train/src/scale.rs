//! Detection of trouble with fp16: skipped steps, and the course of the loss scale.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Number of windows examined.
const MAX_WINDOWS: usize = 64;
/// Windows at the start in which skipped steps are ignored, since a scaler starts far too high.
const WARM_UP_WINDOWS: u64 = 32;
/// Number of skipped steps in the span that indicates trouble; a growing scale costs one in two thousand.
const MIN_SKIPPED: usize = 6;

/// Loss scale by window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScaleHistory {
    windows: u64,
    recent: VecDeque<(f64, bool)>,
    skipped: u64,
}

/// Trouble with the loss scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleTrouble {
    /// Many of the last steps were skipped because gradients overflowed.
    Skipping {
        /// Number of skipped steps.
        skipped: usize,
        /// Number of steps examined.
        of: usize,
    },
    /// The scale has fallen below one: gradients overflow even without scaling.
    Collapsed {
        /// Current scale.
        scale: f64,
    },
}

impl ScaleHistory {
    /// Records a window's scale, and whether its step was skipped.
    pub fn window(&mut self, scale: f64, skipped: bool) {
        self.windows += 1;
        self.skipped += u64::from(skipped);
        if self.recent.len() == MAX_WINDOWS {
            self.recent.pop_front();
        }
        self.recent.push_back((scale, skipped));
    }

    /// Total number of skipped steps.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Distinct successive scales of the last windows, without their durations.
    pub fn path(&self) -> Vec<f64> {
        let mut path: Vec<f64> = self.recent.iter().map(|&(scale, _)| scale).collect();
        path.dedup();
        path
    }

    /// Detects trouble.
    pub fn trouble(&self) -> Option<ScaleTrouble> {
        let &(scale, _) = self.recent.back()?;
        if scale < 1.0 {
            return Some(ScaleTrouble::Collapsed { scale });
        }
        let settled = usize::try_from(self.windows.saturating_sub(WARM_UP_WINDOWS))
            .unwrap_or(usize::MAX)
            .min(MAX_WINDOWS);
        let skipped = self.recent.iter().rev().take(settled).filter(|(_, skipped)| *skipped).count();
        (skipped >= MIN_SKIPPED).then_some(ScaleTrouble::Skipping { skipped, of: settled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_the_scale_at_the_start_is_no_trouble() {
        let mut history = ScaleHistory::default();
        (0..12u32).for_each(|step| history.window(65536.0 / f64::from(1 << step.min(10)), true));
        (0..40).for_each(|_| history.window(64.0, false));
        assert_eq!(history.trouble(), None);
        assert_eq!(history.skipped(), 12);
        assert_eq!(history.path()[..3], [65536.0, 32768.0, 16384.0]);
        assert_eq!(history.path().last(), Some(&64.0));
    }

    #[test]
    fn skipping_on_and_on_is() {
        let mut history = ScaleHistory::default();
        (0..40).for_each(|_| history.window(1024.0, false));
        (0..12).for_each(|step| history.window(512.0, step % 2 == 0));
        assert_eq!(history.trouble(), Some(ScaleTrouble::Skipping { skipped: 6, of: 20 }));
    }

    #[test]
    fn a_scale_below_one_is() {
        let mut history = ScaleHistory::default();
        history.window(0.5, false);
        assert_eq!(history.trouble(), Some(ScaleTrouble::Collapsed { scale: 0.5 }));
    }
}
