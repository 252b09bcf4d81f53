//! The texts of reports, as people see them.

#![allow(clippy::unwrap_used, clippy::exit, reason = "a test may fail where it stands")]

mod support;

use memfit_report::text::{self, Canvas};
use memfit_report::wire::{Check, DoctorReport, Health, RunReport};
use support::{all, failed, fits, oom, recovered, two_ranks, unknown};

/// The text without its styles.
fn plain(report: &RunReport, width: usize, unicode: bool) -> String {
    let text = text::run(report, Canvas { width, unicode });
    anstream::adapter::strip_str(&text).to_string()
}

#[test]
fn a_run_that_fits() {
    insta::assert_snapshot!("fits_at_80_columns", plain(&fits(), 80, true));
    insta::assert_snapshot!("fits_at_120_columns", plain(&fits(), 120, true));
    insta::assert_snapshot!("fits_in_ascii", plain(&fits(), 80, false));
}

#[test]
fn an_explanation_of_each_cause() {
    let canvas = Canvas { width: 100, unicode: true };
    for report in support::explained::each() {
        let text = anstream::adapter::strip_str(&text::explain(&report, canvas)).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        insta::assert_snapshot!(format!("explained_{}", report.cause), text);
    }
}

#[test]
fn styles_are_those_of_a_terminal() {
    let text = text::run(&fits(), Canvas { width: 80, unicode: true });
    insta::assert_snapshot!("fits_in_colour", text.replace('\u{1b}', "\\e"));
}

#[test]
fn a_run_that_does_not() {
    insta::assert_snapshot!("out_of_memory", plain(&oom(), 80, true));
}

#[test]
fn a_run_that_recovers() {
    insta::assert_snapshot!("recovered", plain(&recovered(), 80, true));
}

#[test]
fn a_run_that_cannot_tell() {
    insta::assert_snapshot!("cannot_tell", plain(&unknown(), 80, true));
}

#[test]
fn a_run_of_two_ranks() {
    insta::assert_snapshot!("two_ranks", plain(&two_ranks(), 80, true));
}

#[test]
fn a_run_without_an_answer() {
    insta::assert_snapshot!("no_answer", plain(&failed(), 80, true));
}

#[test]
fn no_text_is_wider_than_it_may_be() {
    for report in all() {
        for width in [60, 80, 100, 120, 200] {
            for unicode in [true, false] {
                for line in plain(&report, width, unicode).lines() {
                    assert!(line.chars().count() <= width, "{width} columns, and this has more:\n{line}");
                    assert!(unicode || line.is_ascii(), "not ASCII:\n{line}");
                }
            }
        }
    }
}

/// The bars stand for what the numbers say: together with the headroom they fill the card.
#[test]
fn bars_begin_where_the_one_above_ends() {
    let text = plain(&fits(), 120, false);
    let bars: Vec<(usize, usize)> = text
        .lines()
        .filter(|line| line.contains('#') && line.ends_with('%'))
        .map(|line| (line.find('#').unwrap(), line.rfind('#').unwrap() + 1))
        .collect();
    assert!(bars.len() > 8, "{text}");
    for pair in bars.windows(2) {
        let ((_, end), (start, _)) = (pair[0], pair[1]);
        assert!(
            start.abs_diff(end) <= 1,
            "a bar begins at {start}, and the one above ends at {end}:\n{text}"
        );
    }
}

#[test]
fn what_is_installed() {
    let check = |name: &str, health, found: &str, hint: Option<&str>| Check {
        name: name.to_owned(),
        health,
        found: found.to_owned(),
        hint: hint.map(str::to_owned),
    };
    let report = DoctorReport::new(vec![
        check("memfit", Health::Good, "0.1.0", None),
        check(
            "torch",
            Health::Broken,
            "PyTorch is not installed for `python`",
            Some("install it: `python -m pip install torch`"),
        ),
        check("real GPU", Health::Absent, "none, and none is needed", None),
    ]);
    assert!(!report.ready);
    let text = text::doctor(&report, Canvas { width: 80, unicode: true });
    insta::assert_snapshot!("doctor", anstream::adapter::strip_str(&text).to_string());
}
