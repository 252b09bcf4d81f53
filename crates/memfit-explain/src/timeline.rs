//! Timeline of a training run from a track: phases, steps, forward passes, and for each block its category
//! and the line that allocated it. Recorded facts have precedence; others are inferred from stacks and
//! lifetimes.

use std::collections::{BTreeMap, HashMap, HashSet};

use memfit_recording::{Block, Call, MomentKind, NEVER, StackId, TextId, Track};
use memfit_vocabulary::{Category, Phase};

use crate::category::{Lives, category_with};
use crate::earlier;
use crate::origins::{Origins, Role, Site};
use crate::peak_moment;

/// Upper bound for sizes of blocks and GPUs, so that sums of untrusted values do not overflow.
pub(crate) const MAX_BYTES: u64 = 1 << 44;

/// Explained moment: the failed request, or else the peak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) moment: u32,
    /// Size of the failed request; `None` if memory did not run out.
    pub(crate) requested: Option<u64>,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) phase: Phase,
    pub(crate) stack: StackId,
}

/// Block with its inferred properties.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) index: u32,
    pub(crate) block: Block,
    pub(crate) category: Category,
    pub(crate) role: Role,
    pub(crate) site: Option<Site>,
}

impl Life {
    /// Requested size, or the block's size if that is unknown.
    pub(crate) fn requested_bytes(&self) -> u64 {
        self.block.requested.unwrap_or(self.block.bytes).min(self.block.bytes)
    }

    /// Owning module, or the module in whose call it was allocated.
    pub(crate) fn module(&self) -> TextId {
        if self.block.owner == TextId::NONE { self.block.module } else { self.block.owner }
    }

    /// Returns `true` if the block belongs to the model and stays across steps.
    pub(crate) const fn stays(&self) -> bool {
        matches!(
            self.category,
            Category::Parameters | Category::Buffers | Category::Optimizer | Category::Workspace
        )
    }
}

/// Training timeline of one device.
pub(crate) struct Timeline<'track> {
    pub(crate) track: &'track Track,
    pub(crate) device: u8,
    pub(crate) origins: Origins,
    /// Blocks of the device.
    pub(crate) lives: Vec<Life>,
    /// Begin of each phase, ascending.
    pub(crate) phases: Vec<(u32, Phase)>,
    /// End of each step, ascending.
    pub(crate) steps: Vec<u32>,
    /// Begin of each forward pass, ascending.
    pub(crate) rounds: Vec<u32>,
    /// `true` if periods are forward passes instead of steps.
    pub(crate) by_rounds: bool,
    pub(crate) trouble: Trouble,
}

impl<'track> Timeline<'track> {
    /// Builds the timeline. Returns `None` if the device has no events.
    pub(crate) fn from_track(track: &'track Track, device: u8) -> Option<Self> {
        let origins = Origins::from_track(track);
        let roles = Roles::from_track(track, device, &origins, has_recorded_phases(track));
        let mut trouble = trouble(track, device, &roles)?;
        let mut lives = lives(track, device, &origins, &roles, trouble.moment);
        // Live blocks count, even if a recording's totals disagree.
        let live = lives.iter().filter(|life| life.block.is_live_at(trouble.moment));
        let held = live.fold(0_u64, |held, life| held.saturating_add(life.block.bytes));
        trouble.allocated = trouble.allocated.max(held);
        trouble.reserved = trouble.reserved.max(trouble.allocated);
        assign_forward_lines(&mut lives);
        let steps = steps(track, &roles);
        let rounds = rounds(track, &lives, &roles, trouble.moment);
        let by_rounds = by_rounds(&roles.phases, &steps, &rounds, trouble.moment);
        Some(Self { track, device, origins, lives, phases: roles.phases, steps, rounds, by_rounds, trouble })
    }

