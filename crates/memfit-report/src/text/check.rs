//! Text output of `memfit check`: with source lines, or one line per finding.

use std::fmt::Write as _;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use anstyle::{AnsiColor, Style};
use memfit_lint::{Checked, Report, Severity};
use memfit_vocabulary::one_line;

use super::{Canvas, paint};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const NOTE: Style = AnsiColor::Cyan.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default().bold();

/// Maximum distance in lines at which a related location is shown together with its finding.
const MAX_DISTANCE: usize = 40;

/// Renders the findings with annotated source lines.
pub fn findings(report: &Report, fixed: usize, canvas: Canvas) -> String {
    let mut text = String::new();
    for source in &report.files {
        for finding in &source.findings {
            text.push_str(&finding_text(&one_line(&source.path.display().to_string()), finding, canvas));
            text.push_str("\n\n");
        }
    }
    text.push_str(&summary(report, fixed));
    text
}

/// Renders one line per finding.
pub fn concise(report: &Report, fixed: usize) -> String {
    let mut text = String::new();
    for source in &report.files {
        for finding in &source.findings {
            let cell = finding.start.cell.map(|cell| format!("cell {cell}:")).unwrap_or_default();
            let _ = writeln!(
                text,
                "{}:{cell}{}:{}: {} {}",
                one_line(&source.path.display().to_string()),
                finding.start.line,
                finding.start.column,
                paint(style(finding.severity), &format!("{}[{}]", finding.severity, finding.rule)),
                finding.message
            );
        }
    }
    text.push_str(&summary(report, fixed));
    text
}

const fn style(severity: Severity) -> Style {
    match severity {
        Severity::Error => ERROR,
        Severity::Warning => WARNING,
        Severity::Note => NOTE,
    }
}

fn finding_text(path: &str, finding: &Checked, canvas: Canvas) -> String {
    let level = match finding.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let path = match finding.start.cell {
        Some(cell) => format!("{path}, cell {cell}"),
        None => path.to_owned(),
    };
    let shown = &finding.shown;
    // Only the lines around the places are rendered, so the length of the file does not matter.
    let line_of = |at: usize| shown.text.get(..at).unwrap_or_default().matches('\n').count();
    let own = line_of(shown.span.start as usize);
    let labels: Vec<_> = finding
        .labels
        .iter()
        .filter(|label| line_of(label.span.start as usize).abs_diff(own) <= MAX_DISTANCE)
        .collect();
    let first =
        labels.iter().map(|label| label.span.start).chain([shown.span.start]).min().unwrap_or_default()
            as usize;
    let last =
        labels.iter().map(|label| label.span.end).chain([shown.span.end]).max().unwrap_or_default() as usize;
    let begin = shown.text.get(..first).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
    let end =
        shown.text.get(last..).and_then(|after| after.find('\n')).map_or(shown.text.len(), |at| last + at);
    let Some(part) = shown.text.get(begin..end) else { return format!("{path}: {}", finding.message) };
    let cell_lines = finding.start.line as usize;
    let line = if finding.start.cell.is_some() {
        // The cells of a notebook are one text; line numbers are relative to the cell.
        cell_lines.saturating_sub(own - line_of(begin)).max(1)
    } else {
        line_of(begin) + 1
    };
    let within = |start: u32, end: u32| {
        let clamp = |at: u32| (at as usize).saturating_sub(begin).min(part.len());
        clamp(start)..clamp(end).max(clamp(start))
    };
    let mut snippet = Snippet::source(part)
        .path(&path)
        .line_start(line)
        .annotation(AnnotationKind::Primary.span(within(shown.span.start, shown.span.end)));
    for label in &labels {
        let span = within(label.span.start, label.span.end);
        snippet = snippet.annotation(AnnotationKind::Context.span(span).label(&label.text));
    }
    let title = level.primary_title(&finding.message).id(finding.rule);
    let mut group: Group<'_> = title.element(snippet);
    if let Some(help) = &finding.help {
        group = group.element(Level::HELP.message(help));
    }
    if let Some(fix) = &finding.fix {
        let how = if fix.safe {
            "`--fix` applies it"
        } else {
            "`--fix --unsafe-fixes` applies it: review the change"
        };
        group = group.element(Level::NOTE.with_name("fix").message(how));
    }
    let renderer = Renderer::styled().term_width(canvas.width.max(40));
    let renderer = if canvas.unicode {
        renderer.decor_style(annotate_snippets::renderer::DecorStyle::Unicode)
    } else {
        renderer
    };
    renderer.render(&[group])
}

/// Counts by severity, and the command that fixes them.
fn summary(report: &Report, fixed: usize) -> String {
    let all = || report.files.iter().flat_map(|source| &source.findings);
    let count = |severity| all().filter(|finding| finding.severity == severity).count();
    let mut text = String::new();
    if fixed > 0 {
        let _ = writeln!(text, "{}", paint(GOOD, &format!("{} fixed.", number(fixed, "finding"))));
    }
    let files = number(report.read, "file");
    if all().next().is_none() {
        let _ = writeln!(text, "{} in {files}.", paint(GOOD, "Nothing found"));
        return text;
    }
    let mut parts = Vec::new();
    for severity in [Severity::Error, Severity::Warning, Severity::Note] {
        let found = count(severity);
        if found > 0 {
            parts.push(paint(style(severity), &number(found, severity.name())));
        }
    }
    let _ = writeln!(text, "{} in {files}.", parts.join(", "));
    let fixes =
        |safe| all().filter(|finding| finding.fix.as_ref().is_some_and(|fix| fix.safe == safe)).count();
    match (fixes(true), fixes(false)) {
        (0, 0) => {}
        (safe, 0) => {
            let _ = writeln!(text, "`--fix` fixes {safe} of them.");
        }
        (0, more) => {
            let _ = writeln!(text, "`--fix --unsafe-fixes` fixes {more} of them.");
        }
        (safe, more) => {
            let _ = writeln!(text, "`--fix` fixes {safe} of them, `--fix --unsafe-fixes` {more} more.");
        }
    }
    text
}

fn number(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
