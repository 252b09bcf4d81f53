//! Free memory that could not be used: fragmentation, private pools, settings.

use std::collections::{BTreeMap, BTreeSet};

use memfit_allocator::{Divisions, Edit, ReplayConditions, Settings};
use memfit_patch::RecordedFacts;
use memfit_recording::{StackId, TextId};
use memfit_vocabulary::{Category, Cause, Lever, Phase};

use super::size::saw_whole_steps;
use super::{Finding, size};
use crate::analysis::{Analysis, Replayed, SMALL_SHARE_DIVISOR, modelled_fix, replayed_fix};
use crate::explanation::{Apply, Fact, Fix, Line};
use crate::origins::Site;
use crate::timeline::Life;

pub(super) fn find(analysis: &Analysis<'_>) -> Vec<Finding> {
    let Some(requested) = analysis.timeline.trouble.requested else { return Vec::new() };
    let trouble = analysis.timeline.trouble;
    let Some(limit) = analysis.limit else { return Vec::new() };
    let unused = limit.saturating_sub(trouble.allocated);
    let mut findings = Vec::new();
    findings.extend(memory_fraction(analysis));
    findings.extend(settings(analysis));
    let there_was_room = analysis.missing.is_some_and(|missing| missing <= 0);
    findings.extend(pools(analysis, unused));
    let mut fixes = remedies(analysis);
    let delays = only_delays(analysis, requested, unused);
    let helps = fixes.iter().any(|fix| fix.fits == Some(true)) || delays && !fixes.is_empty();
    // If almost nothing is unused, fragmentation is not the cause: the GPU was nearly full.
    let left = unused.saturating_sub(requested);
    let much = unused >= limit / SMALL_SHARE_DIVISOR && left >= limit / TIGHT_SHARE_DIVISOR;
    let enough = there_was_room && much && !delays;
    // A replay ends with the request that failed. Where the rest of the step is unknown or the GPU is nearly
    // full, it does not show that a setting is enough.
    if delays || !much || !enough && !saw_whole_steps(analysis) {
        for fix in fixes.iter_mut().filter(|fix| fix.fits == Some(true)) {
            fix.fits = None;
        }
    }
    if there_was_room || helps {
        let held = trouble.reserved.saturating_sub(trouble.allocated);
        let text = format!(
            "{} were requested and {} were free, {} of them reserved by PyTorch: enough in total, but not in one piece",
            analysis.request(),
            size(unused),
            size(held)
        );
        findings.push(Finding {
            cause: Cause::Fragmented,
            bytes: held,
            enough,
            facts: vec![analysis.fact(text, held, Some(trouble.stack))],
            fixes,
        });
    }
    findings
}

/// Divisor of the limit: of a GPU with less than a hundredth left after the request, nothing is certain.
const TIGHT_SHARE_DIVISOR: u64 = 100;

/// Minimum number of equal activations for them to be those of repeated layers.
const MIN_LAYERS: usize = 2;

/// Returns `true` if free memory in one piece would only have delayed an error in the first forward pass.
/// Either it keeps another tensor of the request's size for each layer, and what is left after the request is
/// less than one of them: the next layer or the first gradient needs as much. Or the layers that have not run
/// yet need more than what is left.
fn only_delays(analysis: &Analysis<'_>, requested: u64, unused: u64) -> bool {
    let timeline = &analysis.timeline;
    let trouble = timeline.trouble;
    if trouble.phase != Phase::Forward || timeline.has_phase(Phase::Backward) || analysis.without_graph() {
        return false;
    }
    let same = |life: &&Life| {
        life.category == Category::Activations && life.requested_bytes().abs_diff(requested) <= requested / 64
    };
    timeline.live().filter(same).count() >= MIN_LAYERS && unused < requested.saturating_mul(2)
        || (requested..requested.saturating_add(layers_to_come(analysis))).contains(&unused)
}

