//! Largest micro-batch to try for one shape: failures lower it, and windows without a failure raise it again.
//!
//! A failed size may fit later, since the cause may have been temporary (another process on the GPU,
//! fragmentation). It is tried again after a number of clean windows, which doubles with each further
//! failure. A size that never fits is therefore tried ever more rarely, and one that fits again is found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Initial number of clean windows before a failed size is tried again.
pub(crate) const INITIAL_CLEAN_WINDOWS: u32 = 32;
/// Maximum of that number.
const MAX_CLEAN_WINDOWS: u32 = 1 << 20;

/// Known sizes for one shape.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ceiling {
    /// Largest size that completed.
    pub(crate) safe: u32,
    /// Smallest size that failed since it was last allowed again.
    pub(crate) failed: Option<u32>,
    /// Clean windows since the last failure.
    clean: u32,
    /// Clean windows required before the next larger size is tried, by failed size.
    clean_windows_required: BTreeMap<u32, u32>,
}

impl Ceiling {
    /// Largest size to run now: `wanted` if no size up to it failed; otherwise the size to try after enough
    /// clean windows, or else the larger of the safe size and half of the failed one: a first micro-batch of
    /// one sample says little of what fits.
    pub(crate) fn limit(&self, wanted: u32) -> u32 {
        match self.failed {
            Some(failed) if failed <= wanted => {
                self.trial(failed).unwrap_or_else(|| self.safe.min(wanted).max(failed / 2).max(1))
            }
            _ => wanted,
        }
    }

    /// Size to try after enough clean windows: half-way between the safe and the failed size, and finally the
    /// failed size itself.
    fn trial(&self, failed: u32) -> Option<u32> {
        let required = self.clean_windows_required.get(&failed).copied().unwrap_or(INITIAL_CLEAN_WINDOWS);
        (self.clean >= required && self.safe > 0 && self.safe < failed)
            .then(|| self.safe + (failed - self.safe).div_ceil(2))
    }

    /// Records a window with micro-batches of at most this size.
    pub(crate) fn passed(&mut self, size: u32) {
        self.clean = self.clean.saturating_add(1);
        if size > self.safe {
            // The clean windows are used up: the next larger size needs its own.
            if self.failed.is_some() {
                self.clean = 0;
            }
            self.safe = size;
        }
        if self.failed.is_some_and(|failed| failed <= self.safe) {
            self.failed = None;
        }
    }

    /// Records a failure at this size.
    pub(crate) fn failed(&mut self, size: u32) {
        self.clean = 0;
        // A size that used to fit has failed: conditions have changed, and the safe size is no longer known.
        if size <= self.safe {
            self.safe = 0;
        }
        let again = self
            .clean_windows_required
            .get(&size)
            .map_or(INITIAL_CLEAN_WINDOWS, |asked| (asked * 2).min(MAX_CLEAN_WINDOWS));
        self.clean_windows_required.insert(size, again);
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
        run(&mut ceiling, 16, 16, 40 * INITIAL_CLEAN_WINDOWS);
        assert_eq!(ceiling.limit(16), 16);
    }

    #[test]
    fn a_failure_far_above_the_safe_size_halves() {
        let mut ceiling = Ceiling::default();
        ceiling.passed(1);
        ceiling.failed(31);
        assert_eq!(ceiling.limit(32), 15);
        ceiling.passed(15);
        assert_eq!(ceiling.limit(32), 15);
        ceiling.failed(15);
        assert_eq!(ceiling.limit(32), 7);
    }

    #[test]
    fn it_does_not_oscillate() {
        let mut ceiling = Ceiling::default();
        let first = run(&mut ceiling, 16, 5, 1);
        // The distance between trials doubles: a few in thousands of windows.
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
