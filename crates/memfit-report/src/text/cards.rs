//! Text output of `memfit cards`.

use std::fmt::Write as _;

use memfit_vocabulary::shell_line;

use super::canvas::{ADVICE, BAD, BOLD, Canvas, DIM, DOUBT, GOOD, paint};
use super::explain::{CLOSE_FIT, little_left};
use super::{count as grouped, milliseconds, size};
use crate::wire::{CardEvidence, CardRow, CardSort, CardVerdict, CardsReport};

/// Maximum rows that are shown: of those that fit, in addition to the Pareto front, and of those that do not
/// fit.
const MAX_FITTING: usize = 24;
const MAX_REFUSED: usize = 6;

/// The report of a comparison of GPUs.
pub fn cards(report: &CardsReport, canvas: Canvas) -> String {
    let mut out = String::new();
    headline(&mut out, report, canvas);
    if let Some(problem) = &report.problem {
        out.push_str(&canvas.problem(problem));
        return out;
    }
    out.push('\n');
    table(&mut out, report, canvas);
    out.push('\n');
    for (text, rows) in notes(report) {
        out.push_str(&canvas.wrapped("note: ", DIM, &format!("{}: {text}", names(&rows))));
    }
    let tight: Vec<&CardRow> = report.rows.iter().filter(|row| is_tight(row)).collect();
    if !tight.is_empty() {
        let text = format!("{}: little memory is left. {CLOSE_FIT}", names(&tight));
        out.push_str(&canvas.wrapped("note: ", DOUBT, &text));
    }
    for row in report.rows.iter().filter(|row| row.verdict == CardVerdict::FitsWithPlan) {
        if let Some(plan) = &row.chosen {
            let plan = super::plan::in_short(plan);
            out.push_str(&canvas.wrapped("plan: ", DIM, &format!("{}: {plan}", row.gpu)));
        }
    }
    for note in &report.notes {
        out.push_str(&canvas.wrapped("note: ", DIM, note));
    }
    let replayed = report.rows.iter().filter(|row| row.evidence == CardEvidence::Replayed).count();
    let tried = format!(
        "{} {} of the script in {:.1} s; {replayed} of {} verdicts follow from runs without a memory limit on a GPU of the same compute capability",
        report.runs,
        if report.runs == 1 { "run" } else { "runs" },
        report.wall_s,
        report.rows.len()
    );
    out.push_str(&canvas.wrapped("tried: ", DIM, &tried));
    if let Some(best) = report.rows.iter().find(|row| row.verdict.fits()) {
        let shows = match best.verdict {
            CardVerdict::FitsWithPlan => "writes its plan with `-o memfit.plan.toml`",
            _ => "shows what fills its memory",
        };
        out.push_str(&canvas.wrapped("next: ", ADVICE, &format!("`{}` {shows}", shell_line(&best.command))));
    } else if let Some(unclear) = report.rows.first().filter(|row| row.verdict == CardVerdict::Unknown) {
        let text = format!("`{}` shows what is unknown, and where", shell_line(&unclear.command));
        out.push_str(&canvas.wrapped("next: ", ADVICE, &text));
    } else if let Some(near) = report.rows.first() {
        let text = format!(
            "`{}` searches for a way to make it fit; the option `--plan 3` of `memfit cards` does so for three GPUs of the table",
            shell_line(near.plan_command())
        );
        out.push_str(&canvas.wrapped("next: ", ADVICE, &text));
    }
    out
}

