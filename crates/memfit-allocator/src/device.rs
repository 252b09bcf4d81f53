//! Device interface below the allocator: memory and completion of work. It separates storage from the
//! allocator's policy.

use std::collections::BTreeMap;

use crate::ids::{Address, PoolId, Stream};

/// Kind of event, named as in a snapshot's trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A block was allocated; the size is the requested one.
    Alloc,
    /// A block's free was requested; it may still be in use on another stream.
    FreeRequested,
    /// A block became free.
    FreeCompleted,
    /// A segment was allocated on the device.
    SegmentAlloc,
    /// A segment was released to the device.
    SegmentFree,
    /// Memory was mapped into an expandable segment.
    SegmentMap,
    /// Memory was unmapped from an expandable segment.
    SegmentUnmap,
    /// A request failed. As in PyTorch's trace, the address is the free memory of the device; the size is the
    /// rounded request.
    OutOfMemory,
}

/// Entry of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Kind of event.
    pub action: Action,
    /// Address.
    pub address: Address,
    /// Size in bytes.
    pub size: u64,
    /// Stream.
    pub stream: Stream,
    /// Pool.
    pub pool: PoolId,
}

/// Event recorded on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Device below an allocator.
pub trait Device {
    /// Allocates a segment (`cudaMalloc`). Returns `None` if the device has too little memory.
    fn malloc(&mut self, size: u64) -> Option<Address>;

    /// Frees a segment.
    fn free(&mut self, address: Address, size: u64);

    /// Reserves address space for an expandable segment. Never fails.
    fn reserve(&mut self, size: u64) -> Address;

    /// Frees reserved address space.
    fn unreserve(&mut self, address: Address, size: u64);

    /// Maps memory to a range of reserved address space. Returns `false` without any change if the device has
    /// too little memory.
    fn map(&mut self, address: Address, size: u64) -> bool;

    /// Unmaps a range.
    fn unmap(&mut self, address: Address, size: u64);

    /// Total memory in bytes.
    fn total(&self) -> u64;

    /// Free memory in bytes.
    fn available(&self) -> u64;

    /// Records an event on a stream.
    fn record_event(&mut self, _stream: Stream) -> Ticket {
        Ticket(0)
    }

    /// Returns `true` if all work before an event is done.
    fn is_done(&mut self, _ticket: Ticket) -> bool {
        true
    }

    /// Waits for an event.
    fn synchronize(&mut self, _ticket: Ticket) {}

    /// Selects one of several blocks of the same size for the coming action, when the ages of their segments
    /// are unknown. Returns its position in the list, or `None` if the device does not know.
    fn choose_among_equals(&mut self, _coming: Action, _equals: &[Address]) -> Option<usize> {
        None
    }

    /// Receives everything that the allocator does, in the order of PyTorch's own trace.
    fn traced(&mut self, _entry: Entry) {}
}

/// Simulated device of a given capacity with artificial addresses.
///
/// Freed ranges are reused, the lowest sufficient one first. Events are done at once unless
/// [`SimulatedDevice::hold_events`] was called.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    capacity: u64,
    used: u64,
    /// Free ranges of address space below `top`, by address.
    holes: BTreeMap<u64, u64>,
    top: u64,
    tickets: u64,
    /// Tickets up to this one are done.
    done: u64,
    holding: bool,
}

impl SimulatedDevice {
    /// First address, as on real devices.
    const BASE: u64 = 0x7f00_0000_0000;
    /// Granularity of device memory.
    const PAGE: u64 = 2 << 20;

