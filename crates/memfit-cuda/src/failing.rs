//! Allocations that fail on request, to test how a program handles out-of-memory at each of them in turn.
//!
//! Requested by the variable [`VARIABLE`] at process start, as `N` or `N:COUNT`, or at any time through
//! [`memfit_vgpu_fail_allocations`]. Nothing else about the device changes: a failed allocation reserves
//! nothing.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::status::{Outcome, Status};

/// Environment variable `N:COUNT`: the N-th allocation of the process (from 1) and the following ones fail,
/// COUNT in all.
const VARIABLE: &str = "MEMFIT_FAIL_ALLOCATIONS";

/// Range of allocations that fail.
struct Failing {
    /// Number of allocations so far.
    seen: AtomicU64,
    /// First allocation that fails; 0 if none does.
    first: AtomicU64,
    /// First allocation after the failing ones.
    end: AtomicU64,
}

impl Failing {
    const fn none() -> Self {
        Self { seen: AtomicU64::new(0), first: AtomicU64::new(0), end: AtomicU64::new(0) }
    }

    fn request(&self, first: u64, count: u64) {
        self.end.store(first.saturating_add(count), Relaxed);
        self.first.store(if count == 0 { 0 } else { first }, Relaxed);
    }

    /// Counts one allocation; returns `true` if it must fail.
    fn fails(&self) -> bool {
        let number = self.seen.fetch_add(1, Relaxed) + 1;
        let first = self.first.load(Relaxed);
        first != 0 && (first..self.end.load(Relaxed)).contains(&number)
    }
}

static FAILING: Failing = Failing::none();

/// Counts a requested allocation; an error if it must fail.
pub(crate) fn check() -> Outcome {
    static READ: OnceLock<()> = OnceLock::new();
    READ.get_or_init(|| {
        if let Some((first, count)) = std::env::var(VARIABLE).ok().and_then(|text| parse(&text)) {
            FAILING.request(first, count);
        }
    });
    if FAILING.fails() { Err(Status::OUT_OF_MEMORY) } else { Ok(()) }
}

/// `N` or `N:COUNT`.
fn parse(text: &str) -> Option<(u64, u64)> {
    let (first, count) = text.split_once(':').unwrap_or((text, "1"));
    Some((first.trim().parse().ok()?, count.trim().parse().ok()?))
}

/// Makes `count` allocations fail after the next `skip` ones; none if `count` is 0. Returns the number of
/// allocations so far in this process.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_fail_allocations(skip: u64, count: u64) -> u64 {
    let seen = FAILING.seen.load(Relaxed);
    FAILING.request(seen.saturating_add(skip).saturating_add(1), count);
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
        failing.request(4, 3);
        let failed: Vec<bool> = (0..8).map(|_| failing.fails()).collect();
        assert_eq!(failed, [false, false, true, true, true, false, false, false]);
        failing.request(10, 0);
        assert!(!failing.fails());
    }
}