/// Estimated bytes of activations of the layers that the first forward pass has not reached: those of the
/// numbered modules that have parameters, and no activations yet.
fn layers_to_come(analysis: &Analysis<'_>) -> u64 {
    let texts = &analysis.timeline.track.texts;
    // `encoder.layers.3.linear` is in the layer 3 of `encoder.layers`.
    let numbered = |name: TextId| {
        let name = texts.get(name);
        let number = name.split('.').position(|part| part.parse::<u32>().is_ok())?;
        let mut parts = name.split('.');
        let prefix: Vec<&str> = parts.by_ref().take(number).collect();
        Some((prefix, parts.next()?.parse::<u32>().ok()?))
    };
    let mut stacks: BTreeMap<Vec<&str>, Layers> = BTreeMap::new();
    for life in analysis.timeline.live() {
        let Some((prefix, number)) = numbered(life.module()) else { continue };
        let layers = stacks.entry(prefix).or_default();
        match life.category {
            Category::Parameters => {
                layers.all.insert(number);
            }
            Category::Activations => {
                layers.reached.insert(number);
                layers.activations += life.block.bytes;
            }
            _ => {}
        }
    }
    stacks.values().map(Layers::to_come).max().unwrap_or(0)
}

/// Numbered layers of a module.
#[derive(Debug, Default)]
struct Layers {
    /// Those with parameters.
    all: BTreeSet<u32>,
    /// Those with activations.
    reached: BTreeSet<u32>,
    activations: u64,
}

impl Layers {
    /// Bytes of activations of the layers that have none yet, if they are as large as the others.
    fn to_come(&self) -> u64 {
        let left = self.all.difference(&self.reached).count() as u64;
        self.activations.checked_div(self.reached.len() as u64).unwrap_or(0).saturating_mul(left)
    }
}

/// Name of the setting that does in the environment what `set_per_process_memory_fraction` does in a script.
const FRACTION_SETTING: &str = "per_process_memory_fraction";

/// The call with which a script limits its own memory.
pub(crate) const FRACTION_SETTER: &str = "torch.cuda.set_per_process_memory_fraction";

/// Says that a process was refused memory that the GPU had.
pub(crate) fn limited(limit: Option<u64>, setter: &str, free: u64, request: &str) -> String {
    let limit = limit.map_or_else(String::new, |limit| format!(" more than {}", size(limit)));
    let free = size(free);
    format!(
        "the process may not use{limit} (`{setter}`); {free} of the GPU were free when {request} were refused"
    )
}

/// Finding for a process that is not allowed to use the whole GPU, and ran out of its part.
fn memory_fraction(analysis: &Analysis<'_>) -> Option<Finding> {
    let withheld = analysis.case.card.withheld;
    if withheld == 0 {
        return None;
    }
    let conf = &analysis.case.alloc_conf;
    let by_environment = split(conf).iter().any(|item| setting_name(item) == FRACTION_SETTING);
    let (setter, apply) = if by_environment {
        let rest = without_setting(conf, FRACTION_SETTING).join(",");
        (FRACTION_SETTING, Apply::Environment(analysis.case.given.release.settings_variable(), rest))
    } else {
        let change = analysis.change(Lever::DropSetting, &[], RecordedFacts::MemoryFraction);
        (FRACTION_SETTER, change)
    };
    let text = limited(analysis.limit, setter, withheld, &analysis.request());
    let how = format!("let the process use the whole GPU, if nothing else needs the rest: drop `{setter}`");
    let lines = changed_line(analysis, &apply);
    Some(Finding {
        cause: Cause::SettingThatHurts,
        bytes: withheld,
        enough: analysis.enough(withheld) == Some(true),
        facts: vec![Fact { text, bytes: withheld, lines }],
        fixes: vec![modelled_fix(analysis, Lever::DropSetting, withheld, how, apply)],
    })
}

/// Line that a remedy changes, if it is one of the source.
fn changed_line(analysis: &Analysis<'_>, apply: &Apply) -> Vec<Line> {
    let Apply::Edit(change) = apply else { return Vec::new() };
    let (file, line) = (change.file.clone(), change.line);
    vec![analysis.with_text(Line { file, line, function: String::new(), text: None })]
}