    /// Creates a device with `capacity` bytes.
    pub const fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            holes: BTreeMap::new(),
            top: Self::BASE,
            tickets: 0,
            done: 0,
            holding: false,
        }
    }

    /// Creates a device that never runs out of memory.
    pub const fn unlimited() -> Self {
        // Each expandable segment reserves nine eighths of the capacity as address space: many must fit.
        Self::new(1 << 46)
    }

    /// Used bytes.
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// From now on, events are done only when they are waited for, or when [`Self::finish_events`] is called.
    pub const fn hold_events(&mut self) {
        self.holding = true;
    }

    /// Completes all events recorded so far.
    pub const fn finish_events(&mut self) {
        self.done = self.tickets;
    }

    fn place(&mut self, size: u64) -> Address {
        let hole = self.holes.iter().find(|(_, room)| **room >= size).map(|(start, room)| (*start, *room));
        let Some((start, room)) = hole else {
            let start = self.top;
            self.top += size;
            return Address(start);
        };
        self.holes.remove(&start);
        if room > size {
            self.holes.insert(start + size, room - size);
        }
        Address(start)
    }

    fn give_back(&mut self, start: u64, size: u64) {
        let (mut start, mut end) = (start, start + size);
        if let Some((&before, &room)) = self.holes.range(..start).next_back()
            && before + room == start
        {
            self.holes.remove(&before);
            start = before;
        }
        if let Some(room) = self.holes.remove(&end) {
            end += room;
        }
        self.holes.insert(start, end - start);
    }

    fn take(&mut self, size: u64) -> bool {
        let fits = self.used.checked_add(size).is_some_and(|used| used <= self.capacity);
        if fits {
            self.used += size;
        }
        fits
    }
}

impl Device for SimulatedDevice {
    fn malloc(&mut self, size: u64) -> Option<Address> {
        let size = size.checked_next_multiple_of(Self::PAGE)?;
        self.take(size).then(|| self.place(size))
    }

    fn free(&mut self, address: Address, size: u64) {
        let size = size.next_multiple_of(Self::PAGE);
        self.used -= size;
        self.give_back(address.0, size);
    }

    fn reserve(&mut self, size: u64) -> Address {
        self.place(size)
    }

    fn unreserve(&mut self, address: Address, size: u64) {
        self.give_back(address.0, size);
    }

    fn map(&mut self, _address: Address, size: u64) -> bool {
        self.take(size)
    }

    fn unmap(&mut self, _address: Address, size: u64) {
        self.used -= size;
    }

    fn total(&self) -> u64 {
        self.capacity
    }

    fn available(&self) -> u64 {
        self.capacity - self.used
    }

    fn record_event(&mut self, _stream: Stream) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn is_done(&mut self, ticket: Ticket) -> bool {
        !self.holding || ticket.0 <= self.done
    }

    fn synchronize(&mut self, ticket: Ticket) {
        self.done = self.done.max(ticket.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_range_that_is_large_enough_is_used_first() {
        const MIB: u64 = 1 << 20;
        let mut device = SimulatedDevice::new(100 * MIB);
        let ranges: Vec<Address> =
            [2, 2, 8, 2, 8].into_iter().map(|mib| device.malloc(mib * MIB).expect("there is room")).collect();
        for (index, mib) in [(0, 2), (2, 8), (4, 8)] {
            device.free(ranges[index], mib * MIB);
        }
        let behind = |range: Address, mib: u64| Some(Address(range.0 + mib * MIB));
        assert_eq!(device.malloc(6 * MIB), Some(ranges[2]));
        assert_eq!(device.malloc(4 * MIB), Some(ranges[4]), "two MiB are left of the range below");
        assert_eq!(device.malloc(2 * MIB), Some(ranges[0]));
        assert_eq!(device.malloc(2 * MIB), behind(ranges[2], 6), "the rest of a range serves, too");
        assert_eq!(device.malloc(4 * MIB), behind(ranges[4], 4));
        assert_eq!(device.malloc(2 * MIB), behind(ranges[4], 8), "nothing is left below the top");
    }

    #[test]
    fn capacity_is_exact_and_addresses_are_used_again() {
        const MIB: u64 = 1 << 20;
        let mut device = SimulatedDevice::new(10 * MIB);
        let first = device.malloc(2 * MIB).expect("there is room");
        let second = device.malloc(8 * MIB).expect("there is room");
        assert_eq!(device.malloc(1), None);
        assert_eq!(device.available(), 0);
        device.free(first, 2 * MIB);
        assert_eq!(device.malloc(4 * MIB), None);
        assert_eq!(device.malloc(2 * MIB), Some(first));
        device.free(first, 2 * MIB);
        device.free(second, 8 * MIB);
        assert_eq!(device.malloc(10 * MIB), Some(first));
    }

    #[test]
    fn events_are_held_until_they_are_waited_for() {
        let mut device = SimulatedDevice::unlimited();
        let early = device.record_event(Stream(1));
        device.hold_events();
        let late = device.record_event(Stream(1));
        assert!(!device.is_done(early));
        device.synchronize(early);
        assert!(device.is_done(early));
        assert!(!device.is_done(late));
        device.finish_events();
        assert!(device.is_done(late));
    }
}
