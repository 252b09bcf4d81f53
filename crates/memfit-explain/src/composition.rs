//! Breakdown of a device's memory at a moment.

use std::collections::{BTreeMap, HashMap};

use memfit_recording::{MomentKind, TextId, Track};
use memfit_vocabulary::{Category, Phase};

use crate::category::{Lives, category_with};

/// Breakdown of a device's memory at a moment. The categories' bytes sum to `reserved`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Composition {
    /// Device index.
    pub device: u8,
    /// Moment, as an index in the track.
    pub moment: u32,
    /// Training step in progress, counted from 1.
    pub step: u64,
    /// Phase in progress.
    pub phase: Phase,
    /// Allocated bytes.
    pub allocated: u64,
    /// Reserved bytes.
    pub reserved: u64,
    /// Bytes by category, including empty ones. Tensors count with their requested size.
    pub by_category: BTreeMap<Category, u64>,
    /// Bytes by module, largest first: requested bytes of its tensors in the forward and backward pass, its
    /// parameters, and their gradients and optimizer state.
    pub modules: Vec<ModuleBytes>,
    /// Requested bytes of tensors that belong to no module.
    pub outside_modules: u64,
    /// Bytes of blocks with an unknown requested size: they count fully, and add nothing to `rounding`.
    pub unmeasured: u64,
}

/// Memory of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleBytes {
    /// Qualified name, such as `layer3.5.conv2`.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// First moment at which the allocated bytes of a device reached their maximum.
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

/// Breakdown at the first peak of a device's allocated bytes; `None` if the device was not used.
pub fn at_peak(track: &Track, device: u8) -> Option<Composition> {
    Some(composition_at(track, device, peak_moment(track, device)?))
}

/// Breakdown of a device right after a moment.
pub fn composition_at(track: &Track, device: u8, moment: u32) -> Composition {
    let state = State::from_track(track, device, moment);
    let lives = Lives::from_track(track);
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
    // The allocator's totals and the recorded blocks may differ; the sum must be right nevertheless.
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
        outside_modules: modules.get(&TextId::NONE).copied().unwrap_or_default(),
        modules: named_modules(track, modules),
        unmeasured,
    }
}

/// Named modules with their bytes, largest first.
fn named_modules(track: &Track, modules: HashMap<TextId, u64>) -> Vec<ModuleBytes> {
    let mut named_modules: Vec<ModuleBytes> = modules
        .into_iter()
        .filter(|(id, bytes)| *id != TextId::NONE && *bytes > 0)
        .map(|(id, bytes)| ModuleBytes { name: track.texts.get(id).to_owned(), bytes })
        .collect();
    named_modules.sort_by(|one, other| {
        other.bytes.cmp(&one.bytes).then_with(|| in_order(&one.name).cmp(&in_order(&other.name)))
    });
    named_modules
}

/// Key that sorts `blocks.2` before `blocks.10`.
fn in_order(name: &str) -> Vec<(u64, &str)> {
    name.split('.').map(|part| part.parse().map_or((u64::MAX, part), |number| (number, ""))).collect()
}

/// Totals of the track at a moment.
struct State {
    step: u64,
    phase: Phase,
    allocated: u64,
    reserved: u64,
}

impl State {
    fn from_track(track: &Track, device: u8, moment: u32) -> Self {
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
