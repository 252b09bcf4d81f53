//! The known contents, shared by all threads, and what is asked of them.

use std::sync::{Mutex, OnceLock, PoisonError};

use memfit_link::ValuePolicy;

use crate::cost::blocks;

use super::{
    filter::Filter,
    shared::{self, Change},
    store::{Found, LARGEST_PIECE, Ones, Origin, Store},
};

/// Bytes that are guessed at.
const MOST_GUESSED: usize = 4096;

/// What is known of memory.
pub(super) struct Memory {
    filter: Filter,
    store: Mutex<Option<Store>>,
    /// What rules answer with for what kernels would have computed, if they do; decided at the first question.
    policy: OnceLock<Option<ValuePolicy>>,
    decide: fn() -> Option<ValuePolicy>,
}

impl Memory {
    /// Nothing is known yet.
    pub(super) const fn new(decide: fn() -> Option<ValuePolicy>) -> Self {
        Self { filter: Filter::new(), store: Mutex::new(None), policy: OnceLock::new(), decide }
    }

    /// Whether rules answer for what kernels would have computed.
    pub(super) fn answers(&self) -> bool {
        self.policy().is_some()
    }

    /// Where rules take a size between its bounds; nothing where they do not answer.
    pub(super) fn policy(&self) -> Option<ValuePolicy> {
        *self.policy.get_or_init(self.decide)
    }

    /// What the host is to read of numbers that are not known, without anything following from it; false if there are too
    /// many of them.
    pub(super) fn guess(&self, address: u64, bytes: &[u8], rule: &'static str) -> bool {
        let kept = self.answers() && bytes.len() <= MOST_GUESSED;
        if kept {
            self.write(address, bytes, Origin::Guess(rule));
        }
        kept
    }

    /// Each of the elements from this address on is zero or one.
    pub(super) fn mark_flags(&self, address: u64, length: u64, ones: Ones) {
        // Who asks looks at the first of them.
        self.fill(address, 0, length.min(MOST_GUESSED as u64), Origin::Flags(ones));
    }

    /// Whether the elements at this address are known to be zero or one each; if so, how many are one, if that is known.
    pub(super) fn flags(&self, address: u64) -> Option<Ones> {
        if !self.perhaps(address) {
            return None;
        }
        match self.with(|store| store.origin(address)) {
            Some(Origin::Flags(ones)) => Some(ones),
            _ => None,
        }
    }

    /// False if surely nothing is known about this address.
    #[inline]
    pub(super) fn perhaps(&self, address: u64) -> bool {
        self.refresh(address, 1);
        self.filter.perhaps(address)
    }

    /// The content of a range, if all of it is known.
    pub(super) fn get(&self, address: u64, length: u64) -> Option<(Vec<u8>, Origin)> {
        self.refresh(address, length);
        if !self.perhaps(address) || length > LARGEST_PIECE as u64 {
            return None;
        }
        self.with(|store| store.get(address, length as usize))
    }

    /// Reads what is known into `out`.
    pub(super) fn read(&self, address: u64, out: &mut [u8]) -> Found {
        self.refresh(address, out.len() as u64);
        if self.filter.perhaps_within(address, out.len() as u64) {
            self.with(|store| store.read(address, out))
        } else {
            Found::default()
        }
    }

    pub(super) fn write(&self, address: u64, bytes: &[u8], origin: Origin) {
        self.with(|store| store.write(address, bytes, origin, &self.filter));
        self.tell(address, bytes.len() as u64);
    }

    pub(super) fn fill(&self, address: u64, byte: u8, length: u64, origin: Origin) {
        self.with(|store| store.fill(address, byte, length, origin, &self.filter));
        self.tell(address, length);
    }

    pub(super) fn copy(&self, target: u64, source: u64, length: u64) {
        self.refresh(source, length);
        if self.filter.perhaps_within(source, length) || self.filter.perhaps_within(target, length) {
            self.with(|store| store.copy(target, source, length, &self.filter));
            self.tell(target, length);
        }
    }

    /// Nothing is known of a range any more.
    #[inline]
    pub(super) fn forget(&self, address: u64, length: u64) {
        if self.filter.perhaps_within(address, length) {
            self.with(|store| store.forget(address, length, &self.filter));
            self.tell(address, length);
        }
    }

    /// Nothing is known any more of what was written together with this address, from the address on.
    #[inline]
    pub(super) fn forget_from(&self, address: u64) {
        if self.perhaps(address) {
            self.with(|store| store.forget_from(address, &self.filter));
            self.tell(address, LARGEST_PIECE as u64);
        }
    }

    /// Nothing is known any more of the block that this address leads to, from the address on.
    pub(super) fn forget_block(&self, address: u64) {
        match blocks::reach(address) {
            Some(reach) => self.forget(address, reach.bytes),
            None => self.forget_from(address),
        }
    }

    /// A block of memory is shared with other processes from here on: what is known of it is told, if this one is to tell.
    pub(super) fn share(&self, name: u64, start: u64, size: u64, tell: bool) {
        if shared::add(name, start, size) && tell {
            self.tell(start, size);
        }
    }

    /// Takes over what other processes have changed in a range.
    #[inline]
    fn refresh(&self, address: u64, length: u64) {
        if shared::any() {
            shared::refresh(address, length, |change| {
                self.with(|store| match change {
                    Change::Unknown(at, length) => store.forget(at, length, &self.filter),
                    Change::Known(at, bytes, answered) => {
                        let origin = if answered { Origin::Answer(super::ELSEWHERE) } else { Origin::True };
                        store.write(at, &bytes, origin, &self.filter);
                    }
                });
            });
        }
    }

    /// Tells other processes what is known of a range now.
    #[inline]
    fn tell(&self, address: u64, length: u64) {
        if shared::any() {
            shared::changed(address, length, |from, length| self.with(|store| store.stretches(from, length)));
        }
    }

    /// The store, for a while. Never held while user code runs.
    fn with<T>(&self, use_store: impl FnOnce(&mut Store) -> T) -> T {
        use_store(self.store.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
    }
}
