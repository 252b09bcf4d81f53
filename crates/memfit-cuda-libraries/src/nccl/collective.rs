//! Effects of a communicator's operations on memory.
//!
//! Contents that are small and known on all ranks involved are actually exchanged (see [`super::meeting`]).
//! Otherwise a rank is modelled as receiving the data that it sends itself, as if all ranks sent the same; a
//! reduction then returns its input. Shapes and lengths that ranks exchange stay correct where all ranks do
//! the same work.
//!
//! Each exchanged contribution has a flag `answered`: a rule of the device supplied some of its contents in
//! place of computed values.

use std::cell::RefCell;
use std::sync::PoisonError;

use super::arithmetic;
use super::buffers::Use;
use super::communicator::{Communicator, RankPosition};
use super::meeting::{self, EVERYONE, Lane, MAX_EXCHANGED_BYTES, Meeting, Part};
use super::status;
use crate::entry::{Handle, Ptr};
use memfit_cuda::card;
use memfit_kernels::cost::collective::{self, Collective, Group as Members};

/// Maximum number of ranks for which a gather fills every rank's part.
const MAX_COPIES: i32 = 64;
/// Maximum bytes of an all-reduce or all-gather that waits for every rank even if its own data is unknown:
/// barriers, and flags on which a script branches.
const MAX_BARRIER_BYTES: usize = 64;

/// Communication pattern of an operation, with its `ncclRedOp_t`, root or peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    AllReduce(i32),
    Reduce(i32, i32),
    Broadcast(i32),
    AllGather,
    Gather(i32),
    ReduceScatter(i32),
    Scatter(i32),
    AllToAll,
    Send(i32),
    Receive(i32),
}

/// One call.
#[derive(Clone, Copy)]
pub(super) struct Operation {
    pub(super) communicator: Handle<Communicator>,
    pub(super) pattern: Pattern,
    pub(super) from: Ptr,
    pub(super) to: Ptr,
    /// Number of elements in one rank's part, and their type.
    pub(super) count: usize,
    pub(super) kind: i32,
    pub(super) stream: Ptr,
}

/// An operation that has begun: this rank's contribution and its sequence number.
struct Begun {
    operation: Operation,
    /// Bytes of one rank's part.
    length: usize,
    number: Option<u64>,
    mine: Option<Part>,
}

thread_local! {
    /// The group of calls that this thread has started.
    static GROUP: RefCell<Group> = const { RefCell::new(Group { depth: 0, begun: Vec::new() }) };
}

/// A group of calls. All of them begin before any of them completes, so that ranks in the same thread, and
/// calls that wait for each other, do not block.
struct Group {
    depth: u32,
    begun: Vec<Begun>,
}

/// Starts a group (`ncclGroupStart`).
pub(super) fn start_group() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Ends a group (`ncclGroupEnd`).
pub(super) fn end_group() {
    let begun = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.saturating_sub(1);
        if group.depth == 0 { std::mem::take(&mut group.begun) } else { Vec::new() }
    });
    for each in &begun {
        each.complete(&begun);
    }
}

/// Begins an operation, and completes it unless it is part of a group.
pub(super) fn run(operation: Operation) -> i32 {
    let Some(known) = operation.communicator.get() else { return status::INVALID_ARGUMENT };
    let ranks = usize::try_from(known.position.size).unwrap_or(1);
    let length = arithmetic::element_size(operation.kind)
        .and_then(|size| operation.count.checked_mul(size)?.checked_mul(ranks));
    let (Some(whole), true) = (length, operation.has_valid_rank(known.position.size)) else {
        return status::INVALID_ARGUMENT;
    };
    if !operation.pattern.connections(known.position).into_iter().all(|each| known.buffers.connect(each)) {
        return status::UNHANDLED_CUDA_ERROR;
    }
    let begun = operation.begin(&known, whole / ranks);
    let alone = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Some(begun);
        }
        group.begun.push(begun);
        None
    });
    if let Some(begun) = alone {
        begun.complete(&[]);
    }
    status::SUCCESS
}

impl Pattern {
    /// Connections that the operation needs.
    fn connections(self, position: RankPosition) -> Vec<Use> {
        match self {
            Self::AllReduce(_) => vec![Use::Ring, Use::Tree],
            // A rank's own part does not leave its device.
            Self::Send(peer) | Self::Receive(peer) if peer == position.rank => Vec::new(),
            Self::Send(peer) | Self::Receive(peer) => vec![Use::Peer(peer)],
            Self::AllToAll => {
                (0..position.size).filter(|peer| *peer != position.rank).map(Use::Peer).collect()
            }
            _ => vec![Use::Ring],
        }
    }

    /// Number of parts in the largest contribution of a rank.
    fn parts(self, ranks: usize) -> usize {
        match self {
            Self::ReduceScatter(_) | Self::Scatter(_) | Self::AllToAll => ranks,
            _ => 1,
        }
    }

    /// Returns `true` if the operation computes on its contributions, so that all of them must be known.
    fn computes(self) -> bool {
        matches!(self, Self::AllReduce(_) | Self::Reduce(..) | Self::ReduceScatter(_))
    }

