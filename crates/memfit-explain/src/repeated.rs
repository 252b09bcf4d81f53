//! Memory that an early step's work would need in a later step.
//!
//! The first steps run before optimizer state and other lasting tensors exist. If one of them did work that
//! the later ones of a recording did not repeat (a penalty in every n-th step, an evaluation, a longer
//! batch), no recorded moment shows that work together with these tensors.

use std::collections::BTreeMap;

use memfit_recording::{Block, MomentKind, TextId, Track};
use memfit_vocabulary::{Category, Phase};

use crate::category::{Lives, category_with};
use crate::origins::Site;
use crate::peak_moment;
use crate::timeline::Timeline;

/// Categories of which a later step has as much as the last one, or as much as the early one if that is more.
const LASTING: [Category; 5] =
    [Category::Parameters, Category::Buffers, Category::Gradients, Category::Optimizer, Category::Workspace];

/// Index of parameters and of workspaces in it.
const PARAMETERS: usize = 0;
const WORKSPACE: usize = 4;

/// Work of an early step that would exceed the recorded peak if a later step repeated it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedWork {
    /// The early step, counted from 1.
    pub step: u64,
    /// Bytes that were allocated in it.
    pub allocated: u64,
    /// Bytes of lasting tensors that were allocated later.
    pub later: u64,
    /// Bytes by which both together exceed the recorded peak.
    pub excess: u64,
    /// Line of user code, as `file:line`, that held most of what the recorded peak does not have.
    pub line: Option<String>,
}

/// Finds the moment of an early step whose work would need the most memory in a later step; `None` if the
/// recorded peak covers it.
pub fn repeated_work(track: &Track, device: u8) -> Option<RepeatedWork> {
    let last_step = last_step_begin(track)?;
    let peak = track.moment(peak_moment(track, device)?)?.allocated;
    let (moment, later, sum) = largest_sum(track, device, last_step)?;
    let allocated = track.moment(moment)?.allocated;
    let excess = sum.checked_sub(peak).filter(|excess| *excess > 0)?;
    Some(RepeatedWork {
        step: u64::from(track.moments().steps_at(moment)) + 1,
        allocated,
        later,
        excess,
        line: line_of(track, device, moment, last_step),
    })
}

/// Begin of the last complete step; `None` if fewer than two are complete.
fn last_step_begin(track: &Track) -> Option<u32> {
    let steps = track.moments().steps();
    steps.len().checked_sub(2).map(|before| steps[before].0)
}

/// Moment before the last step at which the allocated bytes and the lasting tensors of later are the most,
/// and the bytes of these tensors and of both. Set-up is left out, and so is work of models that are gone.
fn largest_sum(track: &Track, device: u8, last_step: u32) -> Option<(u32, u64, u64)> {
    let end = track.moments().steps().last()?.0;
    let lasts = |block: &Block| block.born < last_step && block.freed > end;
    let lives = Lives::from_track(track);
    let begin = track.phases().find(|(_, phase)| matches!(phase, Phase::Forward | Phase::Backward))?.0;
    // A script that catches an error goes on with less.
    let begin = begin.max(last_failure(track, device));
    let kind = |block: &Block| {
        let category = category_with(track, &lives, block);
        LASTING.iter().position(|lasting| *lasting == category)
    };
    let (mut at_end, mut others_to_come) = ([0_u64; LASTING.len()], 0_u64);
    for block in track.blocks().iter().filter(|block| block.device == device && lasts(block)) {
        match kind(&block) {
            Some(kind) => at_end[kind] += block.bytes,
            None if is_of_default_pool(&block) => others_to_come += block.bytes,
            None => {}
        }
    }
    // An early step tries algorithms with larger workspaces, which are only taken where there is room.
    let usual_workspace = largest_workspace(track, device, last_step, &kind);
    let (mut held, mut gone_parameters) = ([0_u64; LASTING.len()], 0_u64);
    let mut largest: Option<(u32, u64, u64)> = None;
    for (index, moment) in (0..last_step).zip(track.moments()) {
        let (MomentKind::Alloc(block) | MomentKind::Free(block)) = moment.kind else { continue };
        if moment.device != device {
            continue;
        }
        let Some(block) = track.block(block) else { continue };
        let is_born = matches!(moment.kind, MomentKind::Alloc(_));
        let change = |bytes: &mut u64| {
            *bytes = if is_born { *bytes + block.bytes } else { bytes.saturating_sub(block.bytes) };
        };
        let kind = kind(&block);
        if let Some(kind) = kind {
            change(&mut held[kind]);
        } else if is_born && lasts(&block) && is_of_default_pool(&block) {
            others_to_come -= block.bytes;
        }
        if kind == Some(PARAMETERS) && !lasts(&block) {
            change(&mut gone_parameters);
        }
        if !is_born || index < begin || gone_parameters > 0 {
            continue;
        }
        let lacking = at_end.iter().zip(&held).map(|(end, held)| end.saturating_sub(*held));
        let later = lacking.sum::<u64>().saturating_add(others_to_come);
        let tried = held[WORKSPACE].saturating_sub(usual_workspace.max(at_end[WORKSPACE]));
        let sum = moment.allocated.saturating_add(later).saturating_sub(tried);
        if largest.is_none_or(|(_, _, most)| sum > most) {
            largest = Some((index, later, sum));
        }
    }
    largest
}

