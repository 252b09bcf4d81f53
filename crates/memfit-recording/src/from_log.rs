//! Builds a track from a process's event log.

use std::collections::{BTreeMap, HashMap, VecDeque};

use memfit_channel::events::{Event, EventContext, EventLog, REFUSED_FLAG, SegmentChange};
use memfit_vocabulary::{Category, Phase};

use crate::{
    Block, Call, Frame, FrameId, MomentKind, NEVER, PoolRef, Span, StackId, StreamRef, TextId, Totals, Track,
    Unknown,
};

impl Track {
    /// Builds the track of one process. Inconsistent events, such as a free of an unknown block, are dropped;
    /// totals stay correct, since they are the allocator's own.
    pub fn from_log(log: &EventLog, rank: Option<u32>) -> Self {
        let mut builder = Builder::default();
        builder.index_later_events(log);
        for event in &log.events {
            builder.event(event);
        }
        builder.rest_of_segments();
        let mut track = Self { pid: log.pid, rank, truncated: log.truncated, ..builder.track };
        if track.spans.is_empty() {
            track.unknown.push(Unknown::Segments);
        }
        if track.moments.iter().all(|moment| moment.time_us.is_none()) {
            track.unknown.push(Unknown::Times);
        }
        if track.stacks.is_empty() {
            track.unknown.push(Unknown::Stacks);
        }
        track.shrink();
        track
    }
}

/// Priority of categories for a block that was given two: the earlier entry wins.
const STRONGEST_FIRST: [Category; 6] = [
    Category::Parameters,
    Category::Buffers,
    Category::Optimizer,
    Category::Gradients,
    Category::Workspace,
    Category::Inputs,
];

fn strength(category: Category) -> usize {
    let place = STRONGEST_FIRST.iter().position(|known| *known == category);
    place.map_or(0, |place| STRONGEST_FIRST.len() - place)
}

#[derive(Default)]
struct Builder {
    track: Track,
    /// Track ids of the log's texts.
    texts: HashMap<u32, TextId>,
    /// Live blocks by address.
    live: BTreeMap<u64, u32>,
    /// Open calls by thread, innermost last.
    open: HashMap<u32, Vec<u32>>,
    /// Blocks by device, in order of allocation.
    handed_out: HashMap<u8, Vec<u32>>,
    /// Track ids of the log's stacks.
    stacks: HashMap<u32, StackId>,
    /// Details of allocations that were logged later, by device and allocation number.
    traced: HashMap<(u8, u64), Traced>,
    /// Segment events that are not in the track yet, by device, each with the number of the allocation that
    /// it follows.
    segments: BTreeMap<u8, VecDeque<(u64, SegmentEvent)>>,
    /// Live spans by device and address.
    spans: BTreeMap<(u8, u64), u32>,
    /// Last known totals of each device.
    last: HashMap<u8, Totals>,
}

#[derive(Clone, Copy)]
struct Traced {
    stack: u32,
    stream: u64,
    time_us: u64,
}

#[derive(Clone, Copy)]
struct SegmentEvent {
    change: SegmentChange,
    address: u64,
    bytes: u64,
    traced: Traced,
}

impl Builder {
    /// Collects the allocator's own trace, which the log holds after the events that it describes: at the end
    /// of each step.
    fn index_later_events(&mut self, log: &EventLog) {
        let (mut texts, mut frames) = (HashMap::new(), HashMap::<u32, FrameId>::new());
        for event in &log.events {
            match *event {
                Event::Text { id, ref text } => {
                    texts.insert(id, self.track.texts.intern(text));
                }
                Event::Frame { id, name, file, line } => {
                    let text = |id| texts.get(&id).copied().unwrap_or_default();
                    let frame = Frame { name: text(name), file: text(file), line };
                    frames.insert(id, self.track.stacks.intern_frame(frame));
                }
                Event::Stack { id, frames: ref numbers } => {
                    let known: Vec<FrameId> =
                        numbers.iter().filter_map(|frame| frames.get(frame)).copied().collect();
                    self.stacks.insert(id, self.track.stacks.intern(&known));
                }
                Event::Traced { device, number, stack, stream, time_us } => {
                    self.traced.insert((device, number), Traced { stack, stream, time_us });
                }
                Event::Segment { device, change, number, address, bytes, stack, stream, time_us } => {
                    let traced = Traced { stack, stream, time_us };
                    let segment = SegmentEvent { change, address, bytes, traced };
                    self.segments.entry(device).or_default().push_back((number, segment));
                }
                _ => {}
            }
        }
    }