    /// Returns `true` if this rank contributes data.
    fn contributes(self, rank: i32) -> bool {
        match self {
            Self::Broadcast(root) | Self::Scatter(root) => rank == root,
            Self::Receive(_) => false,
            _ => true,
        }
    }
}

impl Operation {
    /// Returns `true` if the root or peer, if there is one, is a rank of the communicator.
    fn has_valid_rank(&self, size: i32) -> bool {
        match self.pattern {
            Pattern::Reduce(_, rank)
            | Pattern::Broadcast(rank)
            | Pattern::Gather(rank)
            | Pattern::Scatter(rank)
            | Pattern::Send(rank)
            | Pattern::Receive(rank) => (0..size).contains(&rank),
            _ => true,
        }
    }

    fn lane(&self, rank: i32) -> Lane {
        match self.pattern {
            Pattern::Send(peer) => meeting::lane(rank, peer),
            Pattern::Receive(peer) => meeting::lane(peer, rank),
            _ => EVERYONE,
        }
    }

    /// Posts this rank's contribution, if it is small enough to exchange.
    fn begin(self, known: &Communicator, length: usize) -> Begun {
        let mut begun = Begun { operation: self, length, number: None, mine: None };
        let rank = known.position.rank;
        let whole = length * self.pattern.parts(usize::try_from(known.position.size).unwrap_or(1));
        let Some(meeting) = known.meeting.as_ref().filter(|_| (1..=MAX_EXCHANGED_BYTES).contains(&whole))
        else {
            return begun;
        };
        let mut meeting = meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = self.lane(rank);
        let number = meeting.next(lane);
        begun.number = Some(number);
        if self.pattern.contributes(rank) {
            begun.mine = card::known_contents(self.from, whole, self.pattern.computes());
            meeting.post(
                lane,
                number,
                begun.mine.as_ref().map(|(bytes, answered)| (bytes.as_slice(), *answered)),
            );
        }
        begun
    }
}

impl Begun {
    /// Applies the operation's effect to memory.
    fn complete(&self, group: &[Self]) {
        let Some(known) = self.operation.communicator.get() else { return };
        self.queue_time(&known, !group.is_empty());
        self.model(&known, group);
        let Some((number, meeting)) = self.number.zip(known.meeting.as_ref()) else { return };
        let mut meeting = meeting.lock().unwrap_or_else(PoisonError::into_inner);
        for (position, (bytes, answered)) in self.exchange(&known, number, &mut meeting) {
            card::store_received(offset_address(self.operation.to, position, self.length), &bytes, answered);
        }
        meeting.complete(self.operation.lane(known.position.rank), number);
    }

    /// Queues the operation's time on the stream. In a group, sends and receives overlap on a bidirectional
    /// link, so only sends take time.
    fn queue_time(&self, known: &Communicator, in_group: bool) {
        let (size, rank) = (known.position.size.unsigned_abs(), known.position.rank);
        let (part, whole) = (self.length as u64, self.length as u64 * u64::from(size));
        let (what, bytes) = match self.operation.pattern {
            Pattern::AllReduce(_) => (Collective::AllReduce, part),
            Pattern::Reduce(..) => (Collective::Reduce, part),
            Pattern::Broadcast(_) => (Collective::Broadcast, part),
            Pattern::AllGather | Pattern::Gather(_) => (Collective::AllGather, whole),
            Pattern::ReduceScatter(_) | Pattern::Scatter(_) => (Collective::ReduceScatter, whole),
            Pattern::AllToAll => (Collective::AllToAll, whole),
            Pattern::Send(peer) | Pattern::Receive(peer) if peer == rank => return,
            Pattern::Receive(_) if in_group => return,
            Pattern::Send(_) | Pattern::Receive(_) => (Collective::Send, part),
        };
        let members = Members { ranks: size, per_machine: known.per_machine };
        card::queue_work(self.operation.stream as usize, |speeds| {
            collective::work(what, bytes, members, speeds)
        });
    }

