//! Device that answers from a trace, and compares the allocator's actions with it.

use std::collections::{BTreeMap, BTreeSet};

use memfit_recording::{TraceAction, TraceEvent};

use super::rewind::is_possible;
use super::{Mismatch, Tally, Verification};
use crate::rounding::SMALL_LIMIT;
use crate::{Action, Address, Device, Entry, Ticket};

/// Maximum number of mismatches kept.
const MAX_MISMATCHES: usize = 16;

/// Trace that is followed.
#[derive(Clone)]
pub(super) struct Script<'trace> {
    events: &'trace [TraceEvent],
    /// Next event that the allocator should cause.
    pub(super) cursor: usize,
    capacity: u64,
    pub(super) found: Verification,
    /// `true` while the state is being prepared: nothing is compared.
    pub(super) quiet: bool,
    /// `true` after the allocator deviated from the trace.
    pub(super) diverged: bool,
    /// End of a sequence of blocks that became free together, and those that the replay has freed. PyTorch
    /// frees them stream by stream in an unspecified order.
    together: (usize, BTreeSet<u64>),
    /// Action answered from the trace, which is therefore not a prediction.
    told: Option<(Action, Address)>,
    /// Address space of expandable segments, by start and end.
    pub(super) reserved: BTreeMap<u64, u64>,
    /// Number of reservations whose address the trace never contains.
    unplaced: u64,
}

/// Start of the address space for reservations that are not in the trace: beyond any device's addresses.
const UNPLACED: u64 = 1 << 61;

/// Returns `true` if an event concerns segments.
pub(super) const fn concerns_segments(action: TraceAction) -> bool {
    matches!(
        action,
        TraceAction::SegmentAlloc
            | TraceAction::SegmentFree
            | TraceAction::SegmentMap
            | TraceAction::SegmentUnmap
    )
}

impl<'trace> Script<'trace> {
    pub(super) fn new(events: &'trace [TraceEvent], capacity: u64) -> Self {
        let found = Verification { events: events.len() as u64, ..Verification::default() };
        Self {
            events,
            cursor: 0,
            capacity,
            found,
            quiet: true,
            diverged: false,
            together: (0, BTreeSet::new()),
            told: None,
            reserved: BTreeMap::new(),
            unplaced: 0,
        }
    }

    pub(super) fn next(&self) -> Option<&'trace TraceEvent> {
        self.events.get(self.cursor)
    }

    /// Returns the next event if it is of this kind.
    fn expect(&self, action: TraceAction) -> Option<&'trace TraceEvent> {
        self.next().filter(|event| event.action == action)
    }

    /// Counts an event that the allocator did not cause, or caused differently.
    pub(super) fn miss(&mut self, replayed: Option<(Action, u64, u64)>) {
        self.diverged = true;
        let Some(event) = self.next() else { return };
        if self.found.mismatches.len() < MAX_MISMATCHES {
            self.found.mismatches.push(Mismatch {
                event: self.cursor,
                action: event.action,
                recorded: (event.address, event.size),
                replayed,
            });
        }
        self.tally(event.action, false);
    }

    pub(super) fn tally(&mut self, action: TraceAction, right: bool) {
        if action == TraceAction::Alloc {
            self.found.addresses.count(right);
        } else if concerns_segments(action) {
            self.found.segments.count(right);
        }
    }

    /// Accepts the events up to `end` without prediction: they count neither as matches nor as mismatches.
    pub(super) fn accept_unpredicted(&mut self, end: usize) {
        let counts =
            |event: &&TraceEvent| event.action == TraceAction::Alloc || concerns_segments(event.action);
        let told = self.events[..end].iter().filter(counts).count() as u64;
        let found = &mut self.found;
        (found.addresses, found.segments, found.told) = (Tally::default(), Tally::default(), told);
        found.mismatches.clear();
    }

    /// Returns `true` if a block that the replay frees is one of those that become free together here.
    fn frees_together(&mut self, entry: Entry) -> bool {
        if entry.action != Action::FreeCompleted {
            return false;
        }
        if self.cursor >= self.together.0 {
            let run = self.events[self.cursor..]
                .iter()
                .take_while(|event| event.action == TraceAction::FreeCompleted);
            self.together = (self.cursor + run.count(), BTreeSet::new());
        }
        let (end, freed) = &mut self.together;
        let start = end.saturating_sub(*end - self.cursor + freed.len());
        let is_there = self.events[start..*end]
            .iter()
            .any(|event| event.address == entry.address.0 && event.size == entry.size);
        is_there && freed.insert(entry.address.0)
    }

    /// Address of the first mapping in new address space after a failed request, for a request of its stream,
    /// pool and size.
    fn first_map_after(&self, failed: usize) -> Option<u64> {
        let kind =
            |event: &TraceEvent| (event.stream, event.pool_index().unwrap_or(0), event.size <= SMALL_LIMIT);
        let request = &self.events[failed];
        let mut later = self.events[failed + 1..].iter().enumerate();
        let (_, map) = later.find(|(place, event)| {
            let behind = self.events[failed + 1..].iter().skip(*place);
            let mut requests =
                behind.filter(|event| matches!(event.action, TraceAction::Alloc | TraceAction::Oom));
            event.action == TraceAction::SegmentMap
                && !self.is_reserved(event.address)
                && requests.next().is_some_and(|next| kind(next) == kind(request))
        })?;
        Some(map.address)
    }

    fn is_reserved(&self, address: u64) -> bool {
        self.reserved.range(..=address).next_back().is_some_and(|(_, end)| address < *end)
    }

    /// Skips events that the allocator does not cause.
    pub(super) fn skip_annotations(&mut self) {
        while self.next().is_some_and(|event| {
            !matches!(
                event.action,
                TraceAction::Alloc
                    | TraceAction::FreeRequested
                    | TraceAction::FreeCompleted
                    | TraceAction::SegmentAlloc
                    | TraceAction::SegmentFree
                    | TraceAction::SegmentMap
                    | TraceAction::SegmentUnmap
                    | TraceAction::Oom
            )
        }) {
            self.cursor += 1;
        }
    }
}

