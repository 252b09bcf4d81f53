//! Text output of `memfit shrink`.

use std::fmt::Write as _;

use memfit_vocabulary::counted;

use super::canvas::{ADVICE, BAD, BOLD, Canvas, DIM, DOUBT, GOOD, paint};
use super::milliseconds;
use super::{count as grouped, signed_size, size};
use crate::wire::{ShrinkReport, ShrinkRow};

/// Minimum number of columns for a table with the numbers of parameters.
const WIDE: usize = 96;

/// The report of a comparison of techniques.
pub fn shrink(report: &ShrinkReport, canvas: Canvas) -> String {
    let mut out = String::new();
    headline(&mut out, report, canvas);
    if let Some(problem) = &report.problem {
        out.push_str(&canvas.problem(problem));
        return out;
    }
    out.push('\n');
    table(&mut out, report, canvas);
    out.push('\n');
    for row in &report.rows {
        let _ = writeln!(out, "  {}: {}", paint(BOLD, &row.technique), row.title);
        for note in row.note.iter().flat_map(|note| note.lines()) {
            out.push_str(&canvas.wrapped("      ", DIM, note));
        }
        if row.training.or(row.inference).is_some() {
            let _ = writeln!(out, "      {}", paint(ADVICE, &row.how));
        }
    }
    out.push('\n');
    let baseline = report.baseline.iter().filter_map(|baseline| baseline.note.as_ref());
    for note in baseline.chain(&report.notes) {
        out.push_str(&canvas.wrapped("note: ", DIM, note));
    }
    let tried = format!("{} runs of the script in {:.1} s", report.runs, report.wall_s);
    out.push_str(&canvas.wrapped("tried: ", DIM, &tried));
    out
}

fn headline(out: &mut String, report: &ShrinkReport, canvas: Canvas) {
    let measured = |row: &&ShrinkRow| row.training.or(row.inference).is_some();
    let (style, head) = if report.problem.is_some() {
        (DOUBT, "NO ANSWER".to_owned())
    } else {
        let count = report.rows.iter().filter(measured).count();
        (GOOD, format!("MEASURED {count} of {} techniques", report.rows.len()))
    };
    let place = report.device.as_ref().map_or(String::new(), |device| {
        let name = device.name.strip_prefix("NVIDIA ").unwrap_or(&device.name);
        let dot = canvas.dot();
        format!(
            "on a virtual {name} ({}){dot}for the {} that ran",
            size(device.capacity),
            counted(report.steps, "step")
        )
    });
    out.push_str(&canvas.wrapped(&format!("{head}  "), style, &place));
}

fn table(out: &mut String, report: &ShrinkReport, canvas: Canvas) {
    let rows: Vec<&ShrinkRow> = report.baseline.iter().chain(&report.rows).collect();
    let name = |row: &ShrinkRow| {
        if row.levers.is_empty() && row.how.is_empty() { row.title.clone() } else { row.technique.clone() }
    };
    let width = rows.iter().map(|row| name(row).chars().count()).max().unwrap_or(9).max(9);
    let wide = canvas.columns() >= WIDE;
    // The savings are what the verb is for.
    let counts = |parameters: &str, trained: &str| {
        if wide { format!("  {parameters:>10}  {trained:>10}") } else { String::new() }
    };
    let header = format!(
        "  {:<width$}{}  {:>10}  {:>10}  {:>10}  {:>10}  {:>9}",
        "technique",
        counts("parameters", "trained"),
        "training",
        "saves",
        "inference",
        "saves",
        "a step"
    );
    let _ = writeln!(out, "{}", paint(BOLD, &header));
    for row in rows {
        let (style, mark) = match (row.fits, canvas.unicode) {
            (Some(true), true) => (GOOD, "✓"),
            (Some(true), false) => (GOOD, "+"),
            (Some(false), true) => (BAD, "✗"),
            (Some(false), false) => (BAD, "-"),
            (None, _) => (DIM, " "),
        };
        let known = |text: Option<String>| text.unwrap_or_default();
        let line = format!(
            "{:<width$}{}  {:>10}  {:>10}  {:>10}  {:>10}  {:>9}",
            name(row),
            counts(&known(row.parameters.map(short)), &known(row.trained.map(short))),
            known(row.training.map(|peak| size(peak.device))),
            known(row.saves.training.map(signed_size)),
            known(row.inference.map(|peak| size(peak.device))),
            known(row.saves.inference.map(signed_size)),
            known(row.step_ms_estimate.map(milliseconds))
        );
        let _ = writeln!(out, "{} {}", paint(style, mark), line.trim_end());
    }
    let marks = if canvas.unicode { ("✓", "✗") } else { ("+", "-") };
    let legend = format!(
        "columns training and inference: device peak\n{} training fits, with memory outside PyTorch at its upper bound; {} it does not fit",
        marks.0, marks.1
    );
    out.push_str(&canvas.wrapped("  ", DIM, &legend));
    if !wide {
        let _ = writeln!(
            out,
            "{}",
            paint(DIM, &format!("  in a terminal of {WIDE} columns, the table also counts parameters"))
        );
    }
}

/// A number of parameters: `1,234`, `66.4 M`.
fn short(number: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    for (one, unit) in UNITS {
        if number >= one.max(10_000) {
            let count = number as f64 / one as f64;
            let decimals = if count < 10.0 { 2 } else { usize::from(count < 100.0) };
            return format!("{count:.decimals$} {unit}");
        }
    }
    grouped(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_parameters_have_three_digits() {
        for (number, text) in [
            (0, "0"),
            (9_999, "9,999"),
            (12_345, "12.3 k"),
            (124_439_808, "124 M"),
            (1_543_714_304, "1.54 G"),
            (66_362_880, "66.4 M"),
        ] {
            assert_eq!(short(number), text);
        }
    }
}
