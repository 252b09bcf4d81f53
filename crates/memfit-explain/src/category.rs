//! What a block was for.

use memfit_recording::{Block, NEVER, Track};
use memfit_vocabulary::{Category, Phase};

/// When each phase of a track ended: what the lives of blocks are judged by.
#[derive(Clone, Debug)]
pub struct Lives {
    /// The moments when phases began, ascending, with the phase.
    phases: Vec<(u32, Phase)>,
}

impl Lives {
    /// The phases of a track.
    pub fn of(track: &Track) -> Self {
        Self { phases: track.phases().collect() }
    }

    /// How many phases had begun by `moment`.
    fn begun(&self, moment: u32) -> usize {
        self.phases.partition_point(|&(began, _)| began <= moment)
    }

    /// The moment when the phase ended that ran at `moment`, or [`NEVER`].
    fn phase_end(&self, moment: u32) -> u32 {
        self.phases.get(self.begun(moment)).map_or(NEVER, |&(began, _)| began)
    }

    /// The phase that ran at `moment`.
    fn phase(&self, moment: u32) -> Phase {
        self.begun(moment).checked_sub(1).map_or(Phase::Other, |last| self.phases[last].1)
    }
}

/// What a block was for. For many blocks of one track, use [`category_with`].
pub fn category(track: &Track, block: &Block) -> Category {
    category_with(track, &Lives::of(track), block)
}

/// What a block was for, with the track's phases at hand.
pub fn category_with(track: &Track, lives: &Lives, block: &Block) -> Category {
    let call = track.calls.get(block.call as usize);
    match block.noted {
        // What a module makes from host memory during its call (a mask, a constant) is not the script's
        // batch.
        Some(Category::Inputs) if call.is_some() => {}
        Some(noted) => return noted,
        None => {}
    }
    let by_life = |end: u32| if outlives(block, end) { Category::Activations } else { Category::Temporary };
    match (call, block.phase) {
        // In a call: of the forward, or of its recomputation within the backward.
        (Some(call), _) => by_life(call.ended),
        // Between calls: the loss, and what is made from outputs.
        (None, Phase::Forward) => by_life(lives.phase_end(block.born)),
        (None, Phase::Backward | Phase::Optimizer) => Category::Temporary,
        // A model that is written without modules: what the backward lets go was kept for it.
        (None, Phase::Other) if block.freed != NEVER && lives.phase(block.freed) == Phase::Backward => {
            Category::Activations
        }
        (None, Phase::Other) => Category::Unknown,
    }
}

/// Whether a block was still there after the moment `end`, or at least when the recording ended before it.
fn outlives(block: &Block, end: u32) -> bool {
    block.freed == NEVER || block.freed > end
}
