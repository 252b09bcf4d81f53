//! Text output of `memfit run`: the verdict, what filled the GPU, what the run covered, and what to do next.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use memfit_devices::Origin;
use memfit_explain::Release;
use memfit_vocabulary::{Category, Phase, Remark, installed_path, is_user_file};

use super::assumed;
use super::canvas::{ADVICE, BAD, BOLD, Canvas, DIM, DOUBT, GOOD, paint};
use super::coverage::{coverable, covered, not_covered, not_run, steps, what_ran};
use super::explain::{CLOSE_FIT, little_left};
use super::growth::Growth;
use super::modules;
use super::moment::{evaluation, forward_pass, in_phase, moment};
use super::several;
use super::{from_here, milliseconds, signed_size, size, times};
use crate::wire::{CardKind, Coverage, FixProof, PeakEnd, RunReport, Time, Verdict};

/// Maximum remedies.
const MAX_FIXES: usize = 3;
/// Maximum frames of a stack.
const MAX_FRAMES: usize = 4;
/// Width of the column of names.
const LABEL: usize = 14;
/// Width of the column of sizes.
const SIZE: usize = 11;

/// The report of a run.
pub fn run(report: &RunReport, canvas: Canvas) -> String {
    let mut out = String::new();
    headline(&mut out, report, canvas);
    if let Some(oom) = report.oom.as_ref() {
        out.push('\n');
        if report.verdict != Verdict::Oom {
            let what = format!(
                "It ran out of memory in {}{}:",
                moment(oom.step, oom.phase, oom.module.as_deref()),
                if oom.caught { " and recovered" } else { "" }
            );
            out.push_str(&canvas.wrapped("  ", Style::new(), &what));
        }
        stack(&mut out, &oom.stack, canvas);
    }
    if report.peak.device > 0 && (!failed(report) || report.steps > 0) {
        out.push('\n');
        if failed(report) {
            let what = format!("What filled the GPU in the {} before that:", steps(&report.coverage));
            out.push_str(&canvas.wrapped("  ", BOLD, &what));
        } else if report.verdict == Verdict::Oom {
            out.push_str(&canvas.wrapped("  ", BOLD, "At the peak, before the request that failed:"));
        }
        card(&mut out, report, canvas);
        modules::largest(&mut out, report.at_peak.as_ref(), LABEL + SIZE, canvas);
        remedies(&mut out, report, canvas);
        out.push('\n');
        facts(&mut out, report, canvas);
    } else {
        remedies(&mut out, report, canvas);
    }
    for line in warnings(report) {
        out.push_str(&canvas.wrapped("note: ", DOUBT, &line));
    }
    let advice = advice(report);
    if !advice.is_empty() {
        out.push('\n');
        for line in advice {
            out.push_str(&canvas.wrapped("next: ", ADVICE, &line));
        }
    }
    out
}

/// Frames of a stack: the user's own, then those of libraries under a heading.
fn stack(out: &mut String, frames: &[String], canvas: Canvas) {
    let mut in_library = false;
    for (index, frame) in frames.iter().take(MAX_FRAMES).enumerate() {
        if !in_library && is_library(frame) {
            in_library = true;
            if index > 0 {
                let _ = writeln!(out, "    {}", paint(DIM, "which called libraries, innermost first:"));
            }
        }
        // The folder of installed packages says little and takes much room.
        let frame = installed_path(frame).filter(|_| in_library).unwrap_or_else(|| from_here(frame));
        let line = canvas.shortened(&format!("at {frame}"), canvas.columns() - 4);
        let _ = writeln!(out, "    {}", paint(DIM, &line));
    }
}

/// Returns `true` if a frame belongs to Python or to an installed package.
fn is_library(frame: &str) -> bool {
    let file = frame.rsplit_once(':').map_or(frame, |(file, _)| file);
    !is_user_file(file)
}

/// Reason why memory ran out, and remedies.
fn remedies(out: &mut String, report: &RunReport, canvas: Canvas) {
    let Some(cause) = report.cause.filter(|_| report.verdict == Verdict::Oom) else { return };
    out.push('\n');
    let sentence = super::explain::sentence(cause);
    out.push_str(&canvas.wrapped(
        "  Cause: ",
        BOLD,
        &format!("{sentence} (more: `memfit explain --cause {cause}`)"),
    ));
    if !report.fixes.is_empty() {
        let _ = writeln!(out, "\n  {}", paint(BOLD, super::explain::REMEDIES));
        let others = match &report.recording {
            Some(recording) => format!("`memfit explain {recording}`"),
            None => "`memfit explain` shows them for a recording (`-o run.memfit`)".to_owned(),
        };
        let left = |proof: &FixProof| little_left(proof.peak.device_upper, Some(report.device.capacity));
        super::explain::fixes(out, &report.fixes, MAX_FIXES, &others, left, canvas);
    }
}

