//! Text output of `memfit doctor`.

use std::fmt::Write as _;

use super::canvas::{BAD, Canvas, DIM, DOUBT, GOOD, paint};
use crate::wire::{DoctorReport, Health};

/// The state of the installation, and whether `memfit run` would work.
pub fn doctor(report: &DoctorReport, canvas: Canvas) -> String {
    let mut out = String::new();
    let width = report.checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    for check in &report.checks {
        let (style, mark) = match (check.health, canvas.unicode) {
            (Health::Good, true) => (GOOD, "✓"),
            (Health::Good, false) => (GOOD, "ok"),
            (Health::Absent, _) => (DOUBT, "-"),
            (Health::Broken, true) => (BAD, "✗"),
            (Health::Broken, false) => (BAD, "!!"),
        };
        let first = format!("{mark:<2} {:<width$}  ", check.name);
        out.push_str(&canvas.wrapped(&first, style, &check.found));
        if let Some(hint) = &check.hint {
            out.push_str(&canvas.wrapped(&" ".repeat(width + 5), DIM, hint));
        }
    }
    let (style, verdict) = if report.ready {
        (GOOD, "`memfit run` works here.")
    } else {
        (BAD, "`memfit run` does not work here yet.")
    };
    let _ = writeln!(out, "\n{}", paint(style, verdict));
    if report.checks.iter().any(|check| check.health == Health::Absent) {
        let _ = writeln!(out, "{}", paint(DIM, "`-`: absent, and needed only for what its line says."));
    }
    out
}
