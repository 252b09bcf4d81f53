//! What filled a device at a moment.

use std::collections::{BTreeMap, HashMap};

use memfit_recording::{MomentKind, TextId, Track};
use memfit_vocabulary::{Category, Phase};

use crate::category::{Lives, category_with};

/// What filled a device at a moment. The categories' bytes sum to `reserved`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Composition {
    /// The device.
    pub device: u8,
    /// The moment, as an index in the track.
    pub moment: u32,
    /// The step that was under way, counted from 1.
    pub step: u64,
    /// The phase that was under way.
    pub phase: Phase,
    /// Bytes in blocks.
    pub allocated: u64,
    /// Bytes in segments.
    pub reserved: u64,
    /// Bytes by category, every category being there: tensors by what they asked for.
    pub by_category: BTreeMap<Category, u64>,
    /// Bytes by module, most first: what its tensors asked for, in forward and backward, its parameters and
    /// what belongs to them.
    pub modules: Vec<ModuleBytes>,
    /// Bytes in blocks of which it is not known what was asked for: they count whole, and add nothing to
    /// `rounding`.
    pub unmeasured: u64,
}

/// A module's share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleBytes {
    /// Its name, as in `layer3.5.conv2`.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// The first moment when the bytes in a device's blocks were greatest.
pub fn peak_moment(track: &Track, device: u8) -> Option<u32> {
    let mut best: Option<(u32, u64)> = None;
    for (index, moment) in (0..).zip(track.moments()) {
        let counts = moment.device == device && matches!(moment.kind, MomentKind::Alloc(_));
        if counts && best.is_none_or(|(_, most)| moment.allocated > most) {
            best = Some((index, moment.allocated));
        }
    }
    best.map(|(index, _)| index)
}

/// What filled a device when its tensors first took the most; nothing where it was not used.
pub fn at_peak(track: &Track, device: u8) -> Option<Composition> {
    Some(at(track, device, peak_moment(track, device)?))
}

/// What filled a device right after a moment.
pub fn at(track: &Track, device: u8, moment: u32) -> Composition {
    let state = State::at(track, device, moment);
    let lives = Lives::of(track);
    let mut by_category: BTreeMap<Category, u64> =
        Category::ALL.iter().map(|&category| (category, 0)).collect();
    let mut add = |category, bytes| *by_category.entry(category).or_default() += bytes;
    let mut modules: HashMap<TextId, u64> = HashMap::new();
    let (mut in_blocks, mut unmeasured) = (0_u64, 0);
    for block in track.blocks().iter().filter(|block| block.device == device && block.is_live_at(moment)) {
        let asked = block.requested.unwrap_or(block.bytes).min(block.bytes);
        in_blocks += block.bytes;
        unmeasured += if block.requested.is_none() { block.bytes } else { 0 };
        add(category_with(track, &lives, &block), asked);
        add(Category::Rounding, block.bytes - asked);
        let owner = if block.owner == TextId::NONE { block.module } else { block.owner };
        *modules.entry(owner).or_default() += asked;
    }
    // What the allocator counts and the recording has no block for, and the other way round, must not make
    // the sum wrong.
    add(Category::Unknown, state.allocated.saturating_sub(in_blocks));
    let allocated = state.allocated.max(in_blocks);
    let reserved = state.reserved.max(allocated);
    add(Category::Fragmentation, reserved - allocated);
    Composition {
        device,
        moment,
        step: state.step,
        phase: state.phase,
        allocated,
        reserved,
        by_category,
        modules: named(track, modules),
        unmeasured,
    }
}

/// Modules by name, most bytes first, those without a name left out.
fn named(track: &Track, modules: HashMap<TextId, u64>) -> Vec<ModuleBytes> {
    let mut named: Vec<ModuleBytes> = modules
        .into_iter()
        .filter(|(id, bytes)| *id != TextId::NONE && *bytes > 0)
        .map(|(id, bytes)| ModuleBytes { name: track.texts.get(id).to_owned(), bytes })
        .collect();
    named.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&other.name)));
    named
}

/// What the track's running totals were.
struct State {
    step: u64,
    phase: Phase,
    allocated: u64,
    reserved: u64,
}

impl State {
    fn at(track: &Track, device: u8, moment: u32) -> Self {
        let mut state = Self { step: 1, phase: Phase::Other, allocated: 0, reserved: 0 };
        for passed in track.moments().iter().take(moment as usize + 1) {
            match passed.kind {
                MomentKind::Phase(phase) => state.phase = phase,
                MomentKind::Step(complete) => state.step = u64::from(complete) + 1,
                MomentKind::Alloc(_) | MomentKind::Free(_) | MomentKind::Oom(_)
                    if passed.device == device =>
                {
                    state.allocated = passed.allocated;
                    state.reserved = passed.reserved;
                }
                _ => {}
            }
        }
        state
    }
}

#[cfg(test)]
mod tests;