impl Device for Script<'_> {
    fn malloc(&mut self, size: u64) -> Option<Address> {
        self.skip_annotations();
        let possible = |event: &&TraceEvent| event.size == size && is_possible(event.address, size);
        let given = self.expect(TraceAction::SegmentAlloc).filter(possible);
        given.map(|event| Address(event.address))
    }

    fn free(&mut self, _address: Address, _size: u64) {}

    fn reserve(&mut self, size: u64) -> Address {
        // Address space is reserved even if mapping then fails and succeeds only after the cache was
        // released.
        let of_release = |event: &TraceEvent| {
            matches!(
                event.action,
                TraceAction::FreeCompleted | TraceAction::SegmentFree | TraceAction::SegmentUnmap
            )
        };
        self.skip_annotations();
        let first = (self.cursor..self.events.len()).find(|place| !of_release(&self.events[*place]));
        let base = first.and_then(|place| match self.events[place].action {
            TraceAction::SegmentMap => Some(self.events[place].address),
            // The request failed; its reservation exists when the next request of its kind comes.
            TraceAction::Oom => self.first_map_after(place),
            _ => None,
        });
        let base = base.filter(|base| is_possible(*base, size)).unwrap_or_else(|| {
            self.unplaced += 1;
            UNPLACED + (self.unplaced << 44)
        });
        self.reserved.insert(base, base.saturating_add(size));
        Address(base)
    }

    fn unreserve(&mut self, address: Address, _size: u64) {
        self.reserved.remove(&address.0);
    }

    fn map(&mut self, address: Address, size: u64) -> bool {
        self.skip_annotations();
        let given = self.expect(TraceAction::SegmentMap);
        given.is_some_and(|event| event.address == address.0 && event.size == size)
    }

    fn unmap(&mut self, _address: Address, _size: u64) {}

    fn total(&self) -> u64 {
        self.capacity
    }

    fn available(&self) -> u64 {
        self.expect(TraceAction::Oom).map_or(0, |event| event.address)
    }

    fn is_done(&mut self, _ticket: Ticket) -> bool {
        // The trace contains the completion of each free, and the replay passes it to the allocator.
        false
    }

    fn choose_among_equals(&mut self, coming: Action, equals: &[Address]) -> Option<usize> {
        if self.quiet || self.diverged {
            return None;
        }
        self.skip_annotations();
        let next = self.next().filter(|event| event.action == coming.into())?;
        let place = equals.iter().position(|address| address.0 == next.address)?;
        self.told = Some((coming, equals[place]));
        Some(place)
    }

    fn traced(&mut self, entry: Entry) {
        if self.quiet || self.diverged {
            return;
        }
        self.skip_annotations();
        let replayed = Some((entry.action, entry.address.0, entry.size));
        let was_told = self.told.take() == Some((entry.action, entry.address));
        match self.next() {
            Some(event) if event.action == TraceAction::FreeCompleted && self.frees_together(entry) => {
                self.cursor += 1;
            }
            Some(event)
                if event.action == entry.action.into()
                    && (event.address, event.size) == (entry.address.0, entry.size) =>
            {
                if was_told {
                    self.found.told += 1;
                } else {
                    self.tally(event.action, true);
                }
                self.cursor += 1;
            }
            _ => self.miss(replayed),
        }
    }
}