    /// Blocks live right after a moment.
    pub(crate) fn live_at(&self, moment: u32) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(move |life| life.block.is_live_at(moment))
    }

    /// Blocks live at the explained moment.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Life> {
        self.live_at(self.trouble.moment)
    }

    /// Bytes of the blocks live at the explained moment for which `of` holds.
    pub(crate) fn sum(&self, of: impl Fn(&Life) -> bool) -> u64 {
        self.live().filter(|life| of(life)).map(|life| life.block.bytes).sum()
    }

    /// Stack of a call of the model: of the user lines that call a module, the one inside which these blocks
    /// (and the failed request, if it is one of them) take the most memory, at its largest stack. A loss may
    /// be a module as well, so its own tensors do not count.
    pub(crate) fn model_call<'life>(
        &self,
        lives: impl Iterator<Item = &'life Life>,
        with_request: bool,
    ) -> Option<StackId> {
        let request = self.trouble.requested.filter(|_| with_request);
        let request = request.map(|bytes| (self.trouble.stack, bytes));
        let mut by_stack: BTreeMap<StackId, u64> = BTreeMap::new();
        for (stack, bytes) in lives.map(|life| (life.block.stack, life.block.bytes)).chain(request) {
            let bytes_so_far = by_stack.entry(stack).or_default();
            *bytes_so_far = bytes_so_far.saturating_add(bytes);
        }
        by_stack.retain(|stack, _| self.origins.get(*stack).caller.is_some());
        let mut by_caller: BTreeMap<Option<Site>, u64> = BTreeMap::new();
        let of_model =
            |stack: StackId, bytes: u64| if self.origins.get(stack).operation.loss { 0 } else { bytes };
        for (stack, bytes) in &by_stack {
            let sum = by_caller.entry(self.origins.get(*stack).caller).or_default();
            *sum = sum.saturating_add(of_model(*stack, *bytes));
        }
        let of_call = |stack: StackId| by_caller.get(&self.origins.get(stack).caller).copied();
        by_stack.iter().max_by_key(|(stack, bytes)| (of_call(**stack), **bytes)).map(|(stack, _)| *stack)
    }

    /// Number of steps completed at a moment.
    pub(crate) fn steps_at(&self, moment: u32) -> usize {
        self.steps.partition_point(|end| *end <= moment)
    }

    /// Number of forward passes begun at a moment.
    pub(crate) fn rounds_at(&self, moment: u32) -> usize {
        self.rounds.partition_point(|start| *start <= moment)
    }

    /// Boundaries of the run's periods: steps, or forward passes if no step was completed or many passes came
    /// after the last one.
    pub(crate) fn periods(&self) -> &[u32] {
        if self.by_rounds { &self.rounds } else { &self.steps }
    }

    /// Period of a moment, from 0.
    pub(crate) fn period_of(&self, moment: u32) -> usize {
        self.periods().partition_point(|boundary| *boundary <= moment)
    }

    /// Returns `true` if a phase ran between two moments.
    pub(crate) fn phase_ran(&self, phase: Phase, from: u32, to: u32) -> bool {
        self.phases.iter().any(|(began, what)| *what == phase && *began >= from && *began <= to)
    }

    /// Returns `true` if a phase ran before the explained moment.
    pub(crate) fn has_phase(&self, phase: Phase) -> bool {
        self.phase_ran(phase, 0, self.trouble.moment)
    }
}

/// Phases over time.
struct Roles {
    phases: Vec<(u32, Phase)>,
    /// `true` if the phases were recorded.
    phases_recorded: bool,
    /// `true` if stacks were recorded. A block without one then belongs to the autograd engine, whose threads
    /// have no Python frames.
    stacks: bool,
}

impl Roles {
    fn from_track(track: &Track, device: u8, origins: &Origins, phases_recorded: bool) -> Self {
        let stacks = origins.any();
        let mut roles = Self { phases: Vec::new(), phases_recorded, stacks };
        if phases_recorded {
            roles.phases = track.phases().collect();
            return roles;
        }
        let before = first_event(track);
        let mut current = Phase::Other;
        for (index, moment) in (0..).zip(track.moments()) {
            let phase = match moment.kind {
                // Optimizers announce their steps even if no other phases were recorded.
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
            // The loss belongs to the forward pass; closures and hooks belong to the phase in which they run.
            Role::Plain if current == Phase::Forward => Phase::Forward,
            Role::Placing | Role::Plain => Phase::Other,
            Role::Unknown => current,
        }
    }

    fn phase_at(&self, moment: u32) -> Phase {
        let begun = self.phases.partition_point(|(began, _)| *began <= moment);
        begun.checked_sub(1).map_or(Phase::Other, |last| self.phases[last].1)
    }
}

/// Returns `true` if anything was recorded beyond the blocks in use at one moment.
pub(crate) fn has_history(track: &Track) -> bool {
    first_event(track) < track.next_moment()
}

/// First moment after the allocations that represent memory already in use at the beginning.
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
    track.next_moment()
}

