//! Text output of `memfit explain`.

use std::fmt::Write as _;

use anstyle::Style;
use memfit_explain::{CUT_OFF, ENDED, HAD_ROOM, NO_FIGURES, NO_HISTORY, NO_PERIODS};
use memfit_vocabulary::{Cause, Lever, Phase, Proof, one_line};

use super::canvas::{ADVICE, BAD, BOLD, Canvas, DIM, DOUBT, GOOD, paint};
use super::growth::MAX_STEPS;
use super::{count, from_here, module_name, size};
use crate::wire::{CodeLine, ExplainFix, ExplainHolder, ExplainReport, FixProof, Verdict};

const SIZE: usize = 11;
/// Maximum lines of a stack and branches of a tree.
const MAX_LINES: usize = 4;
const MAX_BRANCHES: usize = 6;
/// Maximum places of a category.
const MAX_LEAVES: usize = 3;
/// Heading of the remedies for an out-of-memory error.
pub(super) const REMEDIES: &str = "What would have helped";

/// Reason why memory ran out.
pub fn explain(report: &ExplainReport, canvas: Canvas) -> String {
    let mut out = String::new();
    headline(&mut out, report, canvas);
    let mut shown: &[CodeLine] = &[];
    for evidence in &report.evidence {
        out.push('\n');
        out.push_str(&canvas.wrapped("  ", Style::new(), &evidence.text));
        match evidence.stack.first() {
            Some(line) if evidence.stack == shown => {
                let _ = writeln!(out, "    {}", paint(DIM, &format!("{}, as above", place(line))));
            }
            _ => stack(&mut out, &evidence.stack, canvas),
        }
        if !evidence.stack.is_empty() {
            shown = &evidence.stack;
        }
    }
    if !report.holders.is_empty() {
        let _ = writeln!(out, "\n  {}", paint(BOLD, "What held the memory"));
        tree(&mut out, &report.holders, canvas);
    }
    if grows(report) {
        let _ = writeln!(out, "\n  {}", paint(BOLD, "What grows with each step"));
        for leak in report.leaks.iter().take(MAX_BRANCHES) {
            let module = leak.module.as_deref().filter(|name| !name.is_empty()).map(module_name);
            let places: Vec<String> = module.into_iter().chain(leak.line.as_ref().map(place)).collect();
            let place = if places.is_empty() { "(line not known)".to_owned() } else { places.join("  ") };
            let text = format!("per step, {} so far: {place}", size(leak.bytes));
            out.push_str(&canvas.wrapped(
                &format!("  {:>SIZE$}  ", size(leak.per_step)),
                Style::new(),
                &text,
            ));
        }
        if let Some(step) =
            report.leaks.iter().find_map(|leak| leak.dies_at_step).filter(|_| report.peak.requested.is_none())
        {
            out.push_str(&canvas.wrapped(
                &format!("  {:>SIZE$}  ", ""),
                DIM,
                &format!("at that rate memory runs out in step {}", count(step)),
            ));
        }
    }
    if !report.fixes.is_empty() {
        // Only messages name a cause without any figure.
        let ran_out = report.peak.requested.is_some() || is_without_figures(report);
        let title = if ran_out { REMEDIES } else { "What would reduce the peak" };
        let _ = writeln!(out, "\n  {}", paint(BOLD, title));
        let left = |proof: &FixProof| little_left(proof.peak.reserved, report.peak.limit);
        fixes(&mut out, &report.fixes, report.fixes.len(), "", left, canvas);
    }
    if report.cause != Cause::None {
        let _ = writeln!(
            out,
            "\n  {}",
            paint(DIM, &format!("`memfit explain --cause {}` has more on this cause", report.cause))
        );
    }
    for note in report.unknown.iter().chain(&report.problems) {
        out.push_str(&canvas.wrapped("note: ", DIM, note));
    }
    let is_searched = matches!(
        report.cause,
        Cause::TooBig
            | Cause::Fragmented
            | Cause::FirstStepSurprise
            | Cause::GiantRequest
            | Cause::DoesNotFit
    );
    // Of an inference, there is nothing to plan.
    let trains = |fix: &ExplainFix| matches!(fix.lever, Lever::MicroBatch | Lever::Checkpointing);
    if report.peak.requested.is_some() && is_searched && report.fixes.iter().any(trains) {
        out.push('\n');
        out.push_str(&canvas.wrapped("next: ", ADVICE, PLAN));
    }
    out
}

