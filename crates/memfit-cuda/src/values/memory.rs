//! Known contents of memory, shared by all threads, and the queries on them.

use std::sync::{
    Mutex, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use memfit_channel::ValuePolicy;

use memfit_kernels::memory::{Extremes, Found, MAX_PIECE_BYTES, Memory, Ones, Origin, Reach};
use memfit_vocabulary::Assumption;

use super::{
    filter::Filter,
    reads,
    shared::{self, Change},
    store::Store,
};
use crate::space::blocks;

/// Store of known contents with its filter and value policy.
pub(super) struct KnownMemory {
    filter: Filter,
    store: Mutex<Option<Store>>,
    /// Policy for values that kernels would have computed; `None` if rules do not answer. Decided at first
    /// use.
    policy: OnceLock<Policy>,
    decide: fn() -> Policy,
    /// Values that were scattered so far.
    scattered: AtomicU64,
}

/// How rules choose a value between its bounds.
#[derive(Clone, Copy)]
pub(super) enum Policy {
    /// Rules do not answer.
    None,
    /// All at the same position.
    At(ValuePolicy),
    /// Each at another one.
    Scattered,
}

impl KnownMemory {
    /// Creates a store with nothing known.
    pub(super) const fn new(decide: fn() -> Policy) -> Self {
        Self {
            filter: Filter::new(),
            store: Mutex::new(None),
            policy: OnceLock::new(),
            decide,
            scattered: AtomicU64::new(0),
        }
    }

    pub(super) fn copy(&self, target: u64, source: u64, length: u64) {
        self.refresh(source, length);
        if self.filter.perhaps_within(source, length) || self.filter.perhaps_within(target, length) {
            self.with_store(|store| store.copy(target, source, length, &self.filter));
            self.publish(target, length);
        }
    }

    /// Shares a block with other processes; with `tell`, publishes its known contents.
    pub(super) fn share(&self, name: u64, start: u64, size: u64, tell: bool) {
        if shared::add(name, start, size) && tell {
            self.publish(start, size);
        }
    }

    /// Applies other processes' changes to a range.
    #[inline]
    fn refresh(&self, address: u64, length: u64) {
        if shared::is_any_shared() {
            shared::refresh(address, length, |change| {
                self.with_store(|store| match change {
                    Change::Unknown(at, length) => store.forget(at, length, &self.filter),
                    Change::Known(at, bytes, answered) => {
                        let origin =
                            if answered { Origin::Answer(Assumption::Elsewhere) } else { Origin::True };
                        store.write(at, &bytes, origin, &self.filter);
                    }
                });
            });
        }
    }

    /// Publishes the known contents of a range to other processes.
    #[inline]
    fn publish(&self, address: u64, length: u64) {
        if shared::is_any_shared() {
            shared::publish(address, length, |from, length| {
                self.with_store(|store| store.stretches(from, length))
            });
        }
    }

    /// Runs a closure with the store locked. The lock is never held while user code runs.
    fn with_store<T>(&self, use_store: impl FnOnce(&mut Store) -> T) -> T {
        use_store(self.store.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
    }
}

impl Memory for KnownMemory {
    fn reach(&self, address: u64) -> Option<Reach> {
        blocks::reach(address)
    }

    fn policy(&self) -> Option<ValuePolicy> {
        match *self.policy.get_or_init(self.decide) {
            Policy::None => None,
            Policy::At(policy) => Some(policy),
            Policy::Scattered => Some(ValuePolicy::scattered(self.scattered.fetch_add(1, Relaxed))),
        }
    }

    fn expected(&self) -> Option<u64> {
        reads::expected()
    }

    fn most_values(&self) -> Option<u64> {
        reads::most_values()
    }

    fn flags(&self, address: u64) -> Option<Ones> {
        if !self.perhaps(address) {
            return None;
        }
        match self.with_store(|store| store.origin(address)) {
            Some(Origin::Flags(ones)) => Some(ones),
            _ => None,
        }
    }

    fn extremes(&self, address: u64, length: u64, size: usize) -> Option<((i64, i64), bool)> {
        self.refresh(address, length);
        if !self.perhaps(address) {
            return None;
        }
        self.with_store(|store| store.extremes(address, length, size))
    }

    fn mark_extremes(&self, address: u64, length: u64, extremes: Extremes) {
        self.with_store(|store| store.summarise(address, length, extremes, &self.filter));
        self.publish(address, length);
    }

    #[inline]
    fn perhaps(&self, address: u64) -> bool {
        self.refresh(address, 1);
        self.filter.perhaps(address)
    }

    fn get(&self, address: u64, length: u64) -> Option<(Vec<u8>, Origin)> {
        self.refresh(address, length);
        if !self.perhaps(address) || length > MAX_PIECE_BYTES as u64 {
            return None;
        }
        self.with_store(|store| store.get(address, length as usize))
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Found {
        self.refresh(address, out.len() as u64);
        if self.filter.perhaps_within(address, out.len() as u64) {
            self.with_store(|store| store.read(address, out))
        } else {
            Found::default()
        }
    }

    fn write(&self, address: u64, bytes: &[u8], origin: Origin) {
        self.with_store(|store| store.write(address, bytes, origin, &self.filter));
        self.publish(address, bytes.len() as u64);
    }

    fn fill(&self, address: u64, byte: u8, length: u64, origin: Origin) {
        self.with_store(|store| store.fill(address, byte, length, origin, &self.filter));
        self.publish(address, length);
    }

    #[inline]
    fn forget(&self, address: u64, length: u64) {
        if self.filter.perhaps_within(address, length) {
            self.with_store(|store| store.forget(address, length, &self.filter));
            self.publish(address, length);
        }
    }

    #[inline]
    fn forget_from(&self, address: u64) {
        if self.perhaps(address) {
            self.with_store(|store| store.forget_from(address, &self.filter));
            self.publish(address, MAX_PIECE_BYTES as u64);
        }
    }

    fn forget_block(&self, address: u64) {
        match self.reach(address) {
            Some(reach) => self.forget(address, reach.bytes),
            None => self.forget_from(address),
        }
    }
}