    /// Returns the known data that this rank receives, with the index of the target's part that it goes to.
    fn exchange(&self, known: &Communicator, number: u64, meeting: &mut Meeting) -> Vec<(i32, Part)> {
        let (size, rank) = (known.position.size, known.position.rank);
        let Operation { pattern, kind, .. } = self.operation;
        let everyone =
            matches!(pattern, Pattern::AllReduce(_) | Pattern::AllGather) && self.length <= MAX_BARRIER_BYTES;
        if self.mine.is_none() && pattern.contributes(rank) && !everyone {
            return Vec::new();
        }
        let lane = self.operation.lane(rank);
        let mut part_of =
            |other: i32| if other == rank { self.mine.clone() } else { meeting.wait(lane, number, other) };
        let cut = |part: Option<Part>| {
            let (bytes, answered) = part?;
            let begin = self.length * usize::try_from(rank).ok()?;
            Some((bytes.get(begin..begin + self.length)?.to_vec(), answered))
        };
        let one = |part: Option<Part>| part.map(|part| (0, part)).into_iter().collect();
        match pattern {
            Pattern::AllReduce(operation) => {
                let parts: Vec<_> = (0..size).map(part_of).collect();
                one(reduced(&parts, kind, operation))
            }
            Pattern::Reduce(operation, root) if root == rank => {
                let parts: Vec<_> = (0..size).map(part_of).collect();
                one(reduced(&parts, kind, operation))
            }
            Pattern::ReduceScatter(operation) => {
                let parts: Vec<_> = (0..size).map(|other| cut(part_of(other))).collect();
                one(reduced(&parts, kind, operation))
            }
            Pattern::AllGather => (0..size).filter_map(|other| Some((other, part_of(other)?))).collect(),
            Pattern::Gather(root) if root == rank => {
                (0..size).filter_map(|other| Some((other, part_of(other)?))).collect()
            }
            Pattern::AllToAll => (0..size).filter_map(|other| Some((other, cut(part_of(other))?))).collect(),
            Pattern::Broadcast(root) if root != rank => one(part_of(root)),
            Pattern::Scatter(root) if root != rank => one(cut(part_of(root))),
            Pattern::Receive(peer) => one(part_of(peer)),
            _ => Vec::new(),
        }
    }

    /// Models the data that this rank would receive by the data it sends itself.
    fn model(&self, known: &Communicator, group: &[Self]) {
        let Operation { pattern, from, to, .. } = self.operation;
        let (length, size, rank) = (self.length, known.position.size, known.position.rank);
        match pattern {
            Pattern::AllReduce(_) => copy(to, from, length),
            Pattern::Reduce(_, root) | Pattern::Broadcast(root) if root == rank => copy(to, from, length),
            Pattern::Broadcast(_) => {
                // In one group, every rank may broadcast to every other, which amounts to a gather (PyTorch's
                // `all_gather` into a list of different sizes).
                let mut others = group.iter().filter(|other| self.is_with(other) && other.length == length);
                if let Some(sent) = others.find(|other| other.operation.pattern == Pattern::Broadcast(rank)) {
                    copy(to, sent.operation.from, length);
                }
            }
            Pattern::Receive(peer) => {
                // Modelled by this rank's send to the same peer in the group, as in an all-to-all exchange.
                let before = group.iter().take_while(|other| !std::ptr::eq(*other, self));
                let nth =
                    before.filter(|other| self.is_with(other) && other.operation.pattern == pattern).count();
                let mut sent = group.iter().filter(|other| self.is_with(other));
                let twin =
                    sent.by_ref().filter(|other| other.operation.pattern == Pattern::Send(peer)).nth(nth);
                if let Some(twin) = twin.filter(|twin| twin.length == length) {
                    copy(to, twin.operation.from, length);
                }
            }
            Pattern::AllGather => gather(size, rank, from, to, length),
            Pattern::Gather(root) if root == rank => gather(size, rank, from, to, length),
            Pattern::ReduceScatter(_) => copy(to, offset_address(from, rank, length), length),
            Pattern::Scatter(root) if root == rank => copy(to, offset_address(from, rank, length), length),
            Pattern::AllToAll => copy(to, from, length * usize::try_from(size).unwrap_or(1)),
            _ => {}
        }
    }

    /// Returns `true` if another operation belongs to the same rank of the same communicator.
    fn is_with(&self, other: &Self) -> bool {
        self.operation.communicator == other.operation.communicator
    }
}

/// Reduces all parts; `None` if one of them is unknown.
fn reduced(parts: &[Option<Part>], kind: i32, operation: i32) -> Option<Part> {
    let known: Option<Vec<&Part>> = parts.iter().map(Option::as_ref).collect();
    let known = known?;
    let bytes: Vec<&[u8]> = known.iter().map(|(bytes, _)| bytes.as_slice()).collect();
    let answered = known.iter().any(|(_, answered)| *answered);
    arithmetic::reduce(&bytes, kind, operation).map(|bytes| (bytes, answered))
}

/// Copies known contents within the device; its time is part of the operation's.
fn copy(to: Ptr, from: Ptr, length: usize) {
    if to != from && length > 0 {
        card::move_on_device(to, from, length);
    }
}

/// Returns the address `count * length` bytes after `start`.
fn offset_address(start: Ptr, count: i32, length: usize) -> Ptr {
    start.wrapping_byte_add(usize::try_from(count).unwrap_or(0).wrapping_mul(length))
}

/// Fills each rank's part of a buffer with this rank's data. Above [`MAX_COPIES`] ranks, fills only its own
/// part, unless the buffer is small and some of the data is known.
fn gather(size: i32, rank: i32, from: Ptr, to: Ptr, length: usize) {
    let whole = length.saturating_mul(usize::try_from(size).unwrap_or(usize::MAX));
    if size <= MAX_COPIES
        || whole <= MAX_EXCHANGED_BYTES && card::known_contents(from, length, false).is_some()
    {
        (0..size).for_each(|rank| copy(offset_address(to, rank, length), from, length));
    } else {
        copy(offset_address(to, rank, length), from, length);
    }
}
