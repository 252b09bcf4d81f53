//! Allocations that fail on request: what a program does when memory runs out is tried at each of them in
//! turn.
//!
//! Asked for by the variable [`VARIABLE`] when the process starts, as `N` or `N:COUNT`, or at any time
//! through [`memfit_vgpu_fail_allocations`]. Nothing else of the device changes: a failed allocation books
//! nothing.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::status::{Outcome, Status};

/// Which allocations fail: the N-th of the process (from 1), and so many from there on.
const VARIABLE: &str = "MEMFIT_FAIL_ALLOCATIONS";

/// Which allocations of a process fail.
struct Failing {
    /// Allocations so far.
    seen: AtomicU64,
    /// The first that fails; none where this is 0.
    first: AtomicU64,
    /// The first after it that does not.
    end: AtomicU64,
}

impl Failing {
    const fn none() -> Self {
        Self { seen: AtomicU64::new(0), first: AtomicU64::new(0), end: AtomicU64::new(0) }
    }

    fn ask(&self, first: u64, count: u64) {
        self.end.store(first.saturating_add(count), Relaxed);
        self.first.store(if count == 0 { 0 } else { first }, Relaxed);
    }

    /// Counts one more; whether it fails.
    fn fails(&self) -> bool {
        let number = self.seen.fetch_add(1, Relaxed) + 1;
        let first = self.first.load(Relaxed);
        first != 0 && (first..self.end.load(Relaxed)).contains(&number)
    }
}

static HERE: Failing = Failing::none();

/// An allocation is asked for: whether it may be looked at further.
pub(crate) fn check() -> Outcome {
    static READ: OnceLock<()> = OnceLock::new();
    READ.get_or_init(|| {
        if let Some((first, count)) = std::env::var(VARIABLE).ok().and_then(|text| parse(&text)) {
            HERE.ask(first, count);
        }
    });
    if HERE.fails() { Err(Status::OUT_OF_MEMORY) } else { Ok(()) }
}

/// `N` or `N:COUNT`.
fn parse(text: &str) -> Option<(u64, u64)> {
    let (first, count) = text.split_once(':').unwrap_or((text, "1"));
    Some((first.trim().parse().ok()?, count.trim().parse().ok()?))
}

/// Lets the `skip + 1`-th allocation from now on fail, and so many after it as make `count`; with a count of
/// 0, none. Gives how many allocations there were so far in this process.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_fail_allocations(skip: u64, count: u64) -> u64 {
    let seen = HERE.seen.load(Relaxed);
    HERE.ask(seen.saturating_add(skip).saturating_add(1), count);
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_a_number_and_a_count() {
        for (text, expected) in [
            ("7", Some((7, 1))),
            ("7:3", Some((7, 3))),
            (" 7 : 3 ", Some((7, 3))),
            ("", None),
            ("seven", None),
            ("7:", None),
            ("-1", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn those_that_were_asked_for_fail_and_no_others() {
        let failing = Failing::none();
        assert!(!failing.fails());
        failing.ask(4, 3);
        let failed: Vec<bool> = (0..8).map(|_| failing.fails()).collect();
        assert_eq!(failed, [false, false, true, true, true, false, false, false]);
        failing.ask(10, 0);
        assert!(!failing.fails());
    }
}
