//! Handle tables with lock-free look-up: a handle encodes a slot and its generation.
//!
//! Streams and events are looked up on the hot path, and a program may pass a destroyed or an invalid handle;
//! neither may be dereferenced. Slots are created once and never freed, so a look-up needs no lock, and a
//! slot's generation advances when its object is removed.

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError, RwLock,
    atomic::{
        AtomicU32,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};

/// Slots are allocated in chunks of this many.
const CHUNK_SLOTS: usize = 1024;
const MAX_CHUNKS: usize = 1024;
const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = 12;
/// The lowest four bits are zero, as in an aligned address.
const LOW_BITS: u32 = 4;
const TAG_SHIFT: u32 = LOW_BITS + INDEX_BITS + GENERATION_BITS;
/// Base of all handles: an address outside user space.
const BASE: u64 = 0x7e00_0000_0000_0000;

/// A table of `T`s, each with a handle. A slot's `T` is shared and reused, so `T` consists of atomics.
pub struct Table<T: 'static> {
    tag: u64,
    chunks: [OnceLock<Box<[Slot<T>]>>; MAX_CHUNKS],
    /// Number of slots that were ever used.
    made: AtomicU32,
    free: Mutex<Vec<u32>>,
}

#[derive(Default)]
struct Slot<T> {
    /// Odd while the slot is in use.
    generation: AtomicU32,
    value: T,
}

impl<T: Default> Table<T> {
    /// Creates an empty table; `tag` distinguishes its handles from those of other tables.
    #[allow(clippy::large_stack_arrays, reason = "only called for statics")]
    pub const fn new(tag: u8) -> Self {
        Self {
            tag: tag as u64,
            chunks: [const { OnceLock::new() }; MAX_CHUNKS],
            made: AtomicU32::new(0),
            free: Mutex::new(Vec::new()),
        }
    }

    /// Initialises a free slot with `set` and returns its handle; `None` if a million are in use.
    pub fn insert(&self, set: impl FnOnce(&T)) -> Option<u64> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let index = match free {
            Some(index) => index,
            None => self
                .made
                .fetch_update(Relaxed, Relaxed, |made| (made < 1 << INDEX_BITS).then_some(made + 1))
                .ok()?,
        };
        let chunk = self.chunks[index as usize / CHUNK_SLOTS]
            .get_or_init(|| std::iter::repeat_with(Slot::default).take(CHUNK_SLOTS).collect());
        let slot = &chunk[index as usize % CHUNK_SLOTS];
        set(&slot.value);
        let generation = slot.generation.fetch_add(1, AcqRel) + 1;
        Some(self.encode(index, generation))
    }

    /// Returns the object of a live handle.
    #[inline]
    pub fn get(&self, handle: u64) -> Option<&T> {
        self.slot(handle).map(|(_, slot)| &slot.value)
    }

    /// Removes a handle; `false` if it is not live.
    pub fn remove(&self, handle: u64) -> bool {
        let Some((index, slot)) = self.slot(handle) else { return false };
        let generation = slot.generation.load(Acquire);
        if self.encode(index, generation) != handle
            || slot.generation.compare_exchange(generation, generation + 1, AcqRel, Relaxed).is_err()
        {
            return false;
        }
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(index);
        true
    }

    /// All live handles.
    pub fn alive(&self) -> Vec<u64> {
        let made = self.made.load(Relaxed);
        let handle = |index: u32| {
            let slot = self.chunks[index as usize / CHUNK_SLOTS].get()?.get(index as usize % CHUNK_SLOTS)?;
            let generation = slot.generation.load(Acquire);
            (generation % 2 == 1).then(|| self.encode(index, generation))
        };
        (0..made).filter_map(handle).collect()
    }

    #[inline]
    fn slot(&self, handle: u64) -> Option<(u32, &Slot<T>)> {
        if handle >> TAG_SHIFT != BASE >> TAG_SHIFT | self.tag || handle & ((1 << LOW_BITS) - 1) != 0 {
            return None;
        }
        let index = (handle >> LOW_BITS) as u32 & ((1 << INDEX_BITS) - 1);
        let slot = self.chunks[index as usize / CHUNK_SLOTS].get()?.get(index as usize % CHUNK_SLOTS)?;
        let generation = slot.generation.load(Acquire);
        (generation % 2 == 1 && self.encode(index, generation) == handle).then_some((index, slot))
    }

    fn encode(&self, index: u32, generation: u32) -> u64 {
        let generation = u64::from(generation) & ((1 << GENERATION_BITS) - 1);
        BASE | self.tag << TAG_SHIFT | generation << (LOW_BITS + INDEX_BITS) | u64::from(index) << LOW_BITS
    }
}

