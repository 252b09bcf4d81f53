//! The known contents, shared by all threads, and what is asked of them.

use std::sync::{Mutex, OnceLock, PoisonError};

use super::{
    filter::Filter,
    store::{Found, LARGEST_PIECE, Origin, Store},
};

/// What is known of memory.
pub(super) struct Memory {
    filter: Filter,
    store: Mutex<Option<Store>>,
    /// Whether rules answer for what kernels would have computed; decided at the first question.
    answers: OnceLock<bool>,
    decide: fn() -> bool,
}

impl Memory {
    /// Nothing is known yet.
    pub(super) const fn new(decide: fn() -> bool) -> Self {
        Self { filter: Filter::new(), store: Mutex::new(None), answers: OnceLock::new(), decide }
    }

    /// Whether rules answer for what kernels would have computed.
    pub(super) fn answers(&self) -> bool {
        *self.answers.get_or_init(self.decide)
    }

    /// False if surely nothing is known about this address.
    #[inline]
    pub(super) fn perhaps(&self, address: u64) -> bool {
        self.filter.perhaps(address)
    }

    /// The content of a range, if all of it is known.
    pub(super) fn get(&self, address: u64, length: u64) -> Option<(Vec<u8>, Origin)> {
        if !self.perhaps(address) || length > LARGEST_PIECE as u64 {
            return None;
        }
        self.with(|store| store.get(address, length as usize))
    }

    /// Reads what is known into `out`.
    pub(super) fn read(&self, address: u64, out: &mut [u8]) -> Found {
        if self.filter.perhaps_within(address, out.len() as u64) {
            self.with(|store| store.read(address, out))
        } else {
            Found::default()
        }
    }

    pub(super) fn write(&self, address: u64, bytes: &[u8], origin: Origin) {
        self.with(|store| store.write(address, bytes, origin, &self.filter));
    }

    pub(super) fn fill(&self, address: u64, byte: u8, length: u64, origin: Origin) {
        self.with(|store| store.fill(address, byte, length, origin, &self.filter));
    }

    pub(super) fn copy(&self, target: u64, source: u64, length: u64) {
        if self.filter.perhaps_within(source, length) || self.filter.perhaps_within(target, length) {
            self.with(|store| store.copy(target, source, length, &self.filter));
        }
    }

    /// Nothing is known of a range any more.
    #[inline]
    pub(super) fn forget(&self, address: u64, length: u64) {
        if self.filter.perhaps_within(address, length) {
            self.with(|store| store.forget(address, length, &self.filter));
        }
    }

    /// Nothing is known any more of what was written together with this address, from the address on.
    #[inline]
    pub(super) fn forget_from(&self, address: u64) {
        if self.perhaps(address) {
            self.with(|store| store.forget_from(address, &self.filter));
        }
    }

    /// The store, for a while. Never held while user code runs.
    fn with<T>(&self, use_store: impl FnOnce(&mut Store) -> T) -> T {
        use_store(self.store.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
    }
}
