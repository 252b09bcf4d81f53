//! Suppression comments: `# memfit: ignore[rule] reason`.

use memfit_source::{Facts, LineIndex, Span};

use crate::rule::Finding;

/// Rule name of findings about unnecessary suppressions.
pub const UNUSED: &str = "unused-suppression";

/// Suppression comment.
#[derive(Debug)]
pub(crate) struct Suppression {
    /// Span from its `#`.
    pub(crate) span: Span,
    /// Lines that it applies to, from 0.
    lines: (usize, usize),
    /// Rules; empty for all.
    rules: Vec<String>,
    whole_file: bool,
    used: Vec<bool>,
}

/// Suppressions of a text.
pub(crate) fn suppressions(facts: &Facts, lines: &LineIndex) -> Vec<Suppression> {
    facts.comments.iter().filter_map(|comment| parse(facts, comment.span, comment.own_line, lines)).collect()
}

fn parse(facts: &Facts, span: Span, own_line: bool, lines: &LineIndex) -> Option<Suppression> {
    let text = facts.slice(span);
    let at = text.find("memfit:")?;
    // `# memfit: ignore[…]` may follow another comment.
    if !text[..at].trim_end().ends_with('#') {
        return None;
    }
    let begin = text[..at].rfind('#')? as u32;
    let rest = text[at + "memfit:".len()..].trim_start();
    let (rest, whole_file) = match rest.strip_prefix("ignore-file") {
        Some(rest) => (rest, true),
        None => (rest.strip_prefix("ignore")?, false),
    };
    let rules: Vec<String> = match rest.trim_start().strip_prefix('[') {
        Some(list) => list
            .split(']')
            .next()?
            .split(',')
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect(),
        None => Vec::new(),
    };
    let line = lines.line_of(span.start);
    // On a line of its own, it applies to the next statement.
    let last = if own_line { next_code_line(facts, lines, line) } else { line };
    let used = vec![false; rules.len().max(1)];
    Some(Suppression {
        span: Span::new(span.start + begin, span.end),
        lines: (line, last),
        rules,
        whole_file,
        used,
    })
}

fn next_code_line(facts: &Facts, lines: &LineIndex, line: usize) -> usize {
    (line + 1..lines.lines())
        .find(|next| {
            let text = lines.line_text(*next, &facts.text).trim();
            !text.is_empty() && !text.starts_with('#')
        })
        .unwrap_or(line)
}

/// Returns `true` if a finding is suppressed, and marks the suppression as used.
pub(crate) fn suppresses(all: &mut [Suppression], finding: &Finding, lines: &LineIndex) -> bool {
    let first = lines.line_of(finding.span.start);
    let last = lines.line_of(finding.span.end.saturating_sub(1).max(finding.span.start));
    let mut found = false;
    for suppression in all {
        let near = suppression.whole_file
            || (first..=last).contains(&suppression.lines.1)
            || suppression.lines.1 == first;
        if !near {
            continue;
        }
        if suppression.rules.is_empty() {
            suppression.used[0] = true;
            found = true;
        }
        for (index, rule) in suppression.rules.iter().enumerate() {
            if rule == finding.rule.name {
                suppression.used[index] = true;
                found = true;
            }
        }
    }
    found
}

impl Suppression {
    /// Describes the unused part of the suppression. Returns `None` if all of it was used.
    pub(crate) fn unused(&self, runs: impl Fn(&str) -> bool) -> Option<String> {
        if self.rules.is_empty() {
            return (!self.used[0])
                .then(|| "nothing is found here: this suppression is not needed".to_owned());
        }
        let idle: Vec<String> = self
            .rules
            .iter()
            .zip(&self.used)
            // A rule that does not run may still have findings.
            .filter(|(rule, used)| !**used && (crate::rules::find(rule).is_none() || runs(rule)))
            .map(|(rule, _)| match crate::rules::find(rule) {
                Some(_) => format!("`{rule}` is not found here"),
                None => format!("there is no rule `{rule}`"),
            })
            .collect();
        (!idle.is_empty()).then(|| format!("{}: this suppression is not needed", idle.join(", ")))
    }

    /// Returns `true` if the whole suppression is unused and can be removed.
    pub(crate) fn is_idle(&self) -> bool {
        self.used.iter().all(|used| !used)
    }
}