/// Moment of the last failed request; 0 if there is none.
fn last_failure(track: &Track, device: u8) -> u32 {
    let moments = (0..).zip(track.moments());
    let failed =
        moments.filter(|(_, moment)| moment.device == device && matches!(moment.kind, MomentKind::Oom(_)));
    failed.last().map_or(0, |(index, _)| index)
}

/// Maximum bytes of workspaces at once from a moment on.
fn largest_workspace(track: &Track, device: u8, since: u32, kind: &impl Fn(&Block) -> Option<usize>) -> u64 {
    let (mut held, mut largest) = (0_u64, 0);
    for (index, moment) in (0..).zip(track.moments()) {
        let (MomentKind::Alloc(block) | MomentKind::Free(block)) = moment.kind else { continue };
        let block = track.block(block).filter(|block| block.device == device);
        let Some(block) = block.filter(|block| kind(block) == Some(WORKSPACE)) else { continue };
        held = match moment.kind {
            MomentKind::Alloc(_) => held + block.bytes,
            _ => held.saturating_sub(block.bytes),
        };
        largest = if index >= since { largest.max(held) } else { largest };
    }
    largest
}

/// Returns `false` for memory of a CUDA graph: it replaces what earlier steps allocated.
fn is_of_default_pool(block: &Block) -> bool {
    block.pool == memfit_recording::PoolRef::default()
}

/// Line that held more at the moment than at the peak of the last step, the one with the largest difference.
fn line_of(track: &Track, device: u8, moment: u32, last_step: u32) -> Option<String> {
    let timeline = Timeline::from_track(track, device)?;
    let at_last = (last_step..).zip(track.moments().iter().skip(last_step as usize));
    let last_peak = at_last
        .filter(|(_, other)| other.device == device && matches!(other.kind, MomentKind::Alloc(_)))
        .max_by_key(|(_, other)| other.allocated)
        .map(|(index, _)| index)?;
    let mut differences: BTreeMap<Site, i64> = BTreeMap::new();
    for (moment, sign) in [(moment, 1), (last_peak, -1)] {
        for life in timeline.live_at(moment).filter(|life| !life.stays()) {
            if let Some(site) = life.site.filter(|site| site.file != TextId::NONE) {
                *differences.entry(site).or_default() += sign * life.block.bytes as i64;
            }
        }
    }
    let (site, _) = differences.into_iter().filter(|(_, more)| *more > 0).max_by_key(|(_, more)| *more)?;
    Some(format!("{}:{}", track.texts.get(site.file), site.line))
}

#[cfg(test)]
mod tests {
    use memfit_recording::{NEVER, StackId, Totals};

    use super::*;

    /// Adds events to a track, and keeps the total.
    #[derive(Default)]
    struct Script {
        track: Track,
        allocated: u64,
        live: Vec<(u32, Category, u64)>,
    }

    impl Script {
        fn alloc(&mut self, category: Category, bytes: u64) {
            self.allocated += bytes;
            let block = Block { bytes, noted: Some(category), freed: NEVER, ..Block::default() };
            let index = self.track.alloc(&block, self.totals());
            self.live.push((index, category, bytes));
        }

        fn free(&mut self, of: Category) {
            let (gone, live) = self.live.drain(..).partition(|(_, category, _)| *category == of);
            self.live = live;
            for (index, _, bytes) in gone {
                self.allocated -= bytes;
                self.track.free(index, 0, StackId::NONE, self.totals());
            }
        }

        fn totals(&self) -> Totals {
            Totals { allocated: self.allocated, reserved: self.allocated, time_us: None }
        }

        fn mark(&mut self, kind: MomentKind) {
            self.track.add_moment(kind, 0, StackId::NONE, Totals::default());
        }
    }

