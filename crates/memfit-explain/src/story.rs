//! A track read as a training: phases, steps and rounds, what each block was for and whose line asked for it.
//! Told by whoever recorded it, or worked out from stacks and lives.

use std::collections::{HashMap, HashSet};

use memfit_recording::{Block, MomentKind, NEVER, StackId, TextId, Track};
use memfit_vocabulary::{Category, Phase};

use crate::category::{Lives, category_with};
use crate::origins::{Origins, Role, Site};
use crate::peak_moment;

/// No block, and no card, has more: so that sums of what a file claims stay sums.
pub(crate) const LARGEST: u64 = 1 << 44;

/// The moment that is to be explained: where memory ran out, else where it was fullest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) moment: u32,
    /// What could not be served; nothing where memory did not run out.
    pub(crate) requested: Option<u64>,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) phase: Phase,
    pub(crate) stack: StackId,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) index: u32,
    pub(crate) block: Block,
    pub(crate) category: Category,
    pub(crate) role: Role,
    pub(crate) site: Option<Site>,
}

impl Life {
    /// What was asked for, or what was given where that is not known.
    pub(crate) fn asked(&self) -> u64 {
        self.block.requested.unwrap_or(self.block.bytes).min(self.block.bytes)
    }

    /// Whose module it is, or in whose call it was made.
    pub(crate) fn module(&self) -> TextId {
        if self.block.owner == TextId::NONE { self.block.module } else { self.block.owner }
    }

    /// Whether it is meant to stay from step to step.
    pub(crate) const fn stays(&self) -> bool {
        matches!(
            self.category,
            Category::Parameters | Category::Buffers | Category::Optimizer | Category::Workspace
        )
    }
}

/// A device's part of a track, read as a training.
pub(crate) struct Story<'track> {
    pub(crate) track: &'track Track,
    pub(crate) device: u8,
    pub(crate) origins: Origins,
    /// The device's blocks.
    pub(crate) lives: Vec<Life>,
    /// The moments when phases began, ascending.
    pub(crate) phases: Vec<(u32, Phase)>,
    /// The moments when steps were complete, ascending.
    pub(crate) steps: Vec<u32>,
    /// The moments when forward passes began, ascending.
    pub(crate) rounds: Vec<u32>,
    /// Whether forward passes, and not steps, divide the run into like parts.
    pub(crate) by_rounds: bool,
    pub(crate) trouble: Trouble,
}

impl<'track> Story<'track> {
    /// Nothing where nothing ever happened on the device.
    pub(crate) fn of(track: &'track Track, device: u8) -> Option<Self> {
        let origins = Origins::of(track);
        let roles = Roles::of(track, device, &origins, is_told(track));
        let mut trouble = trouble(track, device, &roles)?;
        let mut lives = lives(track, device, &origins, &roles, trouble.moment);
        // What is there is there, whatever totals a recording has.
        let live = lives.iter().filter(|life| life.block.is_live_at(trouble.moment));
        let held = live.fold(0_u64, |held, life| held.saturating_add(life.block.bytes));
        trouble.allocated = trouble.allocated.max(held);
        trouble.reserved = trouble.reserved.max(trouble.allocated);
        lines_gone_back_through(&mut lives);
        let steps = steps(track, &roles);
        let rounds = rounds(track, &lives, &roles);
        let by_rounds = by_rounds(&roles.phases, &steps, &rounds, trouble.moment);
        Some(Self { track, device, origins, lives, phases: roles.phases, steps, rounds, by_rounds, trouble })
    }

