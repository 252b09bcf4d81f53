//! Whether fp16 is in trouble: steps that were skipped, and what the loss scale did.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Windows that are looked at.
const SPAN: usize = 64;
/// A scaler starts far too high and finds its way down: skips before this many windows say nothing.
const WARM_UP: u64 = 32;
/// So many skipped steps in the span are too many: one in two thousand is what a growing scale costs.
const MANY: usize = 6;

/// The loss scale, window by window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScaleHistory {
    windows: u64,
    recent: VecDeque<(f64, bool)>,
    skipped: u64,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleTrouble {
    /// Many of the last steps were skipped, because gradients overflowed.
    Skipping {
        /// How many.
        skipped: usize,
        /// Of how many.
        of: usize,
    },
    /// The scale has fallen below one: gradients overflow unscaled.
    Collapsed {
        /// Where it is.
        scale: f64,
    },
}

impl ScaleHistory {
    /// A window ended with this scale; whether its step was skipped.
    pub fn window(&mut self, scale: f64, skipped: bool) {
        self.windows += 1;
        self.skipped += u64::from(skipped);
        if self.recent.len() == SPAN {
            self.recent.pop_front();
        }
        self.recent.push_back((scale, skipped));
    }

    /// Steps that were skipped in all.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The scales of the last windows, one after the other; how long each stood is not told.
    pub fn path(&self) -> Vec<f64> {
        let mut path: Vec<f64> = self.recent.iter().map(|&(scale, _)| scale).collect();
        path.dedup();
        path
    }

    /// What is wrong, if something is.
    pub fn trouble(&self) -> Option<ScaleTrouble> {
        let &(scale, _) = self.recent.back()?;
        if scale < 1.0 {
            return Some(ScaleTrouble::Collapsed { scale });
        }
        let settled = usize::try_from(self.windows.saturating_sub(WARM_UP)).unwrap_or(usize::MAX).min(SPAN);
        let skipped = self.recent.iter().rev().take(settled).filter(|(_, skipped)| *skipped).count();
        (skipped >= MANY).then_some(ScaleTrouble::Skipping { skipped, of: settled })
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