    fn stack(&self, number: u32) -> StackId {
        self.stacks.get(&number).copied().unwrap_or_default()
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::Alloc { place, address, bytes, allocated, reserved } => {
                let number = self.handed_out.get(&place.device).map_or(0, Vec::len) as u64 + 1;
                self.segments_before(place.device, number);
                let traced = self.traced.remove(&(place.device, number));
                let time_us = traced.map(|traced| traced.time_us).filter(|time| *time != 0);
                let totals = self.totals(place.device, allocated, reserved, time_us);
                self.alloc(place, address, bytes, traced, totals);
            }
            Event::Free { place, address, allocated, reserved, .. } => {
                let Some(index) = self.live.remove(&address) else { return };
                let totals = self.totals(place.device, allocated, reserved, None);
                self.track.free(index, place.device, StackId::NONE, totals);
            }
            Event::Note { address, category, owner } => self.note(address, category, owner),
            Event::Text { id, ref text } => {
                let number = self.track.texts.intern(text);
                self.texts.insert(id, number);
            }
            Event::ScopeEnter { place } => self.enter(place),
            Event::ScopeExit { place } => self.exit(place),
            Event::Phase { place } => {
                let phase = Phase::from_code(place.phase).unwrap_or(Phase::Other);
                self.moment(MomentKind::Phase(phase));
            }
            Event::Step { step } => self.moment(MomentKind::Step(step)),
            Event::Frame { .. } | Event::Stack { .. } | Event::Traced { .. } | Event::Segment { .. } => {}
            Event::Oom { place, bytes, allocated, reserved } => {
                let number = self.handed_out.get(&place.device).map_or(0, Vec::len) as u64 + 1;
                let traced = self.traced.get(&(place.device, REFUSED_FLAG | number)).copied();
                if let Some(refused) = traced {
                    self.segments_until(place.device, number, refused);
                }
                let stack = traced.map_or(StackId::NONE, |traced| self.stack(traced.stack));
                let totals = self.totals(place.device, allocated, reserved, None);
                self.track.add_moment(MomentKind::Oom(bytes), place.device, stack, totals);
            }
            Event::Requested { device, number, address, bytes } => {
                self.requested(device, number, address, bytes);
            }
        }
    }

    fn moment(&mut self, kind: MomentKind) {
        self.track.add_moment(kind, 0, StackId::NONE, Totals::default());
    }

    /// Returns a device's totals after an event. An event without a time gets that of the event before it.
    fn totals(&mut self, device: u8, allocated: u64, reserved: u64, time_us: Option<u64>) -> Totals {
        let last = self.last.entry(device).or_default();
        *last = Totals { allocated, reserved, time_us: time_us.or(last.time_us) };
        *last
    }

    /// Adds the segment events that precede a device's allocation with this number.
    fn segments_before(&mut self, device: u8, number: u64) {
        while let Some(segments) = self.segments.get_mut(&device)
            && let Some((_, segment)) = segments.pop_front_if(|(after, _)| *after < number)
        {
            self.segment(device, segment);
        }
    }

    /// Adds the segment events of a failed request. Segments released by its attempts come before the
    /// failure; segments released after it, before the next allocation, do not. In releases that write no
    /// times, the requesting line tells them apart.
    fn segments_until(&mut self, device: u8, number: u64, refused: Traced) {
        let tried = |segment: &SegmentEvent| {
            let timed = segment.traced.time_us != 0 && refused.time_us != 0;
            if timed {
                segment.traced.time_us <= refused.time_us
            } else {
                segment.traced.stack == refused.stack
            }
        };
        while let Some(segments) = self.segments.get_mut(&device)
            && let Some((_, segment)) =
                segments.pop_front_if(|(after, segment)| *after < number && tried(segment))
        {
            self.segment(device, segment);
        }
    }

    fn rest_of_segments(&mut self) {
        let devices: Vec<u8> = self.segments.keys().copied().collect();
        for device in devices {
            self.segments_before(device, u64::MAX);
        }
    }

    fn segment(&mut self, device: u8, segment: SegmentEvent) {
        let SegmentEvent { change, address, bytes, traced } = segment;
        let Totals { allocated, reserved, .. } = self.last.get(&device).copied().unwrap_or_default();
        let gives = matches!(change, SegmentChange::Alloc | SegmentChange::Map);
        let reserved = if gives { reserved.saturating_add(bytes) } else { reserved.saturating_sub(bytes) };
        let time_us = Some(traced.time_us).filter(|time| *time != 0);
        let totals = self.totals(device, allocated, reserved, time_us);
        let stack = self.stack(traced.stack);
        let span = Span {
            address,
            bytes,
            born: 0,
            freed: NEVER,
            stream: self.track.stream(traced.stream),
            pool: PoolRef::default(),
            device,
            // Segments of the small pool have exactly this size, all others are larger.
            small: (change == SegmentChange::Alloc).then_some(bytes <= 2 << 20),
            expandable: matches!(change, SegmentChange::Map | SegmentChange::Unmap),
        };
        match change {
            SegmentChange::Alloc | SegmentChange::Map => {
                let index = self.track.reserve(span, stack, totals);
                self.spans.insert((device, address), index);
            }
            SegmentChange::Free => {
                if let Some(index) = self.spans.remove(&(device, address)) {
                    self.track.release(index, device, stack, totals);
                }
            }
            SegmentChange::Unmap => self.track.unmap(&mut self.spans, span, stack, totals),
        }
    }

    fn text(&self, id: u32) -> TextId {
        self.texts.get(&id).copied().unwrap_or_default()
    }

    fn alloc(
        &mut self,
        place: EventContext,
        address: u64,
        bytes: u64,
        traced: Option<Traced>,
        totals: Totals,
    ) {
        let index = self.track.blocks.len() as u32;
        if let Some(lost) = self.live.insert(address, index) {
            // The address was allocated twice: the free between was not logged.
            self.track.lose(lost);
        }
        self.handed_out.entry(place.device).or_default().push(index);
        let block = Block {
            address,
            bytes,
            call: self.open.get(&place.thread).and_then(|calls| calls.last()).copied().unwrap_or(NEVER),
            module: self.text(place.module),
            thread: place.thread,
            device: place.device,
            stream: traced.map_or(StreamRef::default(), |traced| self.track.stream(traced.stream)),
            stack: traced.map_or(StackId::NONE, |traced| self.stack(traced.stack)),
            phase: Phase::from_code(place.phase).unwrap_or(Phase::Other),
            ..Block::default()
        };
        self.track.alloc(&block, totals);
    }

    /// Returns the live block that contains an address.
    fn live_block_at(&self, address: u64) -> Option<u32> {
        let (_, &index) = self.live.range(..=address).next_back()?;
        let (start, bytes) = self.track.blocks.extent(index)?;
        (address - start < bytes).then_some(index)
    }

    fn note(&mut self, address: u64, category: u8, owner: u32) {
        let owner = self.text(owner);
        let Some(category) = Category::from_code(category) else { return };
        let Some(block) = self.live_block_at(address) else { return };
        let known = self.track.blocks.noted(block).map_or(0, strength);
        if strength(category) > known {
            self.track.set_noted(block, Some(category));
            self.track.set_owner(block, owner);
        } else if strength(category) == known && self.track.blocks.owner(block) == TextId::NONE {
            self.track.set_owner(block, owner);
        }
    }

    fn enter(&mut self, place: EventContext) {
        let index = self.track.calls.len() as u32;
        let began = self.track.next_moment();
        let module = self.text(place.module);
        let open = self.open.entry(place.thread).or_default();
        let parent = open.last().copied().unwrap_or(NEVER);
        open.push(index);
        self.track.calls.push(Call { module, thread: place.thread, parent, began, ended: NEVER });
        self.moment(MomentKind::Enter(index));
    }

    fn exit(&mut self, place: EventContext) {
        let Some(index) = self.open.get_mut(&place.thread).and_then(Vec::pop) else { return };
        self.track.calls[index as usize].ended = self.track.next_moment();
        self.moment(MomentKind::Exit(index));
    }

    fn requested(&mut self, device: u8, number: u64, address: u64, bytes: u64) {
        let index = if number == 0 {
            self.live.get(&address).copied()
        } else {
            let handed_out = self.handed_out.get(&device);
            handed_out.and_then(|blocks| blocks.get(usize::try_from(number - 1).ok()?)).copied()
        };
        let Some(index) = index else { return };
        if let Some((start, size)) = self.track.blocks.extent(index)
            && start == address
            && bytes <= size
        {
            self.track.set_requested(index, Some(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments released by a failed request's attempts come before the failure, and later releases come
    /// after it, with or without times.
    #[test]
    fn a_failure_comes_behind_what_was_given_back_for_it() {
        for times in [[5, 6, 9], [0, 0, 0]] {
            let place = EventContext { device: 0, phase: 0, thread: 1, module: 0, step: 0 };
            let segment = |change, number, address, stack, time_us| Event::Segment {
                device: 0,
                change,
                number,
                address,
                bytes: 20 << 20,
                stack,
                stream: 0,
                time_us,
            };
            let (first, second) = (1 << 30, 1 << 31);
            let free =
                |address| Event::Free { place, address, bytes: 20 << 20, allocated: 0, reserved: 40 << 20 };
            let alloc = |address| Event::Alloc {
                place,
                address,
                bytes: 20 << 20,
                allocated: 20 << 20,
                reserved: 40 << 20,
            };
            let oom = Event::Oom { place, bytes: 1 << 33, allocated: 20 << 20, reserved: 20 << 20 };
            let [given_back, failed, later] = times;
            let events = vec![
                Event::Text { id: 1, text: "train".to_owned() },
                Event::Frame { id: 1, name: 1, file: 1, line: 3 },
                Event::Stack { id: 1, frames: vec![1] },
                alloc(first),
                alloc(second),
                free(first),
                oom,
                free(second),
                segment(SegmentChange::Alloc, 0, first, 0, 1),
                segment(SegmentChange::Alloc, 1, second, 0, 2),
                Event::Traced { device: 0, number: REFUSED_FLAG | 3, stack: 1, stream: 0, time_us: failed },
                segment(SegmentChange::Free, 2, first, 1, given_back),
                segment(SegmentChange::Free, 2, second, 0, later),
            ];
            let track = Track::from_log(&EventLog { pid: 1, truncated: false, events }, None);
            let tail: Vec<&str> = track
                .moments()
                .iter()
                .map(|moment| match moment.kind {
                    MomentKind::SegmentFree(_) => "segment given back",
                    MomentKind::Oom(_) => "failed",
                    MomentKind::Free(_) => "freed",
                    _ => "",
                })
                .filter(|name| !name.is_empty())
                .collect();
            assert_eq!(
                tail,
                ["freed", "segment given back", "failed", "freed", "segment given back"],
                "{times:?}"
            );
        }
    }
}