    /// The blocks that were there right after a moment.
    pub(crate) fn live_at(&self, moment: u32) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(move |life| life.block.is_live_at(moment))
    }

    /// The blocks that were there at the moment that is to be explained.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Life> {
        self.live_at(self.trouble.moment)
    }

    /// What lives at the trouble, by category.
    pub(crate) fn sum(&self, of: impl Fn(&Life) -> bool) -> u64 {
        self.live().filter(|life| of(life)).map(|life| life.block.bytes).sum()
    }

    /// Steps that were complete at a moment.
    pub(crate) fn steps_at(&self, moment: u32) -> usize {
        self.steps.partition_point(|end| *end <= moment)
    }

    /// Rounds that had begun at a moment.
    pub(crate) fn rounds_at(&self, moment: u32) -> usize {
        self.rounds.partition_point(|start| *start <= moment)
    }

    /// What divides the run into like parts: steps, or rounds where no step was complete, or many rounds came
    /// after the last.
    pub(crate) fn periods(&self) -> &[u32] {
        if self.by_rounds { &self.rounds } else { &self.steps }
    }

    /// The part of the run that a moment lies in, from 0.
    pub(crate) fn period_of(&self, moment: u32) -> usize {
        self.periods().partition_point(|boundary| *boundary <= moment)
    }

    /// Whether a phase ran between two moments.
    pub(crate) fn ran(&self, phase: Phase, from: u32, to: u32) -> bool {
        self.phases.iter().any(|(began, what)| *what == phase && *began >= from && *began <= to)
    }

    /// Whether a phase ran at all up to the trouble.
    pub(crate) fn ever(&self, phase: Phase) -> bool {
        self.ran(phase, 0, self.trouble.moment)
    }
}

/// What ran when.
struct Roles {
    phases: Vec<(u32, Phase)>,
    /// The track told them.
    told: bool,
    /// Stacks are known, so a block without one is the autograd engine's: its threads have no Python frames.
    stacks: bool,
}

impl Roles {
    fn of(track: &Track, device: u8, origins: &Origins, told: bool) -> Self {
        let stacks = origins.any();
        let mut roles = Self { phases: Vec::new(), told, stacks };
        if told {
            roles.phases = track.phases().collect();
            return roles;
        }
        let before = first_event(track);
        let mut current = Phase::Other;
        for (index, moment) in (0..).zip(track.moments()) {
            let phase = match moment.kind {
                // Optimizers announce their steps even where nothing else is told.
                MomentKind::Phase(phase) => phase,
                MomentKind::Alloc(_) | MomentKind::Oom(_) if moment.device == device && index >= before => {
                    roles.inferred(origins, moment.stack, current)
                }
                _ => continue,
            };
            if phase != current {
                roles.phases.push((index, phase));
                current = phase;
            }
        }
        roles
    }

    fn inferred(&self, origins: &Origins, stack: StackId, current: Phase) -> Phase {
        match origins.get(stack).role {
            Role::Forward => Phase::Forward,
            Role::Backward => Phase::Backward,
            Role::Optimizer => Phase::Optimizer,
            Role::Unknown if self.stacks => Phase::Backward,
            // The loss belongs to the forward, and what a closure or a hook does to what it runs in.
            Role::Plain if current == Phase::Forward => Phase::Forward,
            Role::Placing | Role::Plain => Phase::Other,
            Role::Unknown => current,
        }
    }

    fn at(&self, moment: u32) -> Phase {
        let begun = self.phases.partition_point(|(began, _)| *began <= moment);
        begun.checked_sub(1).map_or(Phase::Other, |last| self.phases[last].1)
    }
}

/// The first moment of the recording proper: what was there before it is handed out at its beginning.
fn first_event(track: &Track) -> u32 {
    let before = track.unknown.iter().find_map(|unknown| match unknown {
        memfit_recording::Unknown::Before { blocks, .. } => Some(*blocks),
        _ => None,
    });
    let Some(mut left) = before else { return 0 };
    for (index, moment) in (0..).zip(track.moments()) {
        if left == 0 {
            return index;
        }
        left -= u64::from(matches!(moment.kind, MomentKind::Alloc(_)));
    }
    track.now()
}

fn trouble(track: &Track, device: u8, roles: &Roles) -> Option<Trouble> {
    let failed = (0..).zip(track.moments()).filter_map(|(index, moment)| match moment.kind {
        MomentKind::Oom(requested) if moment.device == device => Some((index, moment, requested)),
        _ => None,
    });
    if let Some((index, moment, requested)) = failed.last() {
        return Some(Trouble {
            moment: index,
            requested: Some(requested.min(LARGEST)),
            allocated: moment.allocated.min(LARGEST),
            reserved: moment.reserved.min(LARGEST),
            phase: roles.at(index),
            stack: moment.stack,
        });
    }
    let index = peak_moment(track, device)?;
    let moment = track.moment(index)?;
    Some(Trouble {
        moment: index,
        requested: None,
        allocated: moment.allocated.min(LARGEST),
        reserved: moment.reserved.min(LARGEST),
        phase: roles.at(index),
        stack: moment.stack,
    })
}

