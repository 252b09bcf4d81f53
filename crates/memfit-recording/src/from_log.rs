//! A track from a process's event log.

use std::collections::{BTreeMap, HashMap};

use memfit_levers::{Category, Phase};
use memfit_link::events::{Event, EventLog, Place};

use crate::{Block, Call, MomentKind, NEVER, StackId, TextId, Totals, Track, Unknown};

impl Track {
    /// What the process did whose log this is. What makes no sense (a block given back that was never handed out) is
    /// left out: the totals that the allocator itself gave stay true.
    pub fn from_log(log: &EventLog, rank: Option<u32>) -> Self {
        let mut builder = Builder::default();
        for event in &log.events {
            builder.event(event);
        }
        let mut track = Self { pid: log.pid, rank, truncated: log.truncated, ..builder.track };
        track.unknown.extend([Unknown::Segments, Unknown::Times]);
        if track.stacks.is_empty() {
            track.unknown.push(Unknown::Stacks);
        }
        track.shrink();
        track
    }
}

/// A category that was told twice is the one that says more: what comes first here wins.
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
    /// The log's numbers of texts, as the track's.
    texts: HashMap<u32, TextId>,
    /// Live blocks by address.
    live: BTreeMap<u64, u32>,
    /// Open calls by thread, innermost last.
    open: HashMap<u32, Vec<u32>>,
    /// Blocks by device, in the order in which they were handed out.
    handed_out: HashMap<u8, Vec<u32>>,
}

impl Builder {
    fn event(&mut self, event: &Event) {
        match *event {
            Event::Alloc { place, address, bytes, allocated, reserved } => {
                self.alloc(place, address, bytes, Totals { allocated, reserved, time_us: None });
            }
            Event::Free { place, address, allocated, reserved, .. } => {
                let Some(index) = self.live.remove(&address) else { return };
                let totals = Totals { allocated, reserved, time_us: None };
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
                self.moment(MomentKind::Phase(phase), 0, 0, 0);
            }
            Event::Step { step } => self.moment(MomentKind::Step(step), 0, 0, 0),
            Event::Oom { place, bytes, allocated, reserved } => {
                self.moment(MomentKind::Oom(bytes), place.device, allocated, reserved);
            }
            Event::Requested { device, number, address, bytes } => {
                self.requested(device, number, address, bytes);
            }
        }
    }

    fn moment(&mut self, kind: MomentKind, device: u8, allocated: u64, reserved: u64) {
        let totals = Totals { allocated, reserved, time_us: None };
        self.track.tell(kind, device, StackId::NONE, totals);
    }

    fn text(&self, id: u32) -> TextId {
        self.texts.get(&id).copied().unwrap_or_default()
    }

    fn alloc(&mut self, place: Place, address: u64, bytes: u64, totals: Totals) {
        let index = self.track.blocks.len() as u32;
        if let Some(lost) = self.live.insert(address, index) {
            // Handed out twice: its return was not logged.
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
            phase: Phase::from_code(place.phase).unwrap_or(Phase::Other),
            ..Block::default()
        };
        self.track.alloc(&block, totals);
    }

    /// The live block that holds an address.
    fn holding(&self, address: u64) -> Option<u32> {
        let (_, &index) = self.live.range(..=address).next_back()?;
        let (start, bytes) = self.track.blocks.extent(index)?;
        (address - start < bytes).then_some(index)
    }

    fn note(&mut self, address: u64, category: u8, owner: u32) {
        let owner = self.text(owner);
        let Some(category) = Category::from_code(category) else { return };
        let Some(block) = self.holding(address) else { return };
        let known = self.track.blocks.noted(block).map_or(0, strength);
        if strength(category) > known {
            self.track.set_noted(block, Some(category));
            self.track.set_owner(block, owner);
        } else if strength(category) == known && self.track.blocks.owner(block) == TextId::NONE {
            self.track.set_owner(block, owner);
        }
    }

    fn enter(&mut self, place: Place) {
        let index = self.track.calls.len() as u32;
        let began = self.track.now();
        let module = self.text(place.module);
        let open = self.open.entry(place.thread).or_default();
        let parent = open.last().copied().unwrap_or(NEVER);
        open.push(index);
        self.track.calls.push(Call { module, thread: place.thread, parent, began, ended: NEVER });
        self.moment(MomentKind::Enter(index), 0, 0, 0);
    }

    fn exit(&mut self, place: Place) {
        let Some(index) = self.open.get_mut(&place.thread).and_then(Vec::pop) else { return };
        self.track.calls[index as usize].ended = self.track.now();
        self.moment(MomentKind::Exit(index), 0, 0, 0);
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
