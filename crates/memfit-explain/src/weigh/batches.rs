//! Tensors of one step that are still live in the next: gradients cleared too late, and variables that keep
//! the old value until the new one is computed.

use std::fmt::Write as _;

use std::collections::{HashMap, HashSet};

use memfit_allocator::Edit;
use memfit_patch::RecordedFacts;
use memfit_recording::TextId;
use memfit_vocabulary::{Category, Cause, Lever, Phase};

use super::{Finding, size};
use crate::analysis::{Analysis, replayed_fix};
use crate::explanation::Apply;
use crate::origins::{Role, Site};
use crate::timeline::{Life, Timeline};

pub(super) fn find(analysis: &Analysis<'_>) -> Option<Finding> {
    let timeline = &analysis.timeline;
    let trouble = timeline.trouble;
    trouble.requested?;
    let now = timeline.period_of(trouble.moment);
    if now == 0 {
        return None;
    }
    // Without a backward pass between, it is the same batch, unless there is none because gradients are off.
    let trained = timeline.phase_ran(Phase::Backward, 0, timeline.periods()[now - 1])
        || timeline.steps_at(trouble.moment) > 0;
    let graphless = !trained && timeline.by_rounds && analysis.without_graph();
    if !trained && !graphless {
        return None;
    }
    // Lines with older live blocks keep them for good, which is growth.
    let older: HashSet<Option<Site>> = timeline
        .live()
        .filter(|life| !life.stays() && timeline.period_of(life.block.born) + 1 < now)
        .map(|life| life.site)
        .collect();
    // Blocks from lines further down in a loop than the current position were allocated by the previous
    // iteration.
    let round = timeline.rounds_at(trouble.moment).checked_sub(1).map_or(0, |round| timeline.rounds[round]);
    let lines_reached = lines_reached(timeline, round);
    let tail = |life: &Life| {
        timeline.period_of(life.block.born) == now
            && life.block.born < round
            && timeline.origins.get(life.block.stack).user.iter().any(|site| {
                lines_reached.get(&(site.file, site.function)).is_some_and(|line| site.line > *line)
            })
    };
    let is_old = |life: &Life| {
        !life.stays()
            && (timeline.period_of(life.block.born) + 1 == now || tail(life))
            && life.block.bytes >= 1 << 16
            && (life.category == Category::Gradients || !older.contains(&life.site))
    };
    let gradients_late = trouble.phase != Phase::Optimizer
        && timeline
            .sum(|life| life.category == Category::Gradients && timeline.period_of(life.block.born) == now)
            == 0;
    let counts = |life: &Life| is_old(life) && (life.category != Category::Gradients || gradients_late);
    let gradients = timeline.sum(|life| counts(life) && life.category == Category::Gradients);
    let variables = timeline.sum(|life| counts(life) && life.category != Category::Gradients);
    let total = gradients + variables;
    if total == 0 {
        return None;
    }
    let stacks =
        analysis.stacks(timeline.live().filter(|life| counts(life) && life.category != Category::Gradients));
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
    let boundary: HashMap<u32, u32> = timeline
        .live()
        .filter(|life| counts(life))
        .filter_map(|life| {
            let end = timeline.periods().get(timeline.period_of(life.block.born)).copied();
            Some((life.index, if tail(life) { round } else { end? }))
        })
        .collect();
    let then = analysis.replay(&analysis.program, &analysis.case.given, |block| {
        boundary.get(&block).map_or(Edit::Keep, |end| Edit::FreeAt(*end))
    });
    let sites = analysis.sites(stacks.iter().map(|(stack, _)| *stack));
    // The line that calls the optimizer is the step.
    let step = timeline.lives.iter().filter(|life| life.role == Role::Optimizer);
    let step = step.into_iter().find_map(|life| timeline.origins.get(life.block.stack).site());
    let step = step.map(|site| analysis.place(site));
    let known = RecordedFacts::Leftovers { step: step.as_ref(), gradients: gradients > 0 };
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
    let apply = analysis.change(lever, &sites, known);
    // A model may need what its last call gave. The source has to show that nothing reads it again.
    if graphless && !matches!(apply, Apply::Edit(_)) {
        return None;
    }
    let fix = replayed_fix(lever, how.to_owned(), &then, apply);
    Some(Finding {
        cause: Cause::TwoBatchesAlive,
        bytes: total,
        enough: analysis.enough(total) == Some(true) && analysis.full() && ran_before(timeline, now),
        facts: vec![analysis.fact(text, total, stacks.first().map(|(stack, _)| *stack))],
        fixes: vec![fix],
    })
}

/// Returns `false` if forward passes ran in earlier periods, and the line that failed did not. What is left
/// of work that runs for the first time, as a generator's after its discriminator's, is unknown.
fn ran_before(timeline: &Timeline<'_>, now: usize) -> bool {
    let failed = &timeline.origins.get(timeline.trouble.stack).user;
    let begin = timeline.periods()[now - 1];
    let earlier = || timeline.lives.iter().filter(|life| life.block.born < begin);
    failed.is_empty()
        || earlier().all(|life| life.role != Role::Forward)
        || earlier().any(|life| timeline.origins.get(life.block.stack).user == *failed)
}

/// Last line of each function that has allocated memory since a moment.
fn lines_reached(timeline: &Timeline<'_>, since: u32) -> HashMap<(TextId, TextId), u32> {
    let mut lines_reached = HashMap::new();
    let asked = timeline
        .lives
        .iter()
        .filter(|life| life.block.born >= since && life.block.born <= timeline.trouble.moment);
    for stack in asked.map(|life| life.block.stack).chain([timeline.trouble.stack]) {
        for site in &timeline.origins.get(stack).user {
            let line = lines_reached.entry((site.file, site.function)).or_insert(site.line);
            *line = site.line.max(*line);
        }
    }
    lines_reached
}