/// Settings without which the request would have succeeded.
fn settings(analysis: &Analysis<'_>) -> Option<Finding> {
    let recorded = analysis.case.given;
    let plain = Settings {
        expandable_segments: recorded.settings.expandable_segments,
        memory_fraction: recorded.settings.memory_fraction,
        ..Settings::default()
    };
    if recorded.settings == plain {
        return None;
    }
    let items: Vec<&str> = split(&analysis.case.alloc_conf);
    let mut fixes: Vec<Fix> = Vec::new();
    for index in 0..items.len() {
        let name = setting_name(items[index]);
        let rest: Vec<&str> = items
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
            .map(|(_, item)| item.trim())
            .collect();
        let rest = rest.join(",");
        let Ok(settings) = Settings::parse(&rest, recorded.release) else { continue };
        if settings == recorded.settings || name == FRACTION_SETTING {
            continue;
        }
        let then =
            analysis.replay(&analysis.program, &ReplayConditions { settings, ..recorded }, |_| Edit::Keep);
        // A setting that reserves no more than its default does no harm, even if the replay succeeds.
        if then.saves > 0 && then.fits != Some(false) {
            let rest = if rest == "expandable_segments:False" { String::new() } else { rest };
            let how = if rest.is_empty() {
                format!(
                    "leave `{name}` out of {}: that is, do not set it",
                    analysis.case.given.release.settings_variable()
                )
            } else {
                format!("leave `{name}` out: {}={rest}", analysis.case.given.release.settings_variable())
            };
            // If the script sets the variable itself, the remedy edits the script.
            let known = RecordedFacts::Settings { now: &analysis.case.alloc_conf, then: &rest };
            let apply = match analysis.change(Lever::DropSetting, &[], known) {
                Apply::ByHand(_) => Apply::Environment(analysis.case.given.release.settings_variable(), rest),
                edit => edit,
            };
            fixes.push(replayed_fix(Lever::DropSetting, how + &reserved(analysis, &then), &then, apply));
        }
    }
    let best = fixes.iter().map(|fix| fix.saves).max()?;
    let text = format!(
        "with `{}` the recorded calls reserve {}; without it {}, and all of them succeed",
        analysis.case.alloc_conf,
        size(analysis.demand()),
        size(analysis.demand().saturating_sub(best))
    );
    let mut facts = vec![analysis.fact(text, best, Some(analysis.timeline.trouble.stack))];
    let lines = fixes.iter().map(|fix| changed_line(analysis, &fix.apply)).find(|lines| !lines.is_empty());
    facts.extend(lines.map(|lines| Fact { text: "this line sets it".to_owned(), bytes: best, lines }));
    Some(Finding {
        cause: Cause::SettingThatHurts,
        bytes: best,
        enough: fixes.iter().any(|fix| fix.fits == Some(true)),
        facts,
        fixes,
    })
}

