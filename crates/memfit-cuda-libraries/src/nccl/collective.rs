//! What an operation of a communicator does to the memory that it is given.
//!
//! Contents that are small and known on all ranks that matter are exchanged in truth (see
//! [`super::meeting`]). Otherwise what a rank would receive is modelled by what it sends itself: for ranks
//! that do alike, which is what the memory of a training step rests on, shapes and lengths that are exchanged
//! stay true. Reductions then leave their input's values.

use std::cell::RefCell;
use std::sync::PoisonError;

use super::arithmetic;
use super::buffers::Use;
use super::communicator::{Communicator, Place};
use super::meeting::{self, EVERYONE, Lane, MOST, Meeting, Part};
use super::status;
use crate::cost::collective::{self, Collective};
use crate::entry::{Handle, Ptr};
use memfit_cuda::card;

/// More ranks than this do not get a copy each.
const MOST_COPIES: i32 = 64;
/// Operations of all ranks on so few bytes are barriers, or flags that steer a script: they wait for
/// everyone.
const FEW: usize = 64;

/// Which operation, with its `ncclRedOp_t`, its root or its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
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
    pub(super) shape: Shape,
    pub(super) from: Ptr,
    pub(super) to: Ptr,
    /// Elements of one rank's part, and their type.
    pub(super) count: usize,
    pub(super) kind: i32,
    pub(super) stream: Ptr,
}

/// An operation that has begun: what this rank handed in, and under which number.
struct Begun {
    operation: Operation,
    /// Bytes of one rank's part.
    length: usize,
    number: Option<u64>,
    mine: Option<Part>,
}

thread_local! {
    /// The group of calls that this thread has begun.
    static GROUP: RefCell<Group> = const { RefCell::new(Group { depth: 0, begun: Vec::new() }) };
}

/// A group of calls: all of them begin before any of them is done, so that those of different ranks in one
/// thread, and those that answer one another, do not wait for each other.
struct Group {
    depth: u32,
    begun: Vec<Begun>,
}

/// `ncclGroupStart`.
pub(super) fn start_group() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// `ncclGroupEnd`.
pub(super) fn end_group() {
    let begun = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.saturating_sub(1);
        if group.depth == 0 { std::mem::take(&mut group.begun) } else { Vec::new() }
    });
    for each in &begun {
        each.complete(&begun);
    }
}