/// The verb that searches for a combination of remedies.
const PLAN: &str = "`memfit plan --gpu NAME -- python train.py` runs the script on a virtual GPU and searches for the fastest combination of changes that fits";

/// Returns `true` if memory grows fast enough to matter in a training of usual length: it would fill the GPU
/// or, if the file does not say how large that is, double what was reserved.
fn grows(report: &ExplainReport) -> bool {
    let per_step: u64 = report.leaks.iter().map(|leak| leak.per_step).sum();
    let room = report.peak.limit.unwrap_or(report.peak.reserved);
    per_step > 0 && per_step.saturating_mul(MAX_STEPS) >= room
}

/// Summary of a cause in a few words.
pub(super) fn sentence(cause: Cause) -> &'static str {
    match cause {
        Cause::None => "nothing ran out of memory, and nothing grows",
        Cause::TooBig => "a step's tensors need more memory than the GPU has",
        Cause::Fragmented => "enough memory was free, but in pieces that were too small",
        Cause::Leaking => "memory grows with each step",
        Cause::RetainedGraph => "each step keeps its whole autograd graph",
        Cause::TwoBatchesAlive => "one step's tensors are still allocated while the next step runs",
        Cause::EvaluationWithGradients => "an evaluation saves activations that only a backward pass needs",
        Cause::FirstStepSurprise => "the optimizer allocates its state in its first step",
        Cause::GiantRequest => "one tensor, or a few of its size, take most of the memory",
        Cause::OtherProcesses => "other processes hold the GPU's memory",
        Cause::Outside => "CUDA contexts, one for each process, take the memory",
        Cause::PrivatePools => "free memory is in private pools that nothing else may use",
        Cause::SettingThatHurts => "an allocator setting keeps free memory from being used",
        Cause::DoesNotFit => "the model itself does not fit",
        Cause::GrowingCache => "a tensor is rebuilt larger each time (`torch.cat` in a loop)",
        Cause::HostMemory => "the host's memory ran out, not the GPU's",
    }
}

/// Returns `true` for a message of an error without figures.
fn is_without_figures(report: &ExplainReport) -> bool {
    report.cause != Cause::None && report.peak.reserved == 0 && report.holders.is_empty()
}

/// Says why an error has no cause, if it has none.
fn unexplained(report: &ExplainReport) -> Option<&'static str> {
    let texts = [
        (NO_FIGURES, "for an unknown reason: the message has no figures"),
        (CUT_OFF, "for an unknown reason: the message is cut off"),
        (HAD_ROOM, "although the GPU seems to have had enough free memory"),
    ];
    texts.iter().find(|(gap, _)| report.unknown.iter().any(|found| found == gap)).map(|(_, text)| *text)
}

fn headline(out: &mut String, report: &ExplainReport, canvas: Canvas) {
    let badge = report.cause.name().to_uppercase().replace('-', " ");
    let unexplained = unexplained(report);
    let style = match (report.cause, report.peak.requested) {
        _ if unexplained.is_some() => DOUBT,
        (Cause::None, None) => GOOD,
        (Cause::HostMemory, None) => BAD,
        (_, None) => DOUBT,
        _ => BAD,
    };
    let peak = &report.peak;
    let at_one_moment = report.unknown.iter().any(|gap| gap == NO_HISTORY);
    let without_periods = report.unknown.iter().any(|gap| gap == NO_PERIODS);
    let is_empty = peak.step == 0 && peak.reserved == 0;
    let (badge, text) = if let Some(text) = unexplained {
        ("OUT OF MEMORY".to_owned(), text)
    } else if report.unknown.iter().any(|gap| gap == ENDED) {
        (badge, "a process was ended, most likely because the host's memory ran out")
    } else if report.cause == Cause::None && peak.requested.is_none() {
        let text = match (is_empty, at_one_moment) {
            (true, _) => "and no allocation was recorded",
            (false, true) => "was recorded, and there is no history that would show growth",
            _ if without_periods => "was recorded, and growth of memory cannot be seen without steps",
            (false, false) if grows(report) => "was recorded, and memory grows slowly",
            (false, false) => "and no memory growth",
        };
        ("NO OUT-OF-MEMORY ERROR".to_owned(), text)
    } else {
        (badge, sentence(report.cause))
    };
    out.push_str(&canvas.wrapped(&format!("{badge}  "), style, text));
    if is_empty && peak.requested.is_none() {
        return;
    }
    let phase = match peak.phase {
        Some(Phase::Other) | None => String::new(),
        Some(phase @ (Phase::Forward | Phase::Backward)) => format!(", {phase} pass"),
        Some(phase) => format!(", {phase} step"),
    };
    let step = (peak.step > 0).then(|| format!("step {}{phase}", count(peak.step)));
    let moment = step.as_ref().map(|step| format!("{step}: ")).unwrap_or_default();
    let dot = canvas.dot();
    let mut facts = match (peak.requested.map(size), peak.segment.map(size)) {
        (Some(tensor), Some(segment)) if tensor != segment => {
            format!("{moment}{segment} requested for a tensor of {tensor}{dot}")
        }
        (Some(requested), _) => format!("{moment}{requested} requested{dot}"),
        (None, _) if at_one_moment => "in the snapshot: ".to_owned(),
        (None, _) => format!("peak{}: ", step.map(|step| format!(" in {step}")).unwrap_or_default()),
    };
    // A message that is cut off, or about the host's memory.
    if peak.requested.is_some() && peak.reserved == 0 && peak.limit.is_none() {
        out.push_str(&canvas.wrapped("  ", DIM, facts.trim_end_matches(dot)));
        return;
    }
    let _ = write!(facts, "{} in tensors{dot}{} reserved", size(peak.allocated), size(peak.reserved));
    if let Some(limit) = peak.limit {
        let _ = write!(facts, " of {} available to PyTorch", size(limit));
    }
    if let Some(missing) = peak.missing {
        let _ = write!(facts, "{dot}{} short", size(missing));
    }
    out.push_str(&canvas.wrapped("  ", DIM, &facts));
}

