//! There was room and it could not be used: fragmentation, private pools, settings.

use memfit_allocator::{Divisions, Edit, Given, Settings};
use memfit_patch::Known;
use memfit_vocabulary::{Cause, Lever};

use super::{Finding, size};
use crate::bench::{Bench, LITTLE, Replayed, replayed};
use crate::explanation::{Apply, Fix};

/// The variable that all releases since 2.9 read; the ones before know it by its older name only.
pub(crate) const VARIABLE: &str = "PYTORCH_ALLOC_CONF";
const OLDER_VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";

fn variable(bench: &Bench<'_>) -> &'static str {
    let old = "2.9".parse().is_ok_and(|new| bench.case.given.release < new);
    if old { OLDER_VARIABLE } else { VARIABLE }
}

pub(super) fn find(bench: &Bench<'_>) -> Vec<Finding> {
    let Some(requested) = bench.story.trouble.requested else { return Vec::new() };
    let trouble = bench.story.trouble;
    let Some(limit) = bench.limit else { return Vec::new() };
    let unused = limit.saturating_sub(trouble.allocated);
    let mut findings = Vec::new();
    findings.extend(settings(bench));
    let there_was_room = bench.missing.is_some_and(|missing| missing <= 0);
    findings.extend(pools(bench, unused, requested));
    let fixes = remedies(bench);
    if there_was_room || fixes.iter().any(|fix| fix.fits == Some(true)) {
        let held = trouble.reserved.saturating_sub(trouble.allocated);
        let text = format!(
            "{} were requested and {} were free, {} of them reserved by PyTorch: enough in total, but in pieces that were too small",
            size(requested),
            size(unused),
            size(held)
        );
        findings.push(Finding {
            cause: Cause::Fragmented,
            bytes: held,
            // Where next to nothing is unused, pieces are not the problem: the card was about to be full
            // anyway.
            enough: there_was_room && unused >= requested && unused >= limit / LITTLE,
            facts: vec![bench.fact(text, held, Some(trouble.stack))],
            fixes,
        });
    }
    findings
}

/// Settings that were on when it died, and without which it would have lived.
fn settings(bench: &Bench<'_>) -> Option<Finding> {
    let recorded = bench.case.given;
    let plain = Settings {
        expandable_segments: recorded.settings.expandable_segments,
        memory_fraction: recorded.settings.memory_fraction,
        ..Settings::default()
    };
    if recorded.settings == plain {
        return None;
    }
    let items: Vec<&str> = split(&bench.case.alloc_conf);
    let mut fixes: Vec<Fix> = Vec::new();
    for index in 0..items.len() {
        let name = items[index].split(':').next().unwrap_or_default().trim();
        let rest: Vec<&str> = items
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
            .map(|(_, item)| item.trim())
            .collect();
        let rest = rest.join(",");
        let Ok(settings) = Settings::parse(&rest, recorded.release) else { continue };
        if settings == recorded.settings || name == "per_process_memory_fraction" {
            continue;
        }
        let then = bench.replay(&bench.program, &Given { settings, ..recorded }, |_| Edit::Keep);
        if then.fits == Some(true) || (then.fits.is_none() && then.saves > 0) {
            let rest = if rest == "expandable_segments:False" { String::new() } else { rest };
            let how = if rest.is_empty() {
                format!("remove `{name}` from {}, which then sets nothing", variable(bench))
            } else {
                format!("remove `{name}`: {}={rest}", variable(bench))
            };
            // Where the script itself sets it, it is mended there.
            let known = Known::Settings { now: &bench.case.alloc_conf, then: &rest };
            let apply = match bench.change(Lever::DropSetting, &[], known) {
                Apply::ByHand(_) => Apply::Environment(variable(bench), rest),
                edit => edit,
            };
            fixes.push(replayed(Lever::DropSetting, how + &reserved(bench, &then), &then, apply));
        }
    }
    let best = fixes.iter().map(|fix| fix.saves).max()?;
    let kept = bench.story.trouble.reserved.saturating_sub(bench.story.trouble.allocated);
    let text = format!(
        "with `{}` the allocator could not use {} of the memory it had reserved; without it the same calls all succeed",
        bench.case.alloc_conf,
        size(kept)
    );
    Some(Finding {
        cause: Cause::SettingThatHurts,
        bytes: best,
        enough: fixes.iter().any(|fix| fix.fits == Some(true)),
        facts: vec![bench.fact(text, kept, Some(bench.story.trouble.stack))],
        fixes,
    })
}

fn split(conf: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let parts = conf.split(move |character| {
        match character {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty()).collect()
}

/// Free memory in pools that others may not use.
fn pools(bench: &Bench<'_>, unused: u64, requested: u64) -> Option<Finding> {
    let recorded = bench.case.given;
    let now = bench.replay(&bench.program, &recorded, |_| Edit::Keep);
    let locked = now
        .outcome
        .as_ref()
        .and_then(|outcome| outcome.died.as_ref())
        .map_or(0, |(_, oom)| oom.in_private_pools);
    let private =
        bench.story.live().filter(|life| life.block.pool.0 != 0).map(|life| life.block.bytes).sum::<u64>();
    if locked + private == 0 {
        return None;
    }
    let merged = bench.program.with_one_pool();
    let then = bench.replay(&merged, &recorded, |_| Edit::Keep);
    let count = bench.case.track.pools.len().saturating_sub(1);
    let text = format!(
        "{count} private pools (CUDA graphs, `MemPool`) held {} that were free but reserved for them; {} were requested and {} were free",
        size(locked),
        size(requested),
        size(unused)
    );
    let stacks = bench.stacks(bench.story.lives.iter().filter(|life| life.block.pool.0 != 0));
    let stack = stacks.first().map(|(stack, _)| *stack);
    let how = "let graphs share one pool, or make the pool with `use_on_oom=True` (2.9 and later), so that its free memory can be used".to_owned();
    let sites = bench.sites(stack);
    let change = |lever| (lever, bench.change(lever, &sites, Known::Nothing));
    let (lever, apply) = match change(Lever::PoolOnOom) {
        (_, Apply::ByHand(_)) => change(Lever::SharePool),
        lent => lent,
    };
    let how = how + &reserved(bench, &then);
    Some(Finding {
        cause: Cause::PrivatePools,
        bytes: locked.max(then.saves),
        enough: then.fits == Some(true) && now.fits != Some(true),
        facts: vec![bench.fact(text, locked, stack)],
        fixes: vec![replayed(lever, how, &then, apply)],
    })
}

/// Settings that keep pieces together.
fn remedies(bench: &Bench<'_>) -> Vec<Fix> {
    let recorded = bench.case.given;
    let mut fixes = Vec::new();
    let mut attempt = |lever: Lever, text: String, settings: Settings| {
        let then = bench.replay(&bench.program, &Given { settings, ..recorded }, |_| Edit::Keep);
        if then.saves > 0 || then.fits == Some(true) {
            let conf = with(&bench.case.alloc_conf, &text);
            let how = format!("set {}={conf}", variable(bench)) + &reserved(bench, &then);
            fixes.push(replayed(lever, how, &then, Apply::Environment(variable(bench), conf)));
        }
    };
    if !recorded.settings.expandable_segments {
        let settings = Settings { expandable_segments: true, ..recorded.settings };
        attempt(Lever::ExpandableSegments, "expandable_segments:True".to_owned(), settings);
    }
    if recorded.settings.max_split_size == u64::MAX && !recorded.settings.expandable_segments {
        for mib in [64, 256] {
            let settings = Settings { max_split_size: mib << 20, ..recorded.settings };
            attempt(Lever::MaxSplitSize, format!("max_split_size_mb:{mib}"), settings);
        }
    }
    if recorded.settings.roundup == Divisions::default() {
        let settings = Settings { roundup: Divisions::all(4), ..recorded.settings };
        attempt(Lever::RoundupSizes, "roundup_power2_divisions:4".to_owned(), settings);
    }
    fixes
}

/// Settings with another behind them.
fn with(conf: &str, more: &str) -> String {
    let name = |item: &str| item.split(':').next().unwrap_or_default().trim().to_owned();
    let others = split(conf).into_iter().filter(|item| name(item) != name(more)).map(str::trim);
    others.chain([more]).collect::<Vec<_>>().join(",")
}

/// `: reserved 21.30 GiB → 18.20 GiB`.
fn reserved(bench: &Bench<'_>, then: &Replayed) -> String {
    format!(": the same calls reserve {} instead of {}", size(then.reserved), size(bench.demand()))
}