fn trouble(track: &Track, device: u8, roles: &Roles) -> Option<Trouble> {
    let failed = (0..).zip(track.moments()).filter_map(|(index, moment)| match moment.kind {
        MomentKind::Oom(requested) if moment.device == device => Some((index, moment, requested)),
        _ => None,
    });
    if let Some((index, moment, requested)) = failed.last() {
        return Some(Trouble {
            moment: index,
            requested: Some(requested.min(MAX_BYTES)),
            allocated: moment.allocated.min(MAX_BYTES),
            reserved: moment.reserved.min(MAX_BYTES),
            phase: roles.phase_at(index),
            stack: moment.stack,
        });
    }
    let index = peak_moment(track, device)?;
    let moment = track.moment(index)?;
    Some(Trouble {
        moment: index,
        requested: None,
        allocated: moment.allocated.min(MAX_BYTES),
        reserved: moment.reserved.min(MAX_BYTES),
        phase: roles.phase_at(index),
        stack: moment.stack,
    })
}

fn lives(track: &Track, device: u8, origins: &Origins, roles: &Roles, trouble: u32) -> Vec<Life> {
    let life = |(index, block, category, role): (u32, Block, Category, Role)| {
        let site = origins.get(block.stack).site();
        Life { index, block, category, role, site }
    };
    classify_blocks(track, device, origins, roles, trouble).into_iter().map(life).collect()
}