fn headline(out: &mut String, report: &CardsReport, canvas: Canvas) {
    let count =
        |wanted: fn(CardVerdict) -> bool| report.rows.iter().filter(|row| wanted(row.verdict)).count();
    let fits = count(CardVerdict::fits);
    let unknown = count(|verdict| verdict == CardVerdict::Unknown);
    let rest = count(|verdict| verdict == CardVerdict::DoesNotFit);
    let (style, head) = match (fits, unknown, rest) {
        _ if report.problem.is_some() => (DOUBT, "NO ANSWER".to_owned()),
        (0, 0, _) => (BAD, "FITS NOWHERE".to_owned()),
        (0, ..) => (DOUBT, "UNKNOWN".to_owned()),
        (fits, ..) => (GOOD, format!("FITS {fits} of {}", report.rows.len())),
    };
    let dot = canvas.dot();
    let mut parts = Vec::new();
    if report.problem.is_none() {
        match count(|verdict| verdict == CardVerdict::FitsWithPlan) {
            0 => {}
            planned => parts.push(format!("{planned} of them with a plan")),
        }
        if rest > 0 {
            parts.push(format!("{rest} {} not fit", if rest == 1 { "does" } else { "do" }));
        }
        if unknown > 0 {
            parts.push(format!("{unknown} unknown"));
        }
        parts.push(match report.steps {
            0 => "for what ran, which included no training step".to_owned(),
            1 => "for the 1 step that ran".to_owned(),
            steps => format!("for the {steps} steps that ran"),
        });
    }
    let details =
        if parts.is_empty() { String::new() } else { paint(DIM, &format!("  {}", parts.join(dot))) };
    let _ = writeln!(out, "{}{details}", paint(style, &head));
    if let Some(work) = report.priced.as_ref().filter(|_| !report.rows.is_empty()) {
        let epochs = work.epochs.map_or(String::new(), |epochs| {
            format!(" ({epochs} {})", if epochs == 1 { "epoch" } else { "epochs" })
        });
        let text = format!("prices are for {} samples{epochs}, in {}", grouped(work.samples), work.currency);
        out.push_str(&canvas.wrapped("", DIM, &text));
    }
}