fn lives(track: &Track, device: u8, origins: &Origins, roles: &Roles, trouble: u32) -> Vec<Life> {
    let life = |(index, block, category, role): (u32, Block, Category, Role)| {
        let site = origins.get(block.stack).site();
        Life { index, block, category, role, site }
    };
    judged(track, device, origins, roles, trouble).map(life).collect()
}

/// A device's blocks, each with what it was for and on whose behalf it was asked for.
fn judged(
    track: &Track,
    device: u8,
    origins: &Origins,
    roles: &Roles,
    trouble: u32,
) -> impl Iterator<Item = (u32, Block, Category, Role)> {
    let told = roles.told.then(|| Lives::of(track));
    let ran_out = track.moment(trouble).is_some_and(|moment| matches!(moment.kind, MomentKind::Oom(_)));
    let ended = Ends { roles, moment: trouble, failed: ran_out.then_some(trouble) };
    let before = first_event(track);
    let own = (0..).zip(track.blocks()).filter(move |(_, block)| block.device == device);
    own.map(move |(index, mut block)| {
        block.bytes = block.bytes.min(LARGEST);
        let origin = origins.get(block.stack);
        let mut role = origin.role;
        if role == Role::Unknown && roles.stacks && block.born >= before {
            role = Role::Backward;
        }
        let category = match &told {
            Some(lives) => category_with(track, lives, &block),
            None => ended.category(
                &block,
                role,
                origin.operation.state,
                origin.operation.workspace,
                block.born < before,
            ),
        };
        (index, block, category, role)
    })
}

/// What each block of a device was for, in the order of the track's blocks: as it was told, else as stacks
/// and lives show it.
pub fn categories(track: &Track, device: u8) -> Vec<Category> {
    if is_told(track) {
        let lives = Lives::of(track);
        let own = track.blocks().iter().filter(|block| block.device == device);
        return own.map(|block| category_with(track, &lives, &block)).collect();
    }
    let origins = Origins::of(track);
    let roles = Roles::of(track, device, &origins, false);
    let trouble = trouble(track, device, &roles).map_or(NEVER, |trouble| trouble.moment);
    judged(track, device, &origins, &roles, trouble).map(|(_, _, category, _)| category).collect()
}

/// Whether somebody told the phases: then what blocks were for need not be worked out from stacks.
fn is_told(track: &Track) -> bool {
    track.phases().any(|(_, phase)| phase == Phase::Forward || phase == Phase::Backward)
}

/// The backward's own threads have no lines. What they ask for is on behalf of the line that called the
/// module in the forward, which is known by the module.
fn lines_gone_back_through(lives: &mut [Life]) {
    let mut called: HashMap<TextId, Site> = HashMap::new();
    for life in lives.iter().filter(|life| life.role == Role::Forward && life.block.module != TextId::NONE) {
        if let Some(site) = life.site {
            called.entry(life.block.module).or_insert(site);
        }
    }
    for life in lives.iter_mut().filter(|life| life.role == Role::Backward && life.site.is_none()) {
        life.site = called.get(&life.block.module).copied();
    }
}

/// Judges blocks by when they went.
struct Ends<'roles> {
    roles: &'roles Roles,
    /// The moment that is to be explained.
    moment: u32,
    /// The request that failed, if one did. What was there then and went later, the exception took along as
    /// it unwound, or whoever caught it: that says nothing of what it was for.
    failed: Option<u32>,
}

