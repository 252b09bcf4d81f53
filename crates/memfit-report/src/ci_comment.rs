//! Memory changes of a commit, as a pull request comment in Markdown.

use std::fmt::Write as _;

use crate::text::{ci as words, size};
use crate::wire::{CiReport, CiRow, CiSide, CiVerdict};

/// Hidden first line by which a comment is found again, so that it is updated in place.
pub const CI_MARKER: &str = "<!-- memfit ci -->";

/// The report of `memfit ci` as Markdown.
pub fn ci_comment(report: &CiReport) -> String {
    let mut out = format!("{CI_MARKER}\n### {}\n\n", title(report));
    let _ = writeln!(out, "{}.", escaped(&capital(&words::against(report, ", "))));
    if let Some(problem) = &report.problem {
        let _ = writeln!(out, "\n**No answer:** {}", escaped(&problem.message));
        if let Some(hint) = &problem.hint {
            let _ = writeln!(out, "\n{}", escaped(hint));
        }
        return out;
    }
    out.push_str(
        "\n| | script | GPU | base | now | growth | largest change |\n|---|---|---|--:|--:|--:|---|\n",
    );
    for row in &report.rows {
        let judged = |side: &Option<CiSide>| {
            side.as_ref().map(|side| size(words::judged(report, side))).unwrap_or_default()
        };
        let (lines, _) = words::explaining(row);
        let cause =
            lines.first().map(|line| code(&format!("{}:{}", line.file, line.line))).unwrap_or_default();
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {cause} |",
            mark(row.verdict),
            escaped(&row.script),
            escaped(&row.gpu),
            judged(&row.base),
            judged(&row.head),
            escaped(&words::growth(report, row))
        );
    }
    for row in &report.rows {
        details(&mut out, row);
    }
    for note in &report.notes {
        let _ = writeln!(out, "\n{}", escaped(note));
    }
    if let Some(next) = words::next(report) {
        let _ = writeln!(out, "\n{}", capital(&next));
    }
    out
}

fn title(report: &CiReport) -> &'static str {
    match words::worst(report) {
        None => "GPU memory: no answer",
        Some(CiVerdict::Grew) => "GPU memory grew",
        Some(CiVerdict::Failed) => "GPU memory: no answer for some scripts",
        Some(CiVerdict::New) => "GPU memory: new scripts",
        Some(CiVerdict::Shrank) => "GPU memory shrank",
        Some(CiVerdict::Same) => "GPU memory is the same",
    }
}

const fn mark(verdict: CiVerdict) -> &'static str {
    match verdict {
        CiVerdict::Same => "✅ same",
        CiVerdict::Shrank => "✅ shrank",
        CiVerdict::Grew => "❌ grew",
        CiVerdict::New => "🆕 new",
        CiVerdict::Failed => "⚠️ failed",
    }
}

/// Everything about a row that the table does not show, in a collapsed section.
fn details(out: &mut String, row: &CiRow) {
    let (lines, modules) = words::explaining(row);
    let beside = words::beside(row);
    if lines.is_empty()
        && modules.is_empty()
        && beside.is_none()
        && row.notes.is_empty()
        && row.problem.is_none()
    {
        return;
    }
    let open = if row.verdict == CiVerdict::Failed { " open" } else { "" };
    let _ = writeln!(
        out,
        "\n<details{open}><summary>{} on {}: {}</summary>\n",
        escaped(&row.script),
        escaped(&row.gpu),
        row.verdict.text()
    );
    if !lines.is_empty() {
        out.push_str("| line | change | holds | source |\n|---|--:|---|---|\n");
        for line in lines {
            let text = line.text.as_deref().map(code).unwrap_or_default();
            let _ = writeln!(
                out,
                "| {} in {} | {} | {} | {text} |",
                code(&format!("{}:{}", line.file, line.line)),
                code(&line.function),
                words::plus(line.growth),
                escaped(&words::holds(line))
            );
        }
        out.push('\n');
    }
    if !modules.is_empty() {
        out.push_str("| module | change |\n|---|--:|\n");
        for module in modules {
            let _ = writeln!(out, "| {} | {} |", code(&module.name), words::plus(module.growth));
        }
        out.push('\n');
    }
    if let Some(problem) = &row.problem {
        let _ = writeln!(out, "{}\n", escaped(&problem.message));
        if let Some(hint) = &problem.hint {
            let _ = writeln!(out, "{}\n", escaped(hint));
        }
    }
    for note in beside.iter().chain(&row.notes) {
        let _ = writeln!(out, "- {}", escaped(note));
    }
    out.push_str("\n</details>\n");
}

/// Escapes a text for Markdown and HTML, on one line.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\n' | '\r' => out.push(' '),
            // `@name` would notify a user.
            '@' => out.push_str("&#64;"),
            '|' | '*' | '_' | '[' | ']' | '#' | '\\' | '~' => {
                out.push('\\');
                out.push(letter);
            }
            letter => out.push(letter),
        }
    }
    out
}

/// A code span for a table cell: backticks inside need a longer fence, and a vertical bar would end the cell.
fn code(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ").replace('|', "\\|");
    let longest = text.split(|letter| letter != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let pad = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    if text.is_empty() { String::new() } else { format!("{fence}{pad}{text}{pad}{fence}") }
}

/// The text with its first letter in upper case.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_a_pull_request_stay_text() {
        assert_eq!(
            escaped("<img src=x> @me | **b** a_b"),
            "&lt;img src=x&gt; &#64;me \\| \\*\\*b\\*\\* a\\_b"
        );
        assert_eq!(code("a | `b`"), "`` a \\| `b` ``");
        assert_eq!(code("x = 1"), "`x = 1`");
        assert_eq!(code(""), "");
        assert_eq!(capital("äb"), "Äb");
    }
}