fn place(line: &CodeLine) -> String {
    format!("{}:{}", from_here(&line.file), line.line)
}

/// A line with its function.
pub(super) fn in_function(line: &CodeLine) -> String {
    match line.function.as_str() {
        // Lines that were found in the source alone have no function.
        "" | "<module>" => place(line),
        function => format!("{} in {function}", place(line)),
    }
}

fn stack(out: &mut String, lines: &[CodeLine], canvas: Canvas) {
    for line in lines.iter().take(MAX_LINES) {
        let text = canvas.shortened(&format!("at {}", in_function(line)), canvas.columns() - 4);
        let _ = writeln!(out, "    {}", paint(DIM, &text));
        if let Some(code) = &line.text {
            let _ = writeln!(out, "       {}", canvas.cut(code, canvas.columns() - 8));
        }
    }
}

/// Reason why a fit with little memory left is not certain.
pub(super) const CLOSE_FIT: &str = "Other programs (a desktop) may take it, and predictions that were this close have been wrong: leave more free";

/// The memory that is left, if it is so little that other programs or an error of the prediction may take
/// it: less than 2 % of the GPU or, up to a sixteenth of it, less than 1 GiB. All published failures that
/// memfit took for fits were that close (`measurements/cards-published.md`).
pub(super) fn little_left(used: u64, available: Option<u64>) -> Option<u64> {
    let available = available?;
    let little = (available / 50).max((available / 16).min(1 << 30));
    available.checked_sub(used).filter(|left| *left < little)
}

