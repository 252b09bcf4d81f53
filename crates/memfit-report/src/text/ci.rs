//! Text output of `memfit ci`.

use std::fmt::Write as _;

use anstyle::Style;
use memfit_vocabulary::Category;

use super::canvas::{ADVICE, BAD, BOLD, Canvas, DIM, DOUBT, GOOD, paint};
use super::{milliseconds, signed_size, size};
use crate::wire::{CiLine, CiModule, CiReport, CiRow, CiSide, CiVerdict};

/// Maximum lines and modules shown for a row.
const MAX_SHOWN: usize = 5;
/// Reciprocal of the share of a row's growth below which changes are not shown.
const SHARE_DIVISOR: u64 = 50;

/// The report of `memfit ci`.
pub fn ci(report: &CiReport, canvas: Canvas) -> String {
    let mut out = String::new();
    headline(&mut out, report, canvas);
    if let Some(problem) = &report.problem {
        out.push_str(&canvas.problem(problem));
        return out;
    }
    out.push('\n');
    let widths = Widths::new(report);
    let head = format!(
        "  {:<script$}  {:<gpu$}  {:>10}  {:>10}  growth",
        "script",
        "GPU",
        "base",
        "now",
        script = widths.script,
        gpu = widths.gpu
    );
    let _ = writeln!(out, "{}", paint(BOLD, &head));
    for row in &report.rows {
        row_line(&mut out, report, row, &widths, canvas);
        details(&mut out, row, canvas);
    }
    let next = next(report);
    if !report.notes.is_empty() || next.is_some() {
        out.push('\n');
    }
    for note in &report.notes {
        out.push_str(&canvas.wrapped("note: ", DIM, note));
    }
    for file in &report.accepted {
        out.push_str(&canvas.wrapped("wrote: ", DIM, file));
    }
    if let Some(next) = next {
        out.push_str(&canvas.wrapped("next: ", ADVICE, &next));
    }
    out
}

fn headline(out: &mut String, report: &CiReport, canvas: Canvas) {
    let (style, head) = match worst(report) {
        None => (DOUBT, "NO ANSWER"),
        Some(CiVerdict::Grew) => (BAD, "MEMORY GREW"),
        Some(CiVerdict::Failed) => (DOUBT, "NO ANSWER for some scripts"),
        Some(CiVerdict::New) => (GOOD, "NEW SCRIPTS"),
        Some(CiVerdict::Shrank) => (GOOD, "MEMORY SHRANK"),
        Some(CiVerdict::Same) => (GOOD, "MEMORY IS THE SAME"),
    };
    let described = format!("  {}", against(report, canvas.dot()));
    let _ = writeln!(out, "{}{}", paint(style, head), paint(DIM, &described));
}

/// Describes the two sides of a comparison.
pub(crate) fn against(report: &CiReport, dot: &str) -> String {
    let what = match &report.base {
        Some(base) if base.commit.starts_with(&base.reference) => {
            format!("compared with {}", short(&base.commit))
        }
        Some(base) => format!("compared with {} ({})", base.reference, short(&base.commit)),
        None => "compared with the committed baselines".to_owned(),
    };
    format!("{what}{dot}{} peak", report.peak)
}

fn short(commit: &str) -> &str {
    commit.get(..10).unwrap_or(commit)
}

/// The overall verdict: growth takes precedence over failures, and failures over everything else.
pub(crate) fn worst(report: &CiReport) -> Option<CiVerdict> {
    let has = |verdict| report.rows.iter().any(|row| row.verdict == verdict);
    [CiVerdict::Grew, CiVerdict::Failed, CiVerdict::New, CiVerdict::Shrank, CiVerdict::Same]
        .into_iter()
        .find(|verdict| has(*verdict))
}

struct Widths {
    script: usize,
    gpu: usize,
}

impl Widths {
    fn new(report: &CiReport) -> Self {
        let widest = |of: fn(&CiRow) -> &str, least: usize| {
            report.rows.iter().map(|row| of(row).chars().count()).max().unwrap_or(0).max(least)
        };
        Self { script: widest(|row| &row.script, 6), gpu: widest(|row| &row.gpu, 3) }
    }
}

fn row_line(out: &mut String, report: &CiReport, row: &CiRow, widths: &Widths, canvas: Canvas) {
    let (style, mark, plain) = match row.verdict {
        CiVerdict::Grew => (BAD, "✗", "-"),
        CiVerdict::Failed => (DOUBT, "?", "?"),
        CiVerdict::New => (DOUBT, "•", "*"),
        CiVerdict::Shrank | CiVerdict::Same => (GOOD, "✓", "+"),
    };
    let judged =
        |side: &Option<CiSide>| side.as_ref().map(|side| size(judged(report, side))).unwrap_or_default();
    let line = format!(
        "{:<script$}  {:<gpu$}  {:>10}  {:>10}  {}",
        row.script,
        row.gpu,
        judged(&row.base),
        judged(&row.head),
        growth(report, row),
        script = widths.script,
        gpu = widths.gpu
    );
    let _ = writeln!(out, "{} {}", paint(style, if canvas.unicode { mark } else { plain }), line.trim_end());
}

