//! What one step made, and the next still finds: gradients that are dropped too late, variables that are
//! overwritten only when what replaces them is there already.

use std::fmt::Write as _;

use std::collections::{BTreeSet, HashMap, HashSet};

use memfit_allocator::Edit;
use memfit_recording::TextId;
use memfit_vocabulary::{Category, Cause, Label, Lever, Phase};

use super::{Finding, size};
use crate::bench::{Bench, replayed};
use crate::explanation::Apply;
use crate::origins::{Role, Site};
use crate::source::{assigned, indent_of, is_word, loop_end};
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
    let mut text = format!("{} of the step before were still there", size(total));
    if gradients > 0 {
        let _ = write!(text, ", {} of them gradients", size(gradients));
    }
    if variables > 0 {
        let _ = write!(
            text,
            ", {} in variables that are overwritten only when what replaces them is there",
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
    let apply = edit(bench, &stacks.iter().map(|(stack, _)| *stack).collect::<Vec<_>>(), gradients > 0);
    let how = match (gradients > 0, variables > 0) {
        (true, false) => {
            "call `optimizer.zero_grad()` right after `optimizer.step()`, before the next forward"
        }
        (false, _) => "`del` what a step made at its end, before the next batch comes",
        (true, true) => {
            "call `optimizer.zero_grad()` right after `optimizer.step()`, and `del` what the step made at its end"
        }
    };
    let lever = if gradients > variables { Lever::ZeroGradEarlier } else { Lever::DropVariables };
    let fix = replayed(lever, Label::Exact, how.to_owned(), &then, apply.unwrap_or_default());
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

/// `del` at the end of the loop, and `zero_grad` behind `step`.
fn edit(bench: &Bench<'_>, stacks: &[memfit_recording::StackId], gradients: bool) -> Option<Apply> {
    let story = &bench.story;
    let step =
        story.lives.iter().filter(|life| life.role == Role::Optimizer).find_map(|life| {
            story.origins.get(life.block.stack).user.iter().copied().find(|site| {
                bench.source(*site).is_some_and(|source| source.line(site.line).contains(".step("))
            })
        });
    let mut source = if let Some(step) = step {
        bench.source(step)?
    } else {
        // The innermost loop in which somebody keeps what was asked for.
        let sites = stacks.iter().flat_map(|stack| &story.origins.get(*stack).user);
        sites.filter_map(|site| Some((site, bench.source(*site)?))).find_map(|(site, source)| {
            let keeps = assigned(source.line(site.line)).is_some() && loop_end(&source, site.line).is_some();
            keeps.then_some(source)
        })?
    };
    let file = |site: &Site| source.is_of(story.track.texts.get(site.file));
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut anchor = step.map(|step| step.line);
    for stack in stacks {
        for site in story.origins.get(*stack).user.iter().filter(|site| file(site)) {
            let text = source.line(site.line).to_owned();
            // Only what the loop itself assigns: what a function assigns is gone when it returns.
            let in_loop = loop_end(&source, site.line).map(|(last, _)| last);
            let same = match (anchor.and_then(|anchor| loop_end(&source, anchor)), in_loop) {
                (Some((with_step, _)), Some(own)) => with_step == own,
                (None, Some(_)) => true,
                _ => false,
            };
            if let Some((found, _)) = assigned(&text).filter(|_| same) {
                names.extend(found.into_iter().filter(|name| *name != "_").map(str::to_owned));
                anchor = anchor.or(Some(site.line));
            }
        }
    }
    let anchor = anchor?;
    let (last, indent) = loop_end(&source, anchor)?;
    if gradients {
        move_zero_grad(&mut source, anchor);
    }
    if !names.is_empty() {
        let end = crate::source::statement_end(&source, last);
        let names: Vec<String> = names.into_iter().collect();
        source.insert_before(end + 1, format!("{indent}del {}", names.join(", ")));
    }
    source.edit()
}

/// `zero_grad` that comes after the forward goes behind `step`.
fn move_zero_grad(source: &mut crate::source::Source, step: u32) {
    let found = source
        .lines()
        .filter(|(number, _)| *number < step)
        .rfind(|(_, text)| text.contains(".zero_grad(") && text.trim_end().ends_with(')'))
        .map(|(number, text)| (number, text.to_owned()));
    let Some((number, text)) = found else { return };
    if indent_of(&text) != indent_of(source.line(step)) {
        return;
    }
    let optimizer = text.trim().split('.').next().unwrap_or_default().to_owned();
    if !is_word(source.line(step), &optimizer) && !optimizer.is_empty() {
        return;
    }
    let call = text.replace("set_to_none=False", "");
    source.replace_by(number, Vec::new());
    source.insert_before(step + 1, call);
}
