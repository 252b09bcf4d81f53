//! Masks that a kernel would have computed: a mask and its complement share one count.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use memfit_channel::ValuePolicy;
use memfit_vocabulary::Assumption;

/// A mask whose elements are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// Id shared by the mask and its complement.
    id: u32,
    /// `true` for the complement.
    inverted: bool,
    /// Value assumed for each element if a single truth value is read: an element, `all` or `any`. A count is
    /// never derived from it.
    pub supposed: Option<bool>,
    /// Rule under which the host reads that value.
    pub rule: Assumption,
}

/// Elements and ones of counted masks, by id; the oldest are dropped first.
static COUNTED: Mutex<BTreeMap<u32, (u64, u64)>> = Mutex::new(BTreeMap::new());
static NEXT_ID: AtomicU32 = AtomicU32::new(0);
const MAX_COUNTED: usize = 1 << 14;

impl Mask {
    /// Creates a mask unrelated to any other.
    pub fn new(supposed: Option<bool>) -> Self {
        let id = NEXT_ID.fetch_add(1, Relaxed);
        Self { id, inverted: false, supposed, rule: Assumption::Finite }
    }

    /// Creates a mask whose elements are read as a truth value, under a rule.
    pub fn answering(truth: bool, rule: Assumption) -> Self {
        Self { rule, ..Self::new(Some(truth)) }
    }

    /// Creates the mask that combines the values of two, if both have one.
    pub fn combining(self, other: Self, combine: impl Fn(bool, bool) -> bool) -> Option<Self> {
        let truth = combine(self.supposed?, other.supposed?);
        let rule = if self.rule == Assumption::Finite { other.rule } else { self.rule };
        Some(Self::answering(truth, rule))
    }

    /// The same mask without an assumed value.
    #[must_use]
    pub fn unsupposed(self) -> Self {
        Self { supposed: None, ..self }
    }

    /// Number of its true elements among `items`. Of a mask and its complement, the first to be counted takes
    /// its count from the policy; the other gets the rest.
    pub fn count(self, items: u64, policy: ValuePolicy) -> u64 {
        let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
        let ones = match counted.get(&self.id) {
            Some((whole, ones)) if *whole == items => *ones,
            // A part of the mask, from which nothing can be derived.
            Some(_) => return policy.between(0, items),
            None => {
                let asked = policy.between(0, items);
                let ones = if self.inverted { items - asked } else { asked };
                counted.insert(self.id, (items, ones));
                if counted.len() > MAX_COUNTED {
                    counted.pop_first();
                }
                ones
            }
        };
        if self.inverted { items - ones } else { ones }
    }
}

/// Returns the complement.
impl std::ops::Not for Mask {
    type Output = Self;

    fn not(self) -> Self {
        Self { inverted: !self.inverted, supposed: self.supposed.map(|truth| !truth), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_and_its_complement_share_one_count() {
        for policy in [ValuePolicy::UPPER, ValuePolicy::LOWER, ValuePolicy::at_fraction(0.3).unwrap()] {
            let asked = policy.between(0, 10);
            let mask = Mask::new(None);
            assert_eq!((mask.count(10, policy), (!mask).count(10, policy)), (asked, 10 - asked));
            let mask = Mask::new(None);
            assert_eq!(((!mask).count(10, policy), mask.count(10, policy)), (asked, 10 - asked));
            assert_eq!((!!mask).count(10, policy), 10 - asked, "it is the mask again");
            assert_eq!(Mask::new(None).count(10, policy), asked, "another mask");
        }
    }

    #[test]
    fn a_part_of_a_mask_has_its_own_bound() {
        let mask = Mask::new(Some(true));
        assert_eq!(mask.count(10, ValuePolicy::UPPER), 10);
        assert_eq!((!mask).count(4, ValuePolicy::UPPER), 4);
        assert_eq!((!mask).supposed, Some(false));
    }
}