/// Writes the list of remedies. `others` says where those that are not shown are; `left` is the memory that a
/// run left, if that is little.
pub(super) fn fixes(
    out: &mut String,
    fixes: &[ExplainFix],
    shown: usize,
    others: &str,
    left: impl Fn(&FixProof) -> Option<u64>,
    canvas: Canvas,
) {
    for (index, fix) in fixes.iter().take(shown).enumerate() {
        // Only a run shows what the rest of the training needs.
        let tight = fix
            .proof
            .as_ref()
            .and_then(&left)
            .map(|left| format!("barely enough: a run with it left {}", size(left)));
        let enough = match (fix.enough, fix.evidence) {
            (Some(true), Proof::Run) => tight.as_deref().unwrap_or("enough: confirmed by a run"),
            (Some(true), Proof::Replayed | Proof::Modelled) => "enough for this request",
            // The sentence about the run follows.
            (Some(false), Proof::Run) if fix.proof.is_some() => "not enough",
            (Some(false), Proof::Run) => "not enough: confirmed by a run",
            (Some(false), Proof::Replayed | Proof::Modelled) => "not enough by itself",
            (None, _) if fix.card.is_none() => "unknown whether enough",
            (None, _) => "",
        };
        let mut head = fix.lever.to_string();
        // A replay tells a setting's reserved memory on a GPU without a limit, which its own sentence has.
        let of_replay = fix.environment.is_some() && fix.evidence != Proof::Modelled;
        if fix.saves > 0 && fix.card.is_none() && !of_replay {
            let how = match fix.evidence {
                Proof::Replayed => " (replayed)",
                Proof::Modelled => " (estimated)",
                Proof::Run => "",
            };
            let _ = write!(head, ": saves {}{how}", size(fix.saves));
        }
        let verified = fix.label == fix.lever.label();
        let results = match (fix.lever, verified) {
            (_, false) => "results: not verified",
            // Of a model that is not trained.
            (Lever::QuantizedWeights, true) => "changes the results",
            (_, true) => fix.label.meaning(),
        };
        for part in [results, enough] {
            if !part.is_empty() {
                head += canvas.dot();
                head += part;
            }
        }
        let style = if fix.enough == Some(true) { GOOD } else { ADVICE };
        if head.chars().count() + 5 <= canvas.columns() {
            let _ = writeln!(out, "  {} {}", paint(style, &format!("{}.", index + 1)), paint(BOLD, &head));
        } else {
            out.push_str(&canvas.wrapped(&format!("  {}. ", index + 1), style, &head));
        }
        out.push_str(&canvas.wrapped("     ", Style::new(), &fix.how));
        // The sentence of a remedy whose diff made the script fail has the error.
        let by_hand = fix.edit.is_none() && fix.environment.is_none() && fix.card.is_none();
        let is_told = |proof: &&FixProof| proof.verdict == Verdict::Error && by_hand;
        if let Some(proof) = fix.proof.as_ref().filter(|proof| !is_told(proof)) {
            out.push_str(&canvas.wrapped("     ", DIM, &proven(proof)));
        }
        let in_full = index == 0 || fix.enough == Some(true);
        for (line, changed) in fix.edit.iter().filter(|_| in_full).flat_map(|edit| places(&edit.diff)) {
            let file = fix.edit.as_ref().map_or("", |edit| &edit.file);
            let place = canvas.shortened(&format!("{}:{line}", from_here(file)), canvas.columns() - 6);
            let _ = writeln!(out, "     {}", paint(DIM, &place));
            for line in changed {
                let style = if line.starts_with('+') { GOOD } else { BAD };
                // In full, also if it is longer than a row: a shortened line could not be copied.
                let _ = writeln!(out, "     {}", paint(style, &one_line(line)));
            }
        }
    }
    if fixes.len() > shown {
        let hidden = &fixes[shown..];
        let text = format!("and {} more: {others}{}{}", hidden.len(), larger(hidden), insufficient(hidden));
        out.push_str(&canvas.wrapped("     ", DIM, &text));
    }
}

/// The memory that a run on a larger GPU used.
fn larger(fixes: &[ExplainFix]) -> String {
    let confirmed = fixes.iter().filter(|fix| fix.card.is_some() && fix.enough == Some(true));
    let used = confirmed.filter_map(|fix| fix.proof).map(|proof| proof.peak.device_upper).next();
    used.map_or_else(String::new, |bytes| format!("; a run on a larger GPU used at most {}", size(bytes)))
}

/// The remedies with which runs also ran out of memory.
fn insufficient(fixes: &[ExplainFix]) -> String {
    let ran_out = |fix: &&ExplainFix| fix.proof.is_some_and(|proof| proof.verdict == Verdict::Oom);
    let name = |fix: &ExplainFix| match fix.card {
        Some(bytes) => format!("a GPU with {}", size(bytes)),
        None => fix.lever.to_string(),
    };
    let names: Vec<_> = fixes.iter().filter(ran_out).map(name).collect();
    match names.as_slice() {
        [] => String::new(),
        [name] => format!("; a run with {name} also ran out of memory"),
        [first @ .., last] => format!("; runs with {} and {last} also ran out of memory", first.join(", ")),
    }
}

/// The changed lines of a unified diff, by the line of the file where they are.
fn places(diff: &str) -> Vec<(u32, Vec<&str>)> {
    let mut places: Vec<(u32, Vec<&str>)> = Vec::new();
    let (mut line, mut inside) = (0, false);
    for text in diff.lines().skip(2) {
        if let Some(ranges) = text.strip_prefix("@@ -") {
            line = ranges.split([',', ' ']).next().and_then(|start| start.parse().ok()).unwrap_or(0);
            inside = false;
        } else if text.starts_with(['+', '-']) {
            match places.last_mut().filter(|_| inside) {
                Some((_, changed)) => changed.push(text),
                None => places.push((line, vec![text])),
            }
            line += u32::from(text.starts_with('-'));
            inside = true;
        } else {
            line += 1;
            inside = false;
        }
    }
    places
}