/// Returns `true` if the script failed for a reason other than memory.
fn failed(report: &RunReport) -> bool {
    let script = &report.script;
    let ended = script.exception.is_some() || script.exit_status.is_some() || script.signal.is_some();
    report.verdict == Verdict::Error && ended
}

/// Returns `true` if a lever of the plan was not applied.
fn refuses_lever(report: &RunReport) -> bool {
    report.fidelity.effects.iter().any(|effect| effect.id == Remark::LeverRefused.id())
}

fn headline(out: &mut String, report: &RunReport, canvas: Canvas) {
    let place = place(report);
    let (style, badge, sentence) = match report.verdict {
        Verdict::Fits => {
            let used = match report.peak.device_upper {
                0 => String::new(),
                upper => format!(": at most {} used{}", size(upper), several::on_fullest(report)),
            };
            let growing = Growth::of_run(report)
                .map_or_else(String::new, |growth| format!(", but {}", growth.in_words()));
            let style = if growing.is_empty() { GOOD } else { DOUBT };
            let plan = match &report.plan {
                Some(_) if refuses_lever(report) => "with a part of the plan, ",
                Some(_) => "with the plan, ",
                None => "",
            };
            (style, "FITS", format!("{plan}for {}, on {place}{used}{growing}", what_ran(&report.coverage)))
        }
        Verdict::Oom => {
            let sentence = report.oom.as_ref().map_or_else(
                || format!("on {place}"),
                |oom| {
                    let moment = match report.coverage {
                        Coverage { forward_only: true, steps, .. } if oom.phase == Phase::Forward => {
                            forward_pass(steps + 1, oom.module.as_deref())
                        }
                        _ if oom.evaluation && oom.step > 1 => {
                            evaluation(oom.step - 1, oom.module.as_deref())
                        }
                        _ => moment(oom.step, oom.phase, oom.module.as_deref()),
                    };
                    format!("on {place}, in {moment}: {} more were requested", size(oom.requested))
                },
            );
            (BAD, "OUT OF MEMORY", sentence)
        }
        Verdict::Unknown => (DOUBT, "CANNOT TELL", format!("whether it fits on {place}")),
        Verdict::Error => (BAD, "NO ANSWER", format!("for {place}")),
    };
    out.push_str(&canvas.wrapped(&format!("{badge}  "), style, &sentence));
    if let Some(problem) = &report.problem {
        out.push('\n');
        out.push_str(&canvas.problem(problem));
    }
}

fn place(report: &RunReport) -> String {
    let device = &report.device;
    let kind = match device.kind {
        CardKind::Virtual => "virtual",
        CardKind::Real => "real",
    };
    let name = device.name.strip_prefix("NVIDIA ").unwrap_or(&device.name);
    let capacity = match device.capacity {
        0 => String::new(),
        capacity => format!(" ({})", size(capacity)),
    };
    match device.count {
        0 | 1 => format!("a {kind} {name}{capacity}"),
        count if several::is_one_used(report) => format!("one of {count} {kind} {name}{capacity}"),
        count => format!("{count} {kind} {name}{capacity}"),
    }
}

