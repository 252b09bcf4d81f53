//! Category of a block.

use std::collections::HashSet;

use memfit_recording::{Block, NEVER, Track};
use memfit_vocabulary::{Category, Phase};

/// Phases of a track, by which the lifetimes of blocks are judged.
#[derive(Clone, Debug)]
pub struct Lives {
    /// Begin of each phase, ascending.
    phases: Vec<(u32, Phase)>,
    /// Device and size of each tensor that was given to a model.
    batches: HashSet<(u8, u64)>,
}

impl Lives {
    /// Collects the phases of a track.
    pub fn from_track(track: &Track) -> Self {
        let given = |block: &Block| block.noted == Some(Category::Inputs) && block.call == NEVER;
        let batches = track.blocks().iter().filter(given).map(|block| extent(&block)).collect();
        Self { phases: track.phases().collect(), batches }
    }

    /// Number of phases that had begun by `moment`.
    fn begun(&self, moment: u32) -> usize {
        self.phases.partition_point(|&(began, _)| began <= moment)
    }

    /// End of the phase that was running at `moment`, or [`NEVER`].
    fn phase_end(&self, moment: u32) -> u32 {
        self.phases.get(self.begun(moment)).map_or(NEVER, |&(began, _)| began)
    }

    /// Returns `true` if a block was freed before the phase of its allocation ended, and that end is known.
    fn dies_before_next_phase(&self, block: &Block) -> bool {
        let end = self.phase_end(block.born);
        end != NEVER && block.freed < end
    }

    /// Phase that was running at `moment`.
    fn phase(&self, moment: u32) -> Phase {
        self.begun(moment).checked_sub(1).map_or(Phase::Other, |last| self.phases[last].1)
    }
}

/// Category of a block. For many blocks of one track, use [`category_with`].
pub fn category(track: &Track, block: &Block) -> Category {
    category_with(track, &Lives::from_track(track), block)
}

/// Category of a block, given the track's phases.
pub fn category_with(track: &Track, lives: &Lives, block: &Block) -> Category {
    let call = track.calls.get(block.call as usize);
    match block.noted {
        // A tensor that a module copies from host memory during its call (a mask, a constant) is not part of
        // the batch.
        Some(Category::Inputs) if call.is_some() => {}
        Some(noted) => return noted,
        None => {}
    }
    let by_life = |end: u32| if outlives(block, end) { Category::Activations } else { Category::Temporary };
    match (call, block.phase) {
        // Within a call: of the forward pass, or of its recomputation during the backward pass.
        (Some(call), _) => by_life(call.ended),
        // Between calls: the loss, and tensors derived from outputs.
        (None, Phase::Forward) => by_life(lives.phase_end(block.born)),
        (None, Phase::Backward | Phase::Optimizer) => Category::Temporary,
        // A model without modules: a tensor freed during the backward pass was saved for it.
        (None, Phase::Other) if block.freed != NEVER && lives.phase(block.freed) == Phase::Backward => {
            Category::Activations
        }
        // Allocated and freed between two phases: a mask, a metric, a batch's conversion.
        (None, Phase::Other) if lives.dies_before_next_phase(block) => Category::Temporary,
        // A loader that works ahead had prepared the next batch when the recording ended.
        (None, Phase::Other) if block.freed == NEVER && lives.batches.contains(&extent(block)) => {
            Category::Inputs
        }
        (None, Phase::Other) => Category::Unknown,
    }
}

/// Device and size of a block.
fn extent(block: &Block) -> (u8, u64) {
    (block.device, block.requested.unwrap_or(block.bytes))
}

/// Returns `true` if a block was still live after the moment `end`, or at the end of the recording if that is
/// earlier.
fn outlives(block: &Block, end: u32) -> bool {
    block.freed == NEVER || block.freed > end
}