/// Blocks of a device, with categories and roles.
fn classify_blocks(
    track: &Track,
    device: u8,
    origins: &Origins,
    roles: &Roles,
    trouble: u32,
) -> Vec<(u32, Block, Category, Role)> {
    let phases_recorded = roles.phases_recorded.then(|| Lives::from_track(track));
    let ran_out = track.moment(trouble).is_some_and(|moment| matches!(moment.kind, MomentKind::Oom(_)));
    let ended = Ends { roles, moment: trouble, failed: ran_out.then_some(trouble) };
    let before = first_event(track);
    let own = (0..).zip(track.blocks()).filter(|(_, block)| block.device == device);
    let classified = own.map(|(index, mut block)| {
        block.bytes = block.bytes.min(MAX_BYTES);
        let origin = origins.get(block.stack);
        let mut role = origin.role;
        if role == Role::Unknown && roles.stacks && block.born >= before {
            role = Role::Backward;
        }
        let category = match &phases_recorded {
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
    });
    let mut classified: Vec<_> = classified.collect();
    if !roles.phases_recorded {
        earlier::correct(&mut classified, origins, before);
    }
    classified
}

/// Category of each block of a device, in the order of the track's blocks. Recorded categories have
/// precedence; others are inferred from stacks and lifetimes.
pub fn categories(track: &Track, device: u8) -> Vec<Category> {
    if has_recorded_phases(track) {
        let lives = Lives::from_track(track);
        let own = track.blocks().iter().filter(|block| block.device == device);
        return own.map(|block| category_with(track, &lives, &block)).collect();
    }
    let origins = Origins::from_track(track);
    let roles = Roles::from_track(track, device, &origins, false);
    let trouble = trouble(track, device, &roles).map_or(NEVER, |trouble| trouble.moment);
    let classified = classify_blocks(track, device, &origins, &roles, trouble);
    classified.into_iter().map(|(_, _, category, _)| category).collect()
}

/// Returns `true` if phases were recorded, so that categories need no inference from stacks.
fn has_recorded_phases(track: &Track) -> bool {
    track.phases().any(|(_, phase)| phase == Phase::Forward || phase == Phase::Backward)
}

/// Assigns lines to blocks of the autograd engine's threads, which have none: the line that called the same
/// module in the forward pass.
fn assign_forward_lines(lives: &mut [Life]) {
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

/// Infers categories from the ends of lifetimes.
struct Ends<'roles> {
    roles: &'roles Roles,
    /// Explained moment.
    moment: u32,
    /// Failed request, if any. A block that was live then and freed later was freed while the exception
    /// unwound or by its handler, which says nothing about its category.
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
        let phase = self.roles.phase_at(block.born);
        let gone = if block.freed == NEVER { None } else { Some(self.roles.phase_at(block.freed)) };
        let stays = block.freed == NEVER || block.freed > self.moment;
        match role {
            Role::Placing => Category::Parameters,
            // A block of unknown origin that was live from the start is usually a parameter.
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

    /// Returns `true` if a block was live after the phase of its allocation. Frees after the failed request
    /// do not count.
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
    // `optimizer.step(closure)` runs the forward and the backward pass within the optimizer's phase, so a
    // step ends only after a backward pass.
    let always = !roles.phases_recorded && !roles.phases.iter().any(|(_, phase)| *phase == Phase::Backward);
    let mut trained = always;
    let mut ends = Vec::new();
    for pair in roles.phases.windows(2) {
        trained |= pair[0].1 == Phase::Backward;
        if pair[0].1 == Phase::Optimizer && std::mem::replace(&mut trained, always) {
            ends.push(pair[1].0);
        }
    }
    ends
}

/// Minimum number of forward passes after the last step, without a backward pass, that are treated as an
/// evaluation loop.
const MIN_EVALUATION_PASSES: usize = 4;

/// Returns `true` if forward passes are the periods: before the first step, and during an evaluation.
fn by_rounds(phases: &[(u32, Phase)], steps: &[u32], rounds: &[u32], trouble: u32) -> bool {
    let Some(last) = steps.iter().rfind(|end| **end <= trouble) else { return true };
    // An inferred step ends where the next pass begins.
    let since = rounds.iter().filter(|begun| *begun >= last && **begun <= trouble).count();
    let trains =
        phases.iter().any(|(begun, phase)| *phase == Phase::Backward && begun >= last && *begun <= trouble);
    since >= MIN_EVALUATION_PASSES && !trains
}

/// Begins of forward passes: a top-level call of a module that was already called in the pass. A program that
/// calls its layers one by one makes one pass of them. Calls that allocate nothing on the GPU are not passes:
/// the transforms of a data set are modules too.
fn pass_begins(track: &Track, lives: &[Life], trouble: u32) -> Vec<u32> {
    let mut births: Vec<u32> = lives.iter().map(|life| life.block.born).collect();
    births.sort_unstable();
    let allocates = |call: &&Call| {
        let next = births.get(births.partition_point(|born| *born < call.began));
        next.is_some_and(|born| *born <= call.ended) || (call.began <= trouble && trouble <= call.ended)
    };
    let mut called: HashSet<TextId> = HashSet::new();
    let mut pass_begins = Vec::new();
    let outermost = || track.calls.iter().filter(|call| call.parent == NEVER);
    // If no call allocates, a model cannot be distinguished from a transform.
    let any = outermost().any(|call| allocates(&call));
    for call in outermost().filter(|call| !any || allocates(call)) {
        let again = call.module == TextId::NONE || !called.insert(call.module);
        if again {
            called.clear();
            called.insert(call.module);
        }
        if again || pass_begins.is_empty() {
            pass_begins.push(call.began);
        }
    }
    pass_begins
}

fn rounds(track: &Track, lives: &[Life], roles: &Roles, trouble: u32) -> Vec<u32> {
    if roles.phases_recorded && !track.calls.is_empty() {
        return pass_begins(track, lives, trouble);
    }
    // A forward pass begins when a module allocates after something else did. Blocks from before the
    // recording are ordered by address, which says nothing.
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
        // In a model without modules, the code after a backward pass is the next forward pass.
        let after = roles.phases.windows(2).filter(|pair| pair[0].1 == Phase::Backward);
        rounds = after.map(|pair| pair[1].0).collect();
    }
    rounds
}
