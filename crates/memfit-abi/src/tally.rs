//! Counts refused calls by name: calls that are not modelled, and unsupported features of modelled calls.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A call that is always refused.
#[derive(Debug)]
pub struct Refusal {
    /// Exported name.
    pub name: &'static str,
    /// Status that it returns.
    pub status: u32,
    /// An atomic without a lock: a refused call may come from any thread, and from a child after fork, where
    /// a lock could be held for ever.
    count: AtomicU64,
}

impl Refusal {
    /// Creates the entry of a call with a count of zero.
    pub const fn new(name: &'static str, status: u32) -> Self {
        Self { name, status, count: AtomicU64::new(0) }
    }
}

/// Tables with refused calls; a library has one for each crate that it consists of.
static TABLES: [OnceLock<&'static [Refusal]>; 4] = [const { OnceLock::new() }; 4];

/// Counts of features that modelled calls refused: a mode, an attribute, a layout.
static PARTIAL: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

fn tables() -> impl Iterator<Item = &'static [Refusal]> {
    TABLES.iter().map_while(|table| table.get().copied())
}

/// Counts a refused call, unless the thread is [`Muted`], and passes its name to `report`. Returns its
/// status.
pub fn refuse(table: &'static [Refusal], index: usize, report: fn(&str)) -> u64 {
    let refusal = &table[index];
    if !is_muted() {
        // Finds the slot of this table in `TABLES`, or takes the first free one.
        let _ = TABLES.iter().find(|slot| std::ptr::eq(*slot.get_or_init(|| table), table));
        refusal.count.fetch_add(1, Ordering::Relaxed);
        report(refusal.name);
    }
    u64::from(refusal.status)
}

/// Counts, by name, a feature that a modelled call does not model, such as `cudaMemcpy3D (arrays)`; passes it
/// to `report`.
pub fn count_partial(name: &str, report: fn(&str)) {
    if is_muted() {
        return;
    }
    report(name);
    let mut partial = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner);
    match partial.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            partial.insert(name.to_owned(), 1);
        }
    }
}

/// All refusals so far, by name.
pub fn counts() -> BTreeMap<String, u64> {
    let mut all = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for refusal in tables().flatten() {
        let count = refusal.count.load(Ordering::Relaxed);
        if count > 0 {
            *all.entry(refusal.name.to_owned()).or_default() += count;
        }
    }
    all
}

/// Number of refusals under a name.
pub fn refusal_count(name: &str) -> u64 {
    let listed = tables().flatten().find(|refusal| refusal.name == name);
    let partial = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied();
    listed.map_or(0, |refusal| refusal.count.load(Ordering::Relaxed)) + partial.unwrap_or(0)
}

thread_local! {
    static MUTED: Cell<u32> = const { Cell::new(0) };
}

fn is_muted() -> bool {
    MUTED.get() > 0
}

/// Guard that keeps refusals of the calling thread from being counted.
#[derive(Debug)]
pub struct Muted(());

impl Muted {
    /// Starts muting.
    pub fn begin() -> Self {
        MUTED.set(MUTED.get() + 1);
        Self(())
    }
}

impl Drop for Muted {
    fn drop(&mut self) {
        MUTED.set(MUTED.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static FIRST: [Refusal; 2] = [Refusal::new("one", 801), Refusal::new("two", 15)];
    static SECOND: [Refusal; 1] = [Refusal::new("three", 2)];

    #[test]
    fn refusals_are_counted_by_name_over_all_tables() {
        thread_local! {
            static HEARD: Cell<usize> = const { Cell::new(0) };
        }
        let report = |_: &str| HEARD.set(HEARD.get() + 1);
        assert_eq!(refuse(&FIRST, 1, report), 15);
        assert_eq!(refuse(&SECOND, 0, report), 2);
        assert_eq!(refuse(&FIRST, 1, report), 15);
        count_partial("a mode", report);
        assert_eq!(HEARD.get(), 4);
        let expected =
            [("a mode", 1), ("three", 1), ("two", 2)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(counts(), BTreeMap::from(expected));
        assert_eq!(
            (
                refusal_count("two"),
                refusal_count("one"),
                refusal_count("a mode"),
                refusal_count("unheard of")
            ),
            (2, 0, 1, 0)
        );
        let muted = Muted::begin();
        assert_eq!(refuse(&FIRST, 0, report), 801, "answered all the same");
        count_partial("a mode", report);
        drop(muted);
        assert_eq!((refusal_count("one"), refusal_count("a mode"), HEARD.get()), (0, 1, 4));
    }
}