/// The peak of a side that is compared.
pub(crate) fn judged(report: &CiReport, side: &CiSide) -> u64 {
    match report.peak.as_str() {
        "allocated" => side.peak.allocated,
        "reserved" => side.peak.reserved,
        _ => side.peak.device,
    }
}

/// The growth of a row as text.
pub(crate) fn growth(report: &CiReport, row: &CiRow) -> String {
    match (row.verdict, row.growth, &row.base) {
        (CiVerdict::Same, Some(0), _) => "none".to_owned(),
        (_, Some(bytes), Some(base)) => {
            let before = judged(report, base);
            let share = if before > 0 { bytes as f64 / before as f64 * 100.0 } else { 0.0 };
            let limit = match row.verdict {
                CiVerdict::Grew => format!("; {} is permitted", row.max_growth),
                _ => String::new(),
            };
            format!("{} ({share:+.1} %{limit})", plus(bytes))
        }
        (CiVerdict::New, ..) if report.base.is_some() => "new: the base has no such script".to_owned(),
        (CiVerdict::New, ..) => "new: there is no baseline".to_owned(),
        _ => "no answer".to_owned(),
    }
}

/// A size with its sign.
pub(crate) fn plus(bytes: i64) -> String {
    let sign = if bytes > 0 { "+" } else { "" };
    format!("{sign}{}", signed_size(bytes))
}

/// The lines and modules that explain a row's growth: those that changed in the same direction.
pub(crate) fn explaining(row: &CiRow) -> (Vec<&CiLine>, Vec<&CiModule>) {
    let (CiVerdict::Grew | CiVerdict::Shrank, Some(growth)) = (row.verdict, row.growth) else {
        return (Vec::new(), Vec::new());
    };
    let counts = |change: i64| {
        change.signum() == growth.signum() && change.unsigned_abs() >= growth.unsigned_abs() / SHARE_DIVISOR
    };
    (
        row.lines.iter().filter(|line| counts(line.growth)).take(MAX_SHOWN).collect(),
        row.modules.iter().filter(|module| counts(module.growth)).take(MAX_SHOWN).collect(),
    )
}

/// Describes the memory that a line holds.
pub(crate) fn holds(line: &CiLine) -> String {
    let what = if line.category == Category::Unknown.name() { "tensors" } else { &line.category };
    match &line.module {
        Some(module) => format!("{what}, the largest part in {module}"),
        None => what.to_owned(),
    }
}

fn details(out: &mut String, row: &CiRow, canvas: Canvas) {
    let (lines, modules) = explaining(row);
    for line in &lines {
        let place = format!("{}:{} in {}", line.file, line.line, line.function);
        let text = format!("{} {place}: {}", plus(line.growth), holds(line));
        out.push_str(&canvas.wrapped("    ", Style::new(), &text));
        if let Some(text) = &line.text {
            let room = canvas.columns().saturating_sub(8);
            let _ = writeln!(out, "        {}", paint(DIM, &canvas.shortened(text, room)));
        }
    }
    if !modules.is_empty() {
        let named: Vec<String> =
            modules.iter().map(|module| format!("{} {}", module.name, plus(module.growth))).collect();
        out.push_str(&canvas.wrapped("    modules: ", DIM, &named.join(", ")));
    }
    if let Some(text) = beside(row) {
        out.push_str(&canvas.wrapped("    ", DIM, &text));
    }
    for note in &row.notes {
        out.push_str(&canvas.wrapped("    note: ", DIM, note));
    }
    if let Some(problem) = &row.problem {
        out.push_str(&canvas.wrapped("    ", DOUBT, &problem.message));
        if let Some(hint) = &problem.hint {
            out.push_str(&canvas.wrapped("    hint: ", ADVICE, hint));
        }
    }
}

/// The largest batch and the step time, if they are known and changed.
pub(crate) fn beside(row: &CiRow) -> Option<String> {
    let head = row.head.as_ref()?;
    let base = row.base.as_ref();
    let mut parts = Vec::new();
    if let Some(now) = head.largest_batch {
        parts.push(match base.and_then(|base| base.largest_batch) {
            Some(before) if before != now => format!("largest batch that fits: {now}, before {before}"),
            _ => format!("largest batch that fits: {now}"),
        });
    }
    let steps = base.and_then(|base| base.step_ms_estimate).zip(head.step_ms_estimate);
    if let Some((before, now)) = steps.filter(|(before, now)| (now - before).abs() > before * 0.01) {
        parts.push(format!("a step: {}, before {} (estimates)", milliseconds(now), milliseconds(before)));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Formats the next steps.
pub(crate) fn next(report: &CiReport) -> Option<String> {
    if !report.accepted.is_empty() {
        return Some(
            "commit the baselines with your change: reviewers see the figures in the diff".to_owned(),
        );
    }
    match worst(report)? {
        CiVerdict::Grew => Some(
            "if the growth is intended, `memfit ci --accept` writes these peaks as baselines; commit them"
                .to_owned(),
        ),
        CiVerdict::Shrank | CiVerdict::New if report.base.is_none() => {
            Some("`memfit ci --accept` writes these peaks as baselines; commit them".to_owned())
        }
        _ if report.base.is_none() && report.rows.iter().any(|row| row.verdict == CiVerdict::New) => {
            Some("`memfit ci --accept` writes the new peaks as baselines; commit them".to_owned())
        }
        _ => None,
    }
}
