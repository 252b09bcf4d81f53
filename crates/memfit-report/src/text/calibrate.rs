//! Text output of `memfit calibrate`.

use std::fmt::Write as _;

use super::canvas::{BOLD, Canvas, DIM, paint};
use super::size;
use crate::wire::{CalibrateReport, Compared};

/// The measurements of a GPU next to the catalogue's figures.
pub fn calibration(report: &CalibrateReport, canvas: Canvas) -> String {
    let mut out = String::new();
    let calibration = &report.calibration;
    let _ = writeln!(out, "{}  {}", paint(BOLD, &calibration.card.name), paint(DIM, &calibration.card.id));
    out.push_str(&canvas.wrapped("  ", DIM, &calibration.source()));
    out.push('\n');
    let head = format!("  {:<24}{:>16}{:>16}", "", "measured", "catalogue");
    let _ = writeln!(out, "{}", paint(DIM, &head));
    for row in &report.compared {
        let _ = writeln!(
            out,
            "  {:<24}{:>16}{:>16}{:>9}",
            row.name,
            figure(row.measured, row.unit),
            figure(row.catalogue, row.unit),
            difference(row)
        );
    }
    if let Some(other) = calibration.outside.other_processes {
        let _ = writeln!(out, "  {:<24}{:>16}", "other processes", size(other.get()));
    }
    if !calibration.not_measured.is_empty() {
        out.push('\n');
        for gap in &calibration.not_measured {
            let text = format!("{}: {}", gap.what, gap.why);
            out.push_str(&canvas.wrapped("  not measured  ", DIM, &text));
        }
    }
    out.push('\n');
    let saved = match &report.stored {
        Some(path) => format!("in {path}; `memfit run --gpu {}` uses it", calibration.card.id),
        None => "no, since a virtual GPU is not part of this machine; `--output` writes a file".to_owned(),
    };
    out.push_str(&canvas.wrapped("  saved  ", DIM, &saved));
    out
}

fn figure(value: u64, unit: &str) -> String {
    match unit {
        "bytes" => size(value),
        "operations/s" => format!("{:.1} TFLOP/s", value as f64 / 1e12),
        "bytes/s" => format!("{:.1} GB/s", value as f64 / 1e9),
        other => format!("{value} {other}"),
    }
}

fn difference(row: &Compared) -> String {
    let percent = (row.measured as f64 / row.catalogue.max(1) as f64 - 1.0) * 100.0;
    format!("{percent:+.0} %")
}
