//! Text output of `memfit rule`: the list of rules, and a rule's page.

use std::fmt::Write as _;

use super::canvas::{ADVICE, BAD, BOLD, DIM, DOUBT};
use super::{Canvas, paint};
use crate::wire::{RuleEntry, RuleReport};

/// The list, one rule a line; on a terminal, lines are cut to its width.
pub fn rules(rules: &[RuleEntry], terminal: Option<Canvas>) -> String {
    let mut text = String::new();
    let width = rules.iter().map(|rule| rule.name.len()).max().unwrap_or_default();
    for rule in rules {
        let style = match rule.severity.as_str() {
            "error" => BAD,
            "warning" => DOUBT,
            _ => ADVICE,
        };
        let summary = rule
            .summary
            .strip_prefix("Finds ")
            .or(rule.summary.strip_prefix("Notes "))
            .unwrap_or(&rule.summary)
            .trim_end_matches('.');
        let summary = match terminal {
            Some(canvas) => cut(summary, canvas.columns().saturating_sub(width + 2 + 9).max(20)),
            None => summary.to_owned(),
        };
        let _ = writeln!(
            text,
            "{}{}  {}{}  {summary}",
            paint(BOLD, &rule.name),
            " ".repeat(width - rule.name.len()),
            paint(style, &rule.severity),
            " ".repeat(7_usize.saturating_sub(rule.severity.len())),
        );
    }
    let _ = writeln!(text, "\n{}", paint(DIM, "`memfit rule NAME` shows a rule's page."));
    text
}

fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let short: String = text.chars().take(room.saturating_sub(1)).collect();
    format!("{}…", short.trim_end())
}

/// A rule's page.
pub fn rule(report: &RuleReport) -> String {
    let mut text = String::new();
    let mut code = false;
    for line in report.page.lines() {
        if line.starts_with("```") {
            code = !code;
            continue;
        }
        if code {
            let _ = writeln!(text, "    {line}");
        } else if let Some(title) = line.strip_prefix("# ") {
            let fix = report.rule.fix.as_deref().map_or("no fix".to_owned(), |fix| format!("{fix} fix"));
            let off = if report.rule.on { "" } else { ", off unless selected" };
            let _ = writeln!(
                text,
                "{}  {}",
                paint(BOLD, title),
                paint(DIM, &format!("{}, {fix}{off}", report.rule.severity))
            );
        } else if let Some(title) = line.strip_prefix("## ") {
            let _ = writeln!(text, "{}", paint(BOLD, title));
        } else {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}