/// Result of the run that tried a remedy.
fn proven(proof: &FixProof) -> String {
    let device = size(proof.peak.device_upper);
    let completed = || match proof.steps {
        0 => format!("a run with it used at most {device}"),
        1 => format!("a run with it completed a step and used at most {device}"),
        steps => format!("a run with it completed {} steps and used at most {device}", count(steps)),
    };
    match proof.verdict {
        Verdict::Fits => completed(),
        Verdict::Oom => format!("a run with it also ran out of memory, in step {}", count(proof.steps + 1)),
        Verdict::Unknown => format!("{}; it is not certain that it fits", completed()),
        Verdict::Error => "a run with it failed for another reason".to_owned(),
    }
}

fn tree(out: &mut String, holders: &[ExplainHolder], canvas: Canvas) {
    let room = canvas.columns().saturating_sub(SIZE + 10);
    for category in holders.iter().take(MAX_BRANCHES + 4) {
        let _ =
            writeln!(out, "  {:>SIZE$}  {}", size(category.bytes), paint(BOLD, &one_line(&category.name)));
        // Modules and lines together, largest first: most trees are wide and flat.
        let mut leaves: Vec<(u64, String)> = category
            .children
            .iter()
            .flat_map(|module| {
                module.children.iter().map(move |line| {
                    let known = |name: &str| !name.starts_with('(');
                    let place = from_here(&line.name);
                    let name = match (known(&module.name), known(&line.name)) {
                        (true, true) => format!("{}  {place}", module_name(&module.name)),
                        (true, false) => module_name(&module.name),
                        _ => place.to_owned(),
                    };
                    (line.bytes, name)
                })
            })
            .collect();
        leaves.sort_by(|one, other| other.cmp(one));
        let is_known = |name: &str| !name.starts_with('(');
        let (mut shown, mut others): (Vec<_>, Vec<_>) = {
            let mut left = MAX_LEAVES;
            leaves.into_iter().partition(|(bytes, name)| {
                let show = left > 0 && is_known(name) && *bytes * 50 >= category.bytes;
                left -= usize::from(show);
                show
            })
        };
        // A single one needs no more room by its name.
        if others.len() == 1 && is_known(&others[0].1) {
            shown.append(&mut others);
        }
        for (bytes, name) in &shown {
            let _ = writeln!(
                out,
                "  {:>SIZE$}    {:>SIZE$}  {}",
                "",
                size(*bytes),
                paint(DIM, &canvas.shortened(name, room.saturating_sub(SIZE)))
            );
        }
        // The lines of a category add up to it, however small they are.
        let rest: u64 = others.iter().map(|(bytes, _)| bytes).sum();
        if rest > 0 && (!shown.is_empty() || others.iter().any(|(_, name)| is_known(name))) {
            let what = match others.len() {
                _ if !others.iter().any(|(_, name)| is_known(name)) => "of unknown origin".to_owned(),
                places => format!("in {places} other places"),
            };
            let _ = writeln!(out, "  {:>SIZE$}    {:>SIZE$}  {}", "", size(rest), paint(DIM, &what));
        }
    }
}

#[cfg(test)]
mod tests {
    use memfit_vocabulary::Label;

    use super::*;
    use crate::wire::{ExplainEnvironment, Peak};

    #[test]
    fn the_places_of_a_category_add_up_to_it() {
        let line = |name: String, bytes| ExplainHolder { name, bytes, blocks: 1, children: Vec::new() };
        let module = |number: u32, bytes: u64| ExplainHolder {
            name: format!("layers.{number}"),
            bytes,
            blocks: 1,
            children: vec![line(format!("train.py:{number}"), bytes)],
        };
        let told = |small: u32| {
            let children: Vec<_> = (0..=small)
                .map(|number| module(number, if number == 0 { 40 << 20 } else { 1 << 20 }))
                .collect();
            let bytes = children.iter().map(|each| each.bytes).sum();
            let mut out = String::new();
            tree(
                &mut out,
                &[ExplainHolder { name: "gradients".to_owned(), bytes, blocks: 1, children }],
                Canvas { width: 80, unicode: true },
            );
            out
        };
        let sixty = told(60);
        assert!(sixty.contains("60.0 MiB") && sixty.contains("in 60 other places"), "{sixty}");
        // A single one is named.
        let one = told(1);
        assert!(one.contains("layers.1") && !one.contains("other places"), "{one}");
    }