impl Ends<'_> {
    fn category(
        &self,
        block: &Block,
        role: Role,
        state: bool,
        workspace: bool,
        from_before: bool,
    ) -> Category {
        if let Some(noted) = block.noted {
            return noted;
        }
        if workspace {
            return Category::Workspace;
        }
        let mut block = *block;
        if self.failed.is_some_and(|trouble| block.born <= trouble && block.freed > trouble) {
            block.freed = NEVER;
        }
        let block = &block;
        let phase = self.roles.at(block.born);
        let gone = if block.freed == NEVER { None } else { Some(self.roles.at(block.freed)) };
        let stays = block.freed == NEVER || block.freed > self.moment;
        match role {
            Role::Placing => Category::Parameters,
            // What no line is known of and was there from the start is most often the model.
            Role::Unknown if from_before && stays => Category::Parameters,
            Role::Optimizer if state => Category::Optimizer,
            Role::Optimizer => {
                if self.outlives_phase(block) {
                    Category::Optimizer
                } else {
                    Category::Temporary
                }
            }
            Role::Backward => {
                if self.outlives_phase(block) {
                    Category::Gradients
                } else {
                    Category::Temporary
                }
            }
            _ if from_before => Category::Unknown,
            Role::Forward => match gone {
                Some(Phase::Forward) if !self.outlives_phase(block) => Category::Temporary,
                _ => Category::Activations,
            },
            Role::Plain if phase == Phase::Forward || gone == Some(Phase::Backward) => Category::Activations,
            Role::Plain => Category::Inputs,
            Role::Unknown => Category::Unknown,
        }
    }

    /// Whether a block was there after the phase that it was made in, as far as the failing request shows.
    fn outlives_phase(&self, block: &Block) -> bool {
        let next = self.roles.phases.partition_point(|(began, _)| *began <= block.born);
        let end = self.roles.phases.get(next).map(|(end, _)| *end);
        let seen = |end: &u32| self.failed.is_none_or(|trouble| *end <= trouble || block.born > trouble);
        end.filter(seen).is_some_and(|end| block.freed > end)
    }
}

fn steps(track: &Track, roles: &Roles) -> Vec<u32> {
    let announced: Vec<u32> = track.moments().steps().iter().map(|(moment, _)| *moment).collect();
    if !announced.is_empty() {
        return announced;
    }
    let ends = roles.phases.windows(2).filter(|pair| pair[0].1 == Phase::Optimizer);
    ends.map(|pair| pair[1].0).collect()
}

/// So many forward passes behind the last step, none of which a backward followed, are a loop of their own.
const OF_A_LOOP: usize = 4;

/// Whether the run is divided by its forward passes: before the first step, and while it evaluates.
fn by_rounds(phases: &[(u32, Phase)], steps: &[u32], rounds: &[u32], trouble: u32) -> bool {
    let Some(last) = steps.iter().rfind(|end| **end <= trouble) else { return true };
    let since = rounds.iter().filter(|begun| *begun > last && **begun <= trouble).count();
    let trains =
        phases.iter().any(|(begun, phase)| *phase == Phase::Backward && begun > last && *begun <= trouble);
    since >= OF_A_LOOP && !trains
}

/// Where forward passes begin: with a module that was called in the pass before. A program that calls one
/// layer after the other by itself makes one pass of them.
fn passes(track: &Track) -> Vec<u32> {
    let mut called: HashSet<TextId> = HashSet::new();
    let mut passes = Vec::new();
    for call in track.calls.iter().filter(|call| call.parent == NEVER) {
        let again = call.module == TextId::NONE || !called.insert(call.module);
        if again {
            called.clear();
            called.insert(call.module);
        }
        if again || passes.is_empty() {
            passes.push(call.began);
        }
    }
    passes
}

fn rounds(track: &Track, lives: &[Life], roles: &Roles) -> Vec<u32> {
    if roles.told && !track.calls.is_empty() {
        return passes(track);
    }
    // A forward pass begins where a module asks after somebody else has. The order of what was there before
    // the recording is that of its addresses, and says nothing.
    let begins = first_event(track);
    let mut rounds = Vec::new();
    let mut before = Role::Unknown;
    for life in lives.iter().filter(|life| life.role != Role::Unknown && life.block.born >= begins) {
        if life.role == Role::Forward && before != Role::Forward {
            rounds.push(life.block.born);
        }
        before = life.role;
    }
    if rounds.is_empty() {
        // A model without modules: what follows a backward is the next round.
        let after = roles.phases.windows(2).filter(|pair| pair[0].1 == Phase::Backward);
        rounds = after.map(|pair| pair[1].0).collect();
    }
    rounds
}