/// Bars that together fill the GPU: each begins where the one above it ends.
fn card(out: &mut String, report: &RunReport, canvas: Canvas) {
    let capacity = report.device.capacity;
    let cells = (canvas.columns() - 2 - LABEL - SIZE - 2 - 6).min(72);
    let mut at = 0_u64;
    let mut row = |label: &str, bytes: u64, style: Style| {
        let end = at.saturating_add(bytes);
        let bar = canvas.bar(at, end, capacity, cells);
        let pad = " ".repeat(cells - bar.chars().count());
        let percent = percent(bytes, capacity);
        let _ =
            writeln!(out, "  {label:<LABEL$}{:>SIZE$}  {}{pad}{percent:>6}", size(bytes), paint(style, &bar));
        at = end;
    };
    let mut shown = 0;
    if let Some(peak) = &report.at_peak {
        for (category, bytes) in peak.by_category.by_size() {
            row(category.name(), bytes, colour(category));
        }
        shown = peak.by_category.total();
    }
    // The device peak may have occurred at another time than the peak of the tensors.
    match report.peak.reserved.saturating_sub(shown) {
        0 => {}
        rest if shown == 0 => row("reserved", rest, AnsiColor::Blue.on_default()),
        rest => row("other moments", rest, AnsiColor::BrightBlack.on_default()),
    }
    row("non-PyTorch", report.outside.total(), AnsiColor::White.on_default());
    let bound = report.peak.device_upper.saturating_sub(report.peak.device);
    if bound > 0 {
        row("uncertain", bound, AnsiColor::BrightBlack.on_default());
    }
    let rule = if canvas.unicode { "─" } else { "-" };
    let _ = writeln!(out, "  {}", paint(DIM, &rule.repeat(LABEL + SIZE + 2 + cells + 6)));
    let style = match report.verdict {
        Verdict::Fits => GOOD,
        Verdict::Oom => BAD,
        Verdict::Unknown | Verdict::Error => DOUBT,
    };
    let left = u64::try_from(report.headroom).unwrap_or(0);
    // A run that ran out of memory has no headroom: its peak is that of the steps before the failed request.
    let label = if report.verdict == Verdict::Oom { "left" } else { "headroom" };
    let headroom = format!("{label:<LABEL$}{:>SIZE$}", signed_size(report.headroom));
    let scale = format!("of {}", size(capacity));
    let _ = writeln!(
        out,
        "  {}  {}{:>6}",
        paint(style, &headroom),
        paint(DIM, &format!("{scale:<cells$}")),
        percent(left, capacity)
    );
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return String::new();
    }
    let percent = part as f64 * 100.0 / whole as f64;
    match percent {
        0.0 => "0 %".to_owned(),
        p if p < 0.05 => "<0.1 %".to_owned(),
        p if p < 0.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

fn colour(category: Category) -> Style {
    match category {
        Category::Parameters => AnsiColor::Blue.on_default(),
        Category::Gradients => AnsiColor::Cyan.on_default(),
        Category::Optimizer => AnsiColor::Magenta.on_default(),
        Category::Activations => AnsiColor::Yellow.on_default(),
        Category::Inputs => AnsiColor::Green.on_default(),
        Category::Buffers => AnsiColor::BrightBlue.on_default(),
        Category::Workspace => AnsiColor::BrightMagenta.on_default(),
        Category::Temporary => AnsiColor::BrightYellow.on_default(),
        Category::Unknown | Category::Rounding => AnsiColor::BrightBlack.on_default(),
        Category::Fragmentation => AnsiColor::Red.on_default(),
    }
}

fn facts(out: &mut String, report: &RunReport, canvas: Canvas) {
    let dot = canvas.dot();
    let mut fact = |label: &str, text: &str| {
        out.push_str(&canvas.wrapped(&format!("  {label:<LABEL$}"), DIM, text));
    };
    let peak = &report.peak;
    fact(
        "peaks",
        &format!(
            "allocated {}{dot}reserved {}{dot}device {}, at most {}",
            size(peak.allocated),
            size(peak.reserved),
            size(peak.device),
            size(peak.device_upper)
        ),
    );
    if let Some(interval) = &report.peak_interval {
        let end = |end: &PeakEnd| match (end.out_of_memory, end.completed) {
            (true, _) => "out of memory".to_owned(),
            (false, true) => size(end.peak.device_upper),
            (false, false) => "the script fails".to_owned(),
        };
        let (lower, upper) = (end(&interval.lower), end(&interval.upper));
        let text = if lower == upper {
            format!("{lower} with computed sizes at either bound")
        } else {
            format!("with computed sizes at their lower bound: {lower}{dot}at their upper bound: {upper}")
        };
        fact("interval", &text);
    }
    if let Some(at) = &report.at_peak {
        let mut instant = if report.coverage.forward_only {
            in_phase(at.phase).to_owned()
        } else {
            moment(at.step, at.phase, None)
        };
        if at.allocated != peak.allocated {
            let _ = write!(instant, ": {} allocated", size(at.allocated));
        }
        fact("peak in", &instant);
    }
    let parts = outside(report);
    if !parts.is_empty() {
        let more = match peak.device_upper.saturating_sub(peak.device) {
            0 => String::new(),
            bound => format!("; together at most {} more", size(bound)),
        };
        fact("non-PyTorch", &(parts.join(dot) + &more));
    }
    if report.ranks.len() > 1 {
        let fullest: Vec<_> =
            report.ranks.iter().map(|rank| format!("{}: {}", rank.rank, size(rank.peak.device))).collect();
        fact("ranks", &fullest.join(dot));
    }
    if let Some(peaks) = several::peaks(report) {
        fact("GPUs", &peaks.join(dot));
    }
    let host = &report.host;
    let mut parts = vec![format!("{} resident", size(host.rss))];
    if host.pinned > 0 {
        parts.push(format!("{} pinned", size(host.pinned)));
    }
    if host.shared_memory > 0 {
        parts.push(format!("{} in /dev/shm", size(host.shared_memory)));
    }
    fact("host", &parts.join(dot));
    if let Some(plan) = &report.plan {
        fact("plan", plan);
    }
    fact("covered", &covered(report));
    if let Some(missing) = not_covered(&report.coverage) {
        fact("not covered", &missing);
    }
    for (index, line) in not_run(&report.coverage).iter().enumerate() {
        fact(if index == 0 { "not run" } else { "" }, line);
    }
    let refused = report.fidelity.unmodelled.iter();
    let refused: Vec<_> = refused.map(|call| format!("{} ({})", call.call, times(call.count))).collect();
    if !refused.is_empty() {
        fact("not modelled", &refused.join(dot));
    }
    for value in &report.fidelity.values {
        fact("assumed", &assumed::value(value));
    }
    if let Some(result) = assumed::tested(&report.fidelity) {
        fact("tested", &result);
    }
    // Modelled parts are already marked next to their figures.
    for remark in report.fidelity.remarks().filter(|remark| remark.id != Remark::Outside.id()) {
        match remark.bytes.filter(|bytes| *bytes > 0) {
            Some(bytes) => fact("note", &format!("{}: at most {}", remark.what, size(bytes))),
            None => fact("note", &remark.what),
        }
    }
    if let Some(path) = &report.recording {
        fact("recording", path);
    }
    if let Some(step) = step(&report.time, dot) {
        fact(if report.coverage.forward_only { "pass time" } else { "step time" }, &step);
    }
    let torch = report.torch.as_ref().map(|torch| format!("torch {torch}{dot}")).unwrap_or_default();
    let python =
        report.script.interpreter.as_ref().map(|python| format!("{python}{dot}")).unwrap_or_default();
    let seconds = report.time.wall_s;
    // Further runs (other assumed values, remedies) are not included.
    fact("ran with", &format!("{python}{torch}{seconds:.1} s for the first run"));
}

/// Each part of the memory outside the allocator: typical size, interval and origin.
fn outside(report: &RunReport) -> Vec<String> {
    let outside = &report.outside;
    let part = |name: &str| report.outside_parts.iter().find(|part| part.name == name);
    // In a virtual GPU, what is counted may also be the process's own.
    let is_counted = report.device.kind == CardKind::Virtual
        && part("other_processes").is_some_and(|part| part.origin == Origin::Counted);
    let others = if is_counted { "other memory" } else { "other processes" };
    let fields = [
        ("context", "CUDA context", outside.context),
        ("libraries", "libraries", outside.libraries),
        ("communication", "communication", outside.communication),
        ("other_processes", others, outside.other_processes),
    ];
    let range = |name: &str| {
        let part = part(name)?;
        Some(match (part.low == part.high, part.origin.name()) {
            (true, origin) => format!(" ({origin})"),
            (false, origin) => format!(" ({} to {}, {origin})", size(part.low), size(part.high)),
        })
    };
    fields
        .into_iter()
        .filter(|(_, _, bytes)| *bytes > 0)
        .map(|(name, label, bytes)| format!("{label} {}{}", size(bytes), range(name).unwrap_or_default()))
        .collect()
}

/// Time of a step, and the kinds of work that it consists of.
fn step(time: &Time, dot: &str) -> Option<String> {
    let mut text = format!("about {}", milliseconds(time.step_ms_estimate?));
    if let (Some(low), Some(high)) = (time.step_ms_low, time.step_ms_high) {
        let _ = write!(text, " ({} to {})", milliseconds(low), milliseconds(high));
    }
    let total: f64 = time.busy_ms.values().sum();
    let mut kinds: Vec<_> = time.busy_ms.iter().filter(|(_, length)| **length > 0.01 * total).collect();
    kinds.sort_by(|a, b| b.1.total_cmp(a.1));
    for (kind, length) in kinds {
        let what = match kind.as_str() {
            "matmul" => "matrix products",
            "convolution" => "convolutions",
            "attention" => "attention",
            "memory" => "memory-bound kernels",
            "guess" => "unknown kernels (guessed)",
            "transfer" => "copies",
            "communication" => "communication",
            other => other,
        };
        let _ = write!(text, "{dot}{what} {:.0} %", 100.0 * length / total);
    }
    if time.step_ms_estimate.is_some_and(|estimate| estimate < SMALL_STEP_MS) {
        text.push_str(
            "; most of such a short step is likely Python's own time, which `--host-time measured` counts",
        );
    }
    Some(text)
}

/// Step time below which the Python code of the training loop and its libraries matters: it takes
/// milliseconds per step.
const SMALL_STEP_MS: f64 = 5.0;

/// Reasons why a script that fits here may still run out of memory.
fn warnings(report: &RunReport) -> Vec<String> {
    let mut warnings = Vec::new();
    if report.verdict != Verdict::Fits {
        return warnings;
    }
    if report.oom.as_ref().is_some_and(|oom| oom.caught) {
        warnings.push(
            "the script caught an out-of-memory error: the peaks are those of what it did then, such as a smaller batch"
                .to_owned(),
        );
    }
    if let Some(left) = little_left(report.peak.device_upper, Some(report.device.capacity)) {
        warnings.push(format!("only {} of the GPU is left. {CLOSE_FIT}", size(left)));
    }
    warnings
}

/// Next steps for the user, most useful first.
fn advice(report: &RunReport) -> Vec<String> {
    match report.verdict {
        Verdict::Fits => advice_when_it_fits(report),
        Verdict::Oom => advice_when_out_of_memory(report),
        Verdict::Unknown | Verdict::Error => Vec::new(),
    }
}

fn advice_when_it_fits(report: &RunReport) -> Vec<String> {
    let mut advice = Vec::new();
    let coverage = &report.coverage;
    if let Some(growth) = Growth::of_run(report) {
        if growth.once {
            advice.push("`--steps 10` shows whether memory goes on growing".to_owned());
        }
        advice.push(match &report.recording {
            Some(recording) => format!("`memfit explain {recording}` names the line that keeps the memory"),
            None => "`-o run.memfit` saves a recording, and `memfit explain run.memfit` names the line that keeps the memory".to_owned(),
        });
    }
    let full = report.fidelity.remarks().any(|remark| remark.id == Remark::NotCovered.id());
    if let Some(parts) = coverable(coverage).filter(|_| !full) {
        advice.push(format!("`--cover full` also runs {parts}, if the script has them"));
    }
    if !coverage.not_run.is_empty() {
        advice.push(
            "`--steps 0` runs the script to its end, and with it what has not run yet; fewer epochs in the script's own settings make that shorter".to_owned(),
        );
    }
    advice
}

fn advice_when_out_of_memory(report: &RunReport) -> Vec<String> {
    if !report.fixes.is_empty() {
        let explain = match &report.recording {
            Some(recording) => format!("`memfit explain {recording}` shows which lines hold the memory"),
            None => "`-o run.memfit` saves a recording; `memfit explain run.memfit` then shows which lines hold the memory".to_owned(),
        };
        let plan = "`memfit plan`, with the same GPU and command, searches for the fastest combination of changes that fits";
        return vec![explain, plan.to_owned()];
    }
    let Some(peak) = &report.at_peak else {
        return vec!["use a smaller batch, or a larger GPU (`memfit gpus`)".to_owned()];
    };
    let total = peak.by_category.total().max(1);
    let share = |category: Category| peak.by_category.get(category) as f64 / total as f64;
    let state = share(Category::Parameters) + share(Category::Gradients) + share(Category::Optimizer);
    let mut advice = Vec::new();
    if share(Category::Activations) + share(Category::Temporary) + share(Category::Inputs) > 0.3 {
        advice.push(
            "activations grow with the batch: gradient accumulation over smaller batches, autocast to bf16, or activation checkpointing (`torch.utils.checkpoint`) reduces them".to_owned(),
        );
    }
    if state > 0.5 {
        advice.push(
            "parameters, gradients and optimizer state do not depend on the batch: an optimizer with less state, or sharding over several GPUs (FSDP), reduces them".to_owned(),
        );
    }
    if share(Category::Fragmentation) > 0.1 {
        let release = report.torch.as_ref().and_then(|torch| torch.parse().ok()).unwrap_or(Release::NEWEST);
        advice.push(format!(
            "much memory is reserved but unallocated: try `{}=expandable_segments:True`",
            release.settings_variable()
        ));
    }
    advice.push(
        "`memfit run --gpu NAME` with a larger GPU (`memfit gpus`), or with `--memory SIZE`, shows how much it needs"
            .to_owned(),
    );
    advice
}