/// Name of a setting, such as `max_split_size_mb:64`.
fn setting_name(item: &str) -> &str {
    item.split(':').next().unwrap_or_default().trim()
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

/// Free memory in private pools that other allocations may not use.
fn pools(analysis: &Analysis<'_>, unused: u64) -> Option<Finding> {
    let recorded = analysis.case.given;
    let now = analysis.replay(&analysis.program, &recorded, |_| Edit::Keep);
    let locked = now
        .outcome
        .as_ref()
        .and_then(|outcome| outcome.died.as_ref())
        .map_or(0, |(_, oom)| oom.in_private_pools);
    let private = analysis
        .timeline
        .live()
        .filter(|life| life.block.pool.0 != 0)
        .map(|life| life.block.bytes)
        .sum::<u64>();
    if locked + private == 0 {
        return stated_pools(analysis, unused);
    }
    let merged = analysis.program.with_one_pool();
    let then = analysis.replay(&merged, &recorded, |_| Edit::Keep);
    let count = analysis.case.track.pools.len().saturating_sub(1);
    let text = format!("{count} {}", pools_text(analysis, locked, unused));
    let stacks = analysis.stacks(analysis.timeline.lives.iter().filter(|life| life.block.pool.0 != 0));
    let stack = stacks.first().map(|(stack, _)| *stack);
    let (lever, apply) = pool_change(analysis, &analysis.sites(stack));
    let how = LEND_POOLS.to_owned() + &reserved(analysis, &then);
    Some(Finding {
        cause: Cause::PrivatePools,
        bytes: locked.max(then.saves),
        enough: then.fits == Some(true) && now.fits != Some(true),
        facts: pool_facts(analysis, text, locked, stack),
        fixes: vec![replayed_fix(lever, how, &then, apply)],
    })
}

/// Evidence for private pools: who needed their memory, and the line that makes one.
fn pool_facts(analysis: &Analysis<'_>, text: String, locked: u64, stack: Option<StackId>) -> Vec<Fact> {
    let mut facts = vec![analysis.fact(text, locked, stack)];
    facts.extend(analysis.code.pool_maker().map(|memfit_patch::Site { file, line, function }| {
        let lines = vec![analysis.with_text(Line { file, line, function, text: None })];
        Fact { text: "this line creates a private pool".to_owned(), bytes: locked, lines }
    }));
    facts
}

/// Finding for private pools of which only PyTorch's message tells: the recording does not say which blocks
/// are theirs.
fn stated_pools(analysis: &Analysis<'_>, unused: u64) -> Option<Finding> {
    let requested = analysis.timeline.trouble.requested?;
    let locked = analysis.case.card.in_private_pools;
    if locked == 0 {
        return None;
    }
    let text = pools_text(analysis, locked, unused);
    let stacks = analysis.timeline.lives.iter().map(|life| life.block.stack);
    let (lever, apply) = pool_change(analysis, &analysis.sites(stacks));
    let fix = modelled_fix(analysis, lever, locked, LEND_POOLS.to_owned(), apply);
    // Without the memory of the pools there was too little in one piece, and with it enough: the allocator
    // could not reserve the request, and outside of the pools no block can have been large enough.
    let trouble = analysis.timeline.trouble;
    let held = trouble.reserved.saturating_sub(trouble.allocated);
    let in_one_piece = locked <= held && requested <= locked && requested > held - locked;
    let enough = in_one_piece || requested <= unused && requested > unused.saturating_sub(locked);
    Some(Finding {
        cause: Cause::PrivatePools,
        bytes: locked,
        enough,
        facts: pool_facts(analysis, text, locked, Some(analysis.timeline.trouble.stack)),
        fixes: vec![Fix { fits: Some(enough), ..fix }],
    })
}

/// Describes what private pools kept from a request.
fn pools_text(analysis: &Analysis<'_>, locked: u64, unused: u64) -> String {
    format!(
        "private pools (CUDA graphs, `MemPool`) held {} that were free but reserved for them; {} were requested and {} were free",
        size(locked),
        analysis.request(),
        size(unused)
    )
}

/// Advice for private pools.
const LEND_POOLS: &str = "let graphs share one pool, or create the pool with `use_on_oom=True` (2.9 and later), so that its free memory can be used";

/// Edit that lends a pool's memory, or shares one pool.
fn pool_change(analysis: &Analysis<'_>, sites: &[Site]) -> (Lever, Apply) {
    let change = |lever| (lever, analysis.change(lever, sites, RecordedFacts::Nothing));
    match change(Lever::PoolOnOom) {
        (_, Apply::ByHand(_)) => change(Lever::SharePool),
        lent => lent,
    }
}

/// Settings that reduce fragmentation.
fn remedies(analysis: &Analysis<'_>) -> Vec<Fix> {
    let recorded = analysis.case.given;
    let mut fixes = Vec::new();
    let as_recorded = || analysis.replay(&analysis.program, &recorded, |_| Edit::Keep);
    let mut attempt = |lever: Lever, text: String, settings: Settings| {
        let then =
            analysis.replay(&analysis.program, &ReplayConditions { settings, ..recorded }, |_| Edit::Keep);
        // If the replay fits without any setting, a setting that saves nothing is no remedy.
        let helps = || then.fits == Some(true) && as_recorded().fits != Some(true);
        if then.saves > 0 || helps() {
            let conf = append_setting(&analysis.case.alloc_conf, &text);
            let how = format!("set {}={conf}", analysis.case.given.release.settings_variable())
                + &reserved(analysis, &then);
            fixes.push(replayed_fix(
                lever,
                how,
                &then,
                Apply::Environment(analysis.case.given.release.settings_variable(), conf),
            ));
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

/// Appends a setting to settings.
fn append_setting(conf: &str, more: &str) -> String {
    let mut items = without_setting(conf, setting_name(more));
    items.push(more);
    items.join(",")
}

/// Settings without the one of a name.
fn without_setting<'conf>(conf: &'conf str, name: &str) -> Vec<&'conf str> {
    split(conf).into_iter().filter(|item| setting_name(item) != name).map(str::trim).collect()
}

/// Formats `: the same calls reserve 18.20 GiB instead of 21.30 GiB`. Without a limit, they may reserve more
/// than the GPU has: within it, the allocator frees its cache and tries again.
fn reserved(analysis: &Analysis<'_>, then: &Replayed) -> String {
    let (now, then_reserved) = (size(analysis.demand()), size(then.reserved));
    if then.fits == Some(true) && analysis.limit.is_some_and(|limit| then.reserved > limit) {
        return ": the same calls, up to the one that failed, then succeed".to_owned();
    }
    if analysis.limit.is_some_and(|limit| then.reserved > limit) {
        return format!(
            ": on a GPU that is large enough, the same calls reserve {then_reserved} instead of {now}"
        );
    }
    format!(": the same calls reserve {then_reserved} instead of {now}")
}