    /// A track of steps of a model with 100 bytes of parameters and as many of gradients. Each step is given
    /// by the bytes of its activations and those of the lasting tensors that it makes after its backward
    /// pass.
    fn track(steps: &[(u64, &[(Category, u64)])]) -> Track {
        let mut script = Script::default();
        script.alloc(Category::Parameters, 100);
        for (number, (activations, lasting)) in (1..).zip(steps) {
            script.mark(MomentKind::Phase(Phase::Forward));
            script.free(Category::Gradients);
            script.alloc(Category::Activations, *activations);
            script.mark(MomentKind::Phase(Phase::Backward));
            script.free(Category::Activations);
            script.alloc(Category::Gradients, 100);
            script.mark(MomentKind::Phase(Phase::Optimizer));
            for (category, bytes) in *lasting {
                script.alloc(*category, *bytes);
            }
            script.mark(MomentKind::Step(number));
        }
        script.track
    }

    #[test]
    fn work_that_only_an_early_step_did_is_added_to_what_later_ones_have() {
        use Category::{Optimizer, Unknown};
        let state: &[_] = &[(Optimizer, 200)];
        for (steps, expected) in [
            // Alike: the second step has the state and its activations.
            (vec![(500, state), (500, &[]), (500, &[])], None),
            // Only the first one did the work of 500, and 200 came later; 600 were seen.
            (vec![(500, state), (50, &[]), (50, &[])], Some((1, 600, 200, 200))),
            (vec![(50, state), (500, &[(Unknown, 30)]), (50, &[])], Some((2, 800, 30, 30))),
            // The same work with the state was seen.
            (vec![(500, state), (50, &[]), (500, &[])], None),
            // Another tensor that stays, and state that two steps made.
            (
                vec![(500, &[(Optimizer, 150), (Unknown, 30)]), (50, state), (50, &[])],
                Some((1, 600, 380, 380)),
            ),
            // One step says nothing of others.
            (vec![(500, state)], None),
        ] {
            let found = repeated_work(&track(&steps), 0);
            let figures = found.map(|found| (found.step, found.allocated, found.later, found.excess));
            assert_eq!(figures, expected, "{steps:?}");
        }
    }

    #[test]
    fn what_was_tried_before_an_error_that_the_script_caught_is_not_added() {
        let mut script = Script::default();
        script.alloc(Category::Parameters, 100);
        script.mark(MomentKind::Phase(Phase::Forward));
        script.alloc(Category::Activations, 500);
        script.mark(MomentKind::Oom(500));
        script.free(Category::Activations);
        for number in 1..=3 {
            script.mark(MomentKind::Phase(Phase::Forward));
            script.alloc(Category::Activations, 50);
            script.free(Category::Activations);
            script.alloc(Category::Optimizer, if number == 1 { 200 } else { 0 });
            script.mark(MomentKind::Step(number));
        }
        assert_eq!(repeated_work(&script.track, 0), None);
    }

    #[test]
    fn workspaces_that_only_an_early_step_tried_are_not_added() {
        for (workspace, expected) in [(10, None), (400, Some(40))] {
            let mut script = Script::default();
            script.alloc(Category::Parameters, 100);
            for number in 1..=3 {
                let is_first = number == 1;
                script.mark(MomentKind::Phase(Phase::Forward));
                script.alloc(Category::Activations, if is_first { 90 } else { 50 });
                script.alloc(Category::Workspace, if is_first { 400 } else { workspace });
                script.free(Category::Workspace);
                script.free(Category::Activations);
                script.alloc(Category::Optimizer, if is_first { 200 } else { 0 });
                script.mark(MomentKind::Step(number));
            }
            let excess = repeated_work(&script.track, 0).map(|found| found.excess);
            assert_eq!(excess, expected, "{workspace}");
        }
    }

    #[test]
    fn work_of_a_model_that_is_gone_and_buckets_that_were_replaced_are_not_added() {
        let mut script = Script::default();
        script.mark(MomentKind::Phase(Phase::Forward));
        script.alloc(Category::Parameters, 900);
        script.free(Category::Parameters);
        script.alloc(Category::Gradients, 300);
        for number in 1..=4 {
            script.mark(MomentKind::Phase(Phase::Forward));
            script.alloc(Category::Activations, 500);
            script.free(Category::Activations);
            if number == 2 {
                script.free(Category::Gradients);
                script.alloc(Category::Gradients, 300);
            }
            script.alloc(Category::Optimizer, if number == 1 { 200 } else { 0 });
            script.mark(MomentKind::Step(number));
        }
        assert_eq!(repeated_work(&script.track, 0), None);
    }
}
