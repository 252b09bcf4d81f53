//! The largest micro-batch to try for one shape, as failures lower it and quiet windows raise it again.
//!
//! A failure says that a size did not fit then. It may have been a transient (a neighbour on the card, a
//! fragmented heap), so the size is tried again after a number of clean windows; each time it fails again,
//! that number doubles. So a size that never fits is tried ever more seldom, and one that fits again is
//! found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Clean windows before a size that failed is tried again.
pub(crate) const PATIENCE: u32 = 32;
/// Patience does not grow beyond this.
const MOST_PATIENCE: u32 = 1 << 20;

/// What is known of the sizes of one shape.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ceiling {
    /// The largest size that ran to its end.
    pub(crate) safe: u32,
    /// The smallest size that failed since the last time that it was forgiven.
    pub(crate) failed: Option<u32>,
    /// Clean windows since the last failure.
    clean: u32,
    /// Clean windows that are asked for before the next larger size is tried, by the size that failed.
    patience: BTreeMap<u32, u32>,
}

impl Ceiling {
    /// The largest size to run now, of at most `wanted`: what is safe, or half of what failed where nothing
    /// is.
    pub(crate) fn limit(&self, wanted: u32) -> u32 {
        match self.failed {
            Some(failed) if failed <= wanted => self.trial(failed).unwrap_or(if self.safe > 0 {
                self.safe.min(wanted)
            } else {
                (failed / 2).max(1)
            }),
            _ => wanted,
        }
    }

    /// The size that patience has earned: half-way between what is safe and what failed, and in the end that
    /// one itself.
    fn trial(&self, failed: u32) -> Option<u32> {
        let asked = self.patience.get(&failed).copied().unwrap_or(PATIENCE);
        (self.clean >= asked && self.safe > 0 && self.safe < failed)
            .then(|| self.safe + (failed - self.safe).div_ceil(2))
    }

    /// A window with micro-batches of at most this size ran to its end.
    pub(crate) fn passed(&mut self, size: u32) {
        self.clean = self.clean.saturating_add(1);
        if size > self.safe {
            // What was earned has been spent: the next size up waits for its own turn.
            if self.failed.is_some() {
                self.clean = 0;
            }
            self.safe = size;
        }
        if self.failed.is_some_and(|failed| failed <= self.safe) {
            self.failed = None;
        }
    }

    /// A micro-batch of this size failed.
    pub(crate) fn failed(&mut self, size: u32) {
        self.clean = 0;
        // What used to fit and does not any more: the circumstances are others, and what was safe in the old
        // ones says nothing.
        if size <= self.safe {
            self.safe = 0;
        }
        let again = self.patience.get(&size).map_or(PATIENCE, |asked| (asked * 2).min(MOST_PATIENCE));
        self.patience.insert(size, again);
        self.failed = Some(self.failed.map_or(size, |before| before.min(size)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(ceiling: &mut Ceiling, wanted: u32, fits: u32, windows: u32) -> u32 {
        let mut failures = 0;
        for _ in 0..windows {
            loop {
                let size = ceiling.limit(wanted);
                if size <= fits {
                    ceiling.passed(size);
                    break;
                }
                failures += 1;
                ceiling.failed(size);
            }
        }
        failures
    }

    #[test]
    fn it_grows_back_after_a_transient() {
        let mut ceiling = Ceiling::default();
        assert_eq!(run(&mut ceiling, 16, 16, 3), 0);
        run(&mut ceiling, 16, 5, 1);
        assert_eq!(ceiling.limit(16), 4);
        run(&mut ceiling, 16, 16, 40 * PATIENCE);
        assert_eq!(ceiling.limit(16), 16);
    }

    #[test]
    fn it_does_not_oscillate() {
        let mut ceiling = Ceiling::default();
        let first = run(&mut ceiling, 16, 5, 1);
        // Trials double their distance: a few in thousands of windows.
        let later = run(&mut ceiling, 16, 5, 5_000);
        assert!(first <= 2 && later <= 12, "{first} failures, then {later}");
        assert_eq!(run(&mut ceiling, 4, 5, 100), 0, "sizes that fit are left alone");
    }

    proptest! {
        #[test]
        fn a_size_is_never_above_what_was_wanted(
            steps in prop::collection::vec((1u32..40, any::<bool>()), 0..200), wanted in 1u32..40,
        ) {
            let mut ceiling = Ceiling::default();
            for (size, passed) in steps {
                if passed { ceiling.passed(size) } else { ceiling.failed(size) }
                let limit = ceiling.limit(wanted);
                prop_assert!((1..=wanted).contains(&limit));
            }
        }
    }
}
