//! Unified diffs, as `patch` and `git apply` take them.

use std::fmt::Write as _;

/// A line of a changed file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Line<'text> {
    Same(&'text str),
    Gone(&'text str),
    New(&'text str),
}

impl<'text> Line<'text> {
    /// The line as the changed file has it.
    pub(super) const fn after(&self) -> Option<&'text str> {
        match self {
            Self::Same(text) | Self::New(text) => Some(text),
            Self::Gone(_) => None,
        }
    }
}

/// Lines that stay, shown around a change.
const CONTEXT: usize = 3;

/// The diff, and the first line of the old file that it changes.
pub(super) fn unified(file: &str, lines: &[Line<'_>]) -> Option<(String, u32)> {
    let changed: Vec<usize> =
        (0..lines.len()).filter(|index| !matches!(lines[*index], Line::Same(_))).collect();
    let first = *changed.first()?;
    let mut hunks: Vec<(usize, usize)> = Vec::new();
    for index in changed {
        let (start, end) = (index.saturating_sub(CONTEXT), (index + CONTEXT + 1).min(lines.len()));
        match hunks.last_mut() {
            Some(last) if start <= last.1 => last.1 = end,
            _ => hunks.push((start, end)),
        }
    }
    let mut out = format!("--- {file}\n+++ {file}\n");
    for (start, end) in hunks {
        let old = |lines: &[Line<'_>]| lines.iter().filter(|line| !matches!(line, Line::New(_))).count();
        let new = |lines: &[Line<'_>]| lines.iter().filter(|line| !matches!(line, Line::Gone(_))).count();
        let (before, hunk) = (&lines[..start], &lines[start..end]);
        let place = |before: usize, count: usize| if count == 0 { before } else { before + 1 };
        let _ = writeln!(
            out,
            "@@ -{},{} +{},{} @@",
            place(old(before), old(hunk)),
            old(hunk),
            place(new(before), new(hunk)),
            new(hunk)
        );
        for line in hunk {
            let (mark, text) = match line {
                Line::Same(text) => (' ', text),
                Line::Gone(text) => ('-', text),
                Line::New(text) => ('+', text),
            };
            let _ = writeln!(out, "{mark}{text}");
        }
    }
    let old_before = lines[..first].iter().filter(|line| !matches!(line, Line::New(_))).count();
    Some((out, old_before as u32 + 1))
}