/// Begins an operation, and completes it unless it is one of a group.
pub(super) fn run(operation: Operation) -> i32 {
    let Some(known) = operation.communicator.get() else { return status::INVALID_ARGUMENT };
    let ranks = usize::try_from(known.place.size).unwrap_or(1);
    let length = arithmetic::size_of(operation.kind)
        .and_then(|size| operation.count.checked_mul(size)?.checked_mul(ranks));
    let (Some(whole), true) = (length, operation.names_ranks(known.place.size)) else {
        return status::INVALID_ARGUMENT;
    };
    if !operation.shape.needs(known.place).into_iter().all(|need| known.buffers.connect(need)) {
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

impl Shape {
    /// What has to be connected for it.
    fn needs(self, place: Place) -> Vec<Use> {
        match self {
            Self::AllReduce(_) => vec![Use::Ring, Use::Tree],
            // A rank's own part does not leave its card.
            Self::Send(peer) | Self::Receive(peer) if peer == place.rank => Vec::new(),
            Self::Send(peer) | Self::Receive(peer) => vec![Use::Peer(peer)],
            Self::AllToAll => (0..place.size).filter(|peer| *peer != place.rank).map(Use::Peer).collect(),
            _ => vec![Use::Ring],
        }
    }

    /// Parts that any rank hands in at most, in parts of one rank.
    fn parts(self, ranks: usize) -> usize {
        match self {
            Self::ReduceScatter(_) | Self::Scatter(_) | Self::AllToAll => ranks,
            _ => 1,
        }
    }

    /// Whether something is computed of what is handed in, so that all of it must be known.
    fn computes(self) -> bool {
        matches!(self, Self::AllReduce(_) | Self::Reduce(..) | Self::ReduceScatter(_))
    }

    /// Whether this rank hands anything in.
    fn hands_in(self, rank: i32) -> bool {
        match self {
            Self::Broadcast(root) | Self::Scatter(root) => rank == root,
            Self::Receive(_) => false,
            _ => true,
        }
    }
}

impl Operation {
    fn names_ranks(&self, size: i32) -> bool {
        match self.shape {
            Shape::Reduce(_, rank)
            | Shape::Broadcast(rank)
            | Shape::Gather(rank)
            | Shape::Scatter(rank)
            | Shape::Send(rank)
            | Shape::Receive(rank) => (0..size).contains(&rank),
            _ => true,
        }
    }

    fn lane(&self, rank: i32) -> Lane {
        match self.shape {
            Shape::Send(peer) => meeting::lane(rank, peer),
            Shape::Receive(peer) => meeting::lane(peer, rank),
            _ => EVERYONE,
        }
    }

    /// Hands in this rank's part, if such a part can travel.
    fn begin(self, known: &Communicator, length: usize) -> Begun {
        let mut begun = Begun { operation: self, length, number: None, mine: None };
        let rank = known.place.rank;
        let whole = length * self.shape.parts(usize::try_from(known.place.size).unwrap_or(1));
        let Some(meeting) = known.meeting.as_ref().filter(|_| (1..=MOST).contains(&whole)) else {
            return begun;
        };
        let mut meeting = meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = self.lane(rank);
        let number = meeting.next(lane);
        begun.number = Some(number);
        if self.shape.hands_in(rank) {
            begun.mine = card::known_contents(self.from, whole, self.shape.computes());
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
    /// Does to the memory what the operation does.
    fn complete(&self, group: &[Self]) {
        let Some(known) = self.operation.communicator.get() else { return };
        self.take_time(&known, !group.is_empty());
        self.model(&known, group);
        let Some((number, meeting)) = self.number.zip(known.meeting.as_ref()) else { return };
        let mut meeting = meeting.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, (bytes, answered)) in self.exchange(&known, number, &mut meeting) {
            card::store_received(behind(self.operation.to, place, self.length), &bytes, answered);
        }
        meeting.done(self.operation.lane(known.place.rank), number);
    }

    /// Takes its time on the stream. In a group a rank sends and receives at once, over a link that goes both
    /// ways: there only what it sends takes time.
    fn take_time(&self, known: &Communicator, in_group: bool) {
        let (size, rank) = (known.place.size.unsigned_abs(), known.place.rank);
        let (part, whole) = (self.length as u64, self.length as u64 * u64::from(size));
        let (what, bytes) = match self.operation.shape {
            Shape::AllReduce(_) => (Collective::AllReduce, part),
            Shape::Reduce(..) => (Collective::Reduce, part),
            Shape::Broadcast(_) => (Collective::Broadcast, part),
            Shape::AllGather | Shape::Gather(_) => (Collective::AllGather, whole),
            Shape::ReduceScatter(_) | Shape::Scatter(_) => (Collective::ReduceScatter, whole),
            Shape::AllToAll => (Collective::AllToAll, whole),
            Shape::Send(peer) | Shape::Receive(peer) if peer == rank => return,
            Shape::Receive(_) if in_group => return,
            Shape::Send(_) | Shape::Receive(_) => (Collective::Send, part),
        };
        card::queue_work(self.operation.stream as usize, |speeds| {
            collective::work(what, bytes, size, speeds)
        });
    }

    /// What the ranks truly handed in to this one: contents, each with the part of the target that it goes
    /// to.
    fn exchange(&self, known: &Communicator, number: u64, meeting: &mut Meeting) -> Vec<(i32, Part)> {
        let (size, rank) = (known.place.size, known.place.rank);
        let Operation { shape, kind, .. } = self.operation;
        let everyone = matches!(shape, Shape::AllReduce(_) | Shape::AllGather) && self.length <= FEW;
        if self.mine.is_none() && shape.hands_in(rank) && !everyone {
            return Vec::new();
        }
        let lane = self.operation.lane(rank);
        let mut of =
            |other: i32| if other == rank { self.mine.clone() } else { meeting.wait(lane, number, other) };
        let cut = |part: Option<Part>| {
            let (bytes, answered) = part?;
            let begin = self.length * usize::try_from(rank).ok()?;
            Some((bytes.get(begin..begin + self.length)?.to_vec(), answered))
        };
        let one = |part: Option<Part>| part.map(|part| (0, part)).into_iter().collect();
        match shape {
            Shape::AllReduce(operation) => {
                let parts: Vec<_> = (0..size).map(of).collect();
                one(reduced(&parts, kind, operation))
            }
            Shape::Reduce(operation, root) if root == rank => {
                let parts: Vec<_> = (0..size).map(of).collect();
                one(reduced(&parts, kind, operation))
            }
            Shape::ReduceScatter(operation) => {
                let parts: Vec<_> = (0..size).map(|other| cut(of(other))).collect();
                one(reduced(&parts, kind, operation))
            }
            Shape::AllGather => (0..size).filter_map(|other| Some((other, of(other)?))).collect(),
            Shape::Gather(root) if root == rank => {
                (0..size).filter_map(|other| Some((other, of(other)?))).collect()
            }
            Shape::AllToAll => (0..size).filter_map(|other| Some((other, cut(of(other))?))).collect(),
            Shape::Broadcast(root) if root != rank => one(of(root)),
            Shape::Scatter(root) if root != rank => one(cut(of(root))),
            Shape::Receive(peer) => one(of(peer)),
            _ => Vec::new(),
        }
    }

    /// What this rank would receive, modelled by what it sends itself.
    fn model(&self, known: &Communicator, group: &[Self]) {
        let Operation { shape, from, to, .. } = self.operation;
        let (length, size, rank) = (self.length, known.place.size, known.place.rank);
        match shape {
            Shape::AllReduce(_) => copy(to, from, length),
            Shape::Reduce(_, root) | Shape::Broadcast(root) if root == rank => copy(to, from, length),
            Shape::Broadcast(_) => {
                // In one group every rank may broadcast to every other, which is a gathering by another name
                // (PyTorch's `all_gather` into a list of different sizes).
                let mut others = group.iter().filter(|other| self.is_with(other) && other.length == length);
                if let Some(sent) = others.find(|other| other.operation.shape == Shape::Broadcast(rank)) {
                    copy(to, sent.operation.from, length);
                }
            }
            Shape::Receive(peer) => {
                // What is sent to this very rank; from another, what is sent to it in the same group, as in
                // an exchange of all with all.
                let before = group.iter().take_while(|other| !std::ptr::eq(*other, self));
                let nth =
                    before.filter(|other| self.is_with(other) && other.operation.shape == shape).count();
                let mut sent = group.iter().filter(|other| self.is_with(other));
                let twin = sent.by_ref().filter(|other| other.operation.shape == Shape::Send(peer)).nth(nth);
                if let Some(twin) = twin.filter(|twin| twin.length == length) {
                    copy(to, twin.operation.from, length);
                }
            }
            Shape::AllGather => gather(size, rank, from, to, length),
            Shape::Gather(root) if root == rank => gather(size, rank, from, to, length),
            Shape::ReduceScatter(_) => copy(to, behind(from, rank, length), length),
            Shape::Scatter(root) if root == rank => copy(to, behind(from, rank, length), length),
            Shape::AllToAll => copy(to, from, length * usize::try_from(size).unwrap_or(1)),
            _ => {}
        }
    }

    /// Whether another operation is one of the same rank of the same communicator.
    fn is_with(&self, other: &Self) -> bool {
        self.operation.communicator == other.operation.communicator
    }
}

/// The reduction of all parts; nothing if one of them is not known.
fn reduced(parts: &[Option<Part>], kind: i32, operation: i32) -> Option<Part> {
    let known: Option<Vec<&Part>> = parts.iter().map(Option::as_ref).collect();
    let known = known?;
    let bytes: Vec<&[u8]> = known.iter().map(|(bytes, _)| bytes.as_slice()).collect();
    let answered = known.iter().any(|(_, answered)| *answered);
    arithmetic::reduce(&bytes, kind, operation).map(|bytes| (bytes, answered))
}

/// Copies what is known within the card; its time is the operation's.
fn copy(to: Ptr, from: Ptr, length: usize) {
    if to != from && length > 0 {
        card::move_on_device(to, from, length);
    }
}

/// The address `count` lengths behind another.
fn behind(start: Ptr, count: i32, length: usize) -> Ptr {
    start.wrapping_byte_add(usize::try_from(count).unwrap_or(0).wrapping_mul(length))
}

/// Fills each rank's part of a buffer with what this rank sends; beyond [`MOST_COPIES`] ranks, its own part
/// alone, unless it is small and something of it is known.
fn gather(size: i32, rank: i32, from: Ptr, to: Ptr, length: usize) {
    let whole = length.saturating_mul(usize::try_from(size).unwrap_or(usize::MAX));
    if size <= MOST_COPIES || whole <= MOST && card::known_contents(from, length, false).is_some() {
        (0..size).for_each(|rank| copy(behind(to, rank, length), from, length));
    } else {
        copy(behind(to, rank, length), from, length);
    }
}