    #[test]
    fn a_failed_run_is_told_once() {
        let peak = Peak::default();
        let failed = |environment: Option<ExplainEnvironment>| ExplainFix {
            lever: Lever::ActivationOffload,
            saves: 1,
            label: Label::Exact,
            how: "offload; a run with it ended with RuntimeError: view".to_owned(),
            evidence: Proof::Modelled,
            enough: None,
            environment,
            edit: None,
            card: None,
            proof: Some(FixProof { verdict: Verdict::Error, steps: 0, peak }),
        };
        let told = |fix: ExplainFix| {
            let mut out = String::new();
            fixes(&mut out, &[fix], 1, "", |_| None, Canvas { width: 120, unicode: true });
            out.contains("a run with it failed for another reason")
        };
        let setting = ExplainEnvironment { name: "A".to_owned(), value: "1".to_owned() };
        assert!(!told(failed(None)));
        assert!(told(failed(Some(setting))));
    }

    #[test]
    fn a_remedy_that_leaves_little_is_barely_enough() {
        const GIB: u64 = 1 << 30;
        let cases = [
            (24 * GIB, GIB - 1, true),
            (24 * GIB, GIB, false),
            (8 * GIB, GIB / 2 - 1, true),
            (8 * GIB, GIB / 2, false),
            (100 * GIB, 2 * GIB - 1, true),
            (100 * GIB, 2 * GIB, false),
            (24 * GIB, 0, true),
        ];
        for (available, left, is_little) in cases {
            let expected = is_little.then_some(left);
            assert_eq!(little_left(available - left, Some(available)), expected, "{left} of {available}");
        }
        assert_eq!(little_left(25 * GIB, Some(24 * GIB)), None, "more than there is");
        assert_eq!(little_left(99, None), None);
        let fix = ExplainFix {
            lever: Lever::Checkpointing,
            saves: 1,
            label: Label::Exact,
            how: "checkpoint".to_owned(),
            evidence: Proof::Run,
            enough: Some(true),
            environment: None,
            edit: None,
            card: None,
            proof: Some(FixProof { verdict: Verdict::Fits, steps: 3, peak: Peak::default() }),
        };
        for (left, told) in [
            (Some(204 << 20), "barely enough: a run with it left 204 MiB"),
            (None, "enough: confirmed by a run"),
        ] {
            let mut out = String::new();
            let canvas = Canvas { width: 120, unicode: true };
            fixes(&mut out, std::slice::from_ref(&fix), 1, "", |_| left, canvas);
            assert!(out.contains(told), "{out}");
        }
    }

    #[test]
    fn the_headline_agrees_with_the_list_of_what_grows() {
        let told = |per_step: u64, limit: Option<u64>| {
            let leak = memfit_explain::LeakFacts {
                line: None,
                module: None,
                category: memfit_vocabulary::Category::Activations,
                per_step,
                bytes: 3 * per_step,
                steps: 3,
                dies_at: None,
            };
            let mut explanation = memfit_explain::Explanation::without_events(0);
            (explanation.moment.allocated, explanation.moment.reserved) = (9 << 30, 10 << 30);
            (explanation.moment.step, explanation.moment.limit) = (3, limit);
            explanation.leaks = vec![leak];
            let report = ExplainReport::new("run.memfit".to_owned(), explanation, Vec::new());
            explain(&report, Canvas { width: 120, unicode: true })
        };
        // 4 bytes of a loss, in a block of 512: 5 MiB in ten thousand steps.
        for limit in [None, Some(24 << 30)] {
            let text = told(512, limit);
            assert!(text.contains("and no memory growth") && !text.contains("What grows"), "{text}");
            let text = told(4 << 20, limit);
            assert!(text.contains("memory grows slowly") && text.contains("What grows"), "{text}");
        }
    }

    #[test]
    fn a_line_outside_of_functions_names_none() {
        for (function, told) in [("", "train.py:3"), ("<module>", "train.py:3"), ("fit", "train.py:3 in fit")]
        {
            let line =
                CodeLine { file: "train.py".to_owned(), line: 3, function: function.to_owned(), text: None };
            assert_eq!(in_function(&line), told);
        }
    }
}