fn table(out: &mut String, report: &CardsReport, canvas: Canvas) {
    let priced = report.priced.is_some();
    let counts = report.rows.iter().any(|row| row.count > 1);
    let batches = report.rows.iter().any(|row| row.batch != report.rows[0].batch);
    let name = |row: &CardRow| {
        let count = if counts { format!("{} × ", row.count) } else { String::new() };
        let count = if canvas.unicode { count } else { count.replace('×', "x") };
        let batch = row.batch.filter(|_| batches).map_or(String::new(), |batch| format!(", batch {batch}"));
        format!("{count}{}{batch}", row.gpu)
    };
    let width = report.rows.iter().map(|row| name(row).chars().count()).max().unwrap_or(4).max(4);
    let wide = canvas.columns() >= 96;
    let mut header = format!("  {:<width$}  {:>10}  {:>10}  {:>10}", "GPU", "memory", "peak", "headroom");
    let _ = write!(header, "  {:>9}", "a step");
    if wide {
        let _ = write!(header, "  {:<17}", "interval");
    }
    let _ = write!(header, "  {:>9}", "samples/s");
    if priced {
        let _ = write!(header, "  {:>9}", "price");
    }
    let _ = writeln!(out, "{}", paint(BOLD, &format!("{header}  evidence")));
    let groups = [
        CardVerdict::fits as fn(CardVerdict) -> bool,
        |verdict| verdict == CardVerdict::Unknown,
        |verdict| verdict == CardVerdict::DoesNotFit,
    ];
    for (index, group) in groups.into_iter().enumerate() {
        let rows: Vec<&CardRow> = report.rows.iter().filter(|row| group(row.verdict)).collect();
        let most = [MAX_FITTING, MAX_REFUSED, MAX_REFUSED][index];
        let shown: Vec<&CardRow> = rows
            .iter()
            .enumerate()
            .filter(|(place, row)| *place < most || row.pareto)
            .map(|(_, row)| *row)
            .collect();
        for row in &shown {
            let style = match row.verdict {
                CardVerdict::FitsAsIs | CardVerdict::FitsWithPlan => GOOD,
                CardVerdict::DoesNotFit => BAD,
                CardVerdict::Unknown => DOUBT,
            };
            let mark = match (row.verdict, canvas.unicode) {
                (CardVerdict::FitsAsIs | CardVerdict::FitsWithPlan, true) => "✓",
                (CardVerdict::DoesNotFit, true) => "✗",
                (CardVerdict::FitsAsIs | CardVerdict::FitsWithPlan, false) => "+",
                (CardVerdict::DoesNotFit, false) => "-",
                (CardVerdict::Unknown, _) => "?",
            };
            let known = |text: Option<String>| text.unwrap_or_default();
            let peak = known(row.peak.map(|peak| size(peak.device_upper)));
            let headroom = known(row.headroom.map(super::signed_size));
            let padding = " ".repeat(width - name(row).chars().count());
            let mut line =
                format!("{}{padding}  {:>10}  {peak:>10}  {headroom:>10}", name(row), size(row.capacity));
            let _ = write!(line, "  {:>9}", known(row.step_ms_estimate.map(milliseconds)));
            if wide {
                let interval = row.step_ms_low.zip(row.step_ms_high);
                let _ = write!(
                    line,
                    "  {:<17}",
                    known(interval.map(|(low, high)| format!(
                        "{} to {}",
                        milliseconds(low),
                        milliseconds(high)
                    )))
                );
            }
            let _ = write!(line, "  {:>9}", known(row.samples_per_s.map(rate)));
            if priced {
                let _ = write!(line, "  {:>9}", known(row.price.as_ref().map(|price| rate(price.amount))));
            }
            let mut evidence = row.evidence.name().to_owned();
            if row.verdict == CardVerdict::FitsWithPlan {
                evidence.push_str(", with a plan");
            }
            if row.pareto {
                evidence.push_str(if canvas.unicode { " ◆" } else { " *" });
            }
            let _ = writeln!(out, "{} {line}  {}", paint(style, mark), paint(DIM, &evidence));
        }
        if rows.len() > shown.len() {
            let which = ["fit", "have no verdict", "do not fit"][index];
            let more = format!("  and {} more that {which}", rows.len() - shown.len());
            let _ = writeln!(out, "{}", paint(DIM, &more));
        }
    }
    if report.rows.iter().any(|row| row.pareto) {
        let than = if priced { "is cheaper and faster" } else { "has less memory and is faster" };
        let mark = if canvas.unicode { "◆" } else { "*" };
        let sort = match report.sort {
            CardSort::Price => "price",
            CardSort::Time => "speed",
            CardSort::Memory => "memory",
        };
        let _ = writeln!(out, "{}", paint(DIM, &format!("  sorted by {sort}; {mark} no other GPU {than}")));
    }
}

/// Remarks on rows, each with the rows that it applies to.
fn notes(report: &CardsReport) -> Vec<(&str, Vec<&CardRow>)> {
    let mut found: Vec<(&str, Vec<&CardRow>)> = Vec::new();
    for row in &report.rows {
        let Some(note) = row.note.as_deref() else { continue };
        match found.iter_mut().find(|(text, _)| *text == note) {
            Some((_, rows)) => rows.push(row),
            None => found.push((note, vec![row])),
        }
    }
    found
}

/// Returns `true` if a script fits, and may not do so on a real GPU.
fn is_tight(row: &CardRow) -> bool {
    let used = row.peak.map_or(0, |peak| peak.device_upper);
    row.verdict.fits() && little_left(used, Some(row.capacity)).is_some()
}

/// The names of the first few rows.
fn names(rows: &[&CardRow]) -> String {
    const MAX_NAMED: usize = 4;
    let mut names: Vec<&str> = rows.iter().map(|row| row.gpu.as_str()).collect();
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let text = names.join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}

/// Formats a number with three significant digits.
pub(crate) fn rate(number: f64) -> String {
    if number >= 100.0 {
        grouped(number.round() as u64)
    } else if number >= 10.0 {
        format!("{number:.1}")
    } else if number >= 0.1 {
        format!("{number:.2}")
    } else {
        format!("{number:.4}")
    }
}