/// Reference-counted objects with handles: each lives until its handle is removed and its last user is done.
pub struct Objects<T: 'static>(Table<RwLock<Option<Arc<T>>>>);

impl<T> Objects<T> {
    /// Creates an empty table; `tag` distinguishes its handles from those of other tables.
    #[allow(clippy::large_stack_arrays, reason = "only called for statics")]
    pub const fn new(tag: u8) -> Self {
        Self(Table::new(tag))
    }

    /// Creates a handle for an object; `None` if a million are in use.
    pub fn insert(&self, object: T) -> Option<u64> {
        self.0.insert(|place| {
            *place.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(object));
        })
    }

    /// Returns the object of a live handle.
    #[inline]
    pub fn get(&self, handle: u64) -> Option<Arc<T>> {
        let object = self.0.get(handle)?.read().unwrap_or_else(PoisonError::into_inner);
        // The handle may have been removed meanwhile, and its slot reused.
        object.clone().filter(|_| self.0.get(handle).is_some())
    }

    /// Removes a handle; `false` if it is not live.
    pub fn remove(&self, handle: u64) -> bool {
        let Some(place) = self.0.get(handle) else { return false };
        let object = place.write().unwrap_or_else(PoisonError::into_inner).take();
        self.0.remove(handle) && object.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_lives_from_insert_to_remove() {
        static TABLE: Table<AtomicU32> = Table::new(3);
        static OTHER: Table<AtomicU32> = Table::new(4);
        let first = TABLE.insert(|value| value.store(7, Relaxed)).unwrap();
        assert_eq!(TABLE.get(first).unwrap().load(Relaxed), 7);
        assert!(OTHER.get(first).is_none(), "another table's");
        assert!(TABLE.get(0).is_none() && TABLE.get(1).is_none() && TABLE.get(u64::MAX).is_none());
        assert!(TABLE.get(first + 1).is_none());
        assert!(TABLE.remove(first));
        assert!(TABLE.get(first).is_none());
        assert!(!TABLE.remove(first), "twice");
        let second = TABLE.insert(|value| value.store(8, Relaxed)).unwrap();
        assert_ne!(first, second, "the slot is reused, the handle is not");
        assert!(TABLE.get(first).is_none());
        assert_eq!(TABLE.alive(), [second]);
    }

    #[test]
    fn an_object_lives_as_long_as_its_handle_or_its_user() {
        static OBJECTS: Objects<AtomicU32> = Objects::new(6);
        let handle = OBJECTS.insert(AtomicU32::new(7)).unwrap();
        let user = OBJECTS.get(handle).unwrap();
        assert!(OBJECTS.remove(handle) && !OBJECTS.remove(handle), "once");
        assert!(OBJECTS.get(handle).is_none());
        assert_eq!(user.load(Relaxed), 7);
        let next = OBJECTS.insert(AtomicU32::new(8)).unwrap();
        assert_ne!(handle, next);
        assert_eq!(OBJECTS.get(next).unwrap().load(Relaxed), 8);
        assert!(OBJECTS.get(handle).is_none(), "the old handle is not the new one");
    }

    #[test]
    fn threads_never_share_a_handle() {
        static TABLE: Table<AtomicU32> = Table::new(5);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for round in 0..500 {
                        let mark = thread * 1000 + round;
                        let handle = TABLE.insert(|value| value.store(mark, Relaxed)).unwrap();
                        assert_eq!(TABLE.get(handle).unwrap().load(Relaxed), mark);
                        assert!(TABLE.remove(handle));
                    }
                });
            }
        });
        assert!(TABLE.alive().is_empty());
    }
}
