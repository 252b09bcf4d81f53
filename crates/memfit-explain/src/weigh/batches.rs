//! What one step made, and the next still finds: gradients that are dropped too late, variables that are
//! overwritten only when what replaces them is there already.

use std::fmt::Write as _;

use std::collections::{HashMap, HashSet};

use memfit_allocator::Edit;
use memfit_patch::Known;
use memfit_recording::TextId;
use memfit_vocabulary::{Category, Cause, Lever, Phase};

use super::{Finding, size};
use crate::bench::{Bench, replayed};
use crate::origins::{Role, Site};
use crate::story::{Life, Story};

pub(super) fn find(bench: &Bench<'_>) -> Option<Finding> {
    let story = &bench.story;
    let trouble = story.trouble;
    trouble.requested?;
    let now = story.period_of(trouble.moment);
    // Without a backward in between it is one and the same batch.
    if now == 0
        || !story.ran(Phase::Backward, 0, story.periods()[now - 1]) && story.steps_at(trouble.moment) == 0
    {
        return None;
    }
    // Lines of which something from before the last step is there as well keep it for good: that is growth.
    let older: HashSet<Option<Site>> = story
        .live()
        .filter(|life| !life.stays() && story.period_of(life.block.born) + 1 < now)
        .map(|life| life.site)
        .collect();
    // What was asked for further down in a loop than it has come by now, the time before has made.
    let round = story.rounds_at(trouble.moment).checked_sub(1).map_or(0, |round| story.rounds[round]);
    let reached = reached(story, round);
    let tail =
        |life: &Life| {
            story.period_of(life.block.born) == now
                && life.block.born < round
                && story.origins.get(life.block.stack).user.iter().any(|site| {
                    reached.get(&(site.file, site.function)).is_some_and(|line| site.line > *line)
                })
        };
    let is_old = |life: &Life| {
        !life.stays()
            && (story.period_of(life.block.born) + 1 == now || tail(life))
            && life.block.bytes >= 1 << 16
            && (life.category == Category::Gradients || !older.contains(&life.site))
    };
    let gradients_late = trouble.phase != Phase::Optimizer
        && story.sum(|life| life.category == Category::Gradients && story.period_of(life.block.born) == now)
            == 0;
    let counts = |life: &Life| is_old(life) && (life.category != Category::Gradients || gradients_late);
    let gradients = story.sum(|life| counts(life) && life.category == Category::Gradients);
    let variables = story.sum(|life| counts(life) && life.category != Category::Gradients);
    let total = gradients + variables;
    if total == 0 {
        return None;
    }
    let stacks =
        bench.stacks(story.live().filter(|life| counts(life) && life.category != Category::Gradients));
    let mut text = format!("{} of the previous step's tensors were still allocated", size(total));
    if gradients > 0 {
        let _ = write!(text, ", {} of them gradients", size(gradients));
    }
    if variables > 0 {
        let _ = write!(
            text,
            ", {} in variables that keep their old value until the new one exists",
            size(variables)
        );
    }
    let boundary: HashMap<u32, u32> = story
        .live()
        .filter(|life| counts(life))
        .filter_map(|life| {
            let end = story.periods().get(story.period_of(life.block.born)).copied();
            Some((life.index, if tail(life) { round } else { end? }))
        })
        .collect();
    let then = bench.replay(&bench.program, &bench.case.given, |block| {
        boundary.get(&block).map_or(Edit::Keep, |end| Edit::FreeAt(*end))
    });
    let sites = bench.sites(stacks.iter().map(|(stack, _)| *stack));
    // What calls the optimizer steps it.
    let step = story.lives.iter().filter(|life| life.role == Role::Optimizer);
    let step = step.into_iter().find_map(|life| story.origins.get(life.block.stack).site());
    let step = step.map(|site| bench.place(site));
    let known = Known::Leftovers { step: step.as_ref(), gradients: gradients > 0 };
    let how = match (gradients > 0, variables > 0) {
        (true, false) => {
            "call `optimizer.zero_grad()` right after `optimizer.step()`, before the next forward"
        }
        (false, _) => "`del` the step's outputs at its end, before the next batch is loaded",
        (true, true) => {
            "call `optimizer.zero_grad()` right after `optimizer.step()`, and `del` the step's outputs at its end"
        }
    };
    let lever = if gradients > variables { Lever::ZeroGradEarlier } else { Lever::DropVariables };
    let fix = replayed(lever, how.to_owned(), &then, bench.change(lever, &sites, known));
    Some(Finding {
        cause: Cause::TwoBatchesAlive,
        bytes: total,
        enough: bench.enough(total) == Some(true) && bench.full(),
        facts: vec![bench.fact(text, total, stacks.first().map(|(stack, _)| *stack))],
        fixes: vec![fix],
    })
}

/// How far each function has come since a moment, as far as it asked for anything.
fn reached(story: &Story<'_>, since: u32) -> HashMap<(TextId, TextId), u32> {
    let mut reached = HashMap::new();
    let asked =
        story.lives.iter().filter(|life| life.block.born >= since && life.block.born <= story.trouble.moment);
    for stack in asked.map(|life| life.block.stack).chain([story.trouble.stack]) {
        for site in &story.origins.get(stack).user {
            let line = reached.entry((site.file, site.function)).or_insert(site.line);
            *line = site.line.max(*line);
        }
    }
    reached
}
