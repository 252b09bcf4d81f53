//! What `memfit check` says.

use serde::Serialize;

/// Findings, and what could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// `memfit.check/1`
    pub schema: &'static str,
    /// What was found.
    pub findings: Vec<CheckFinding>,
    /// What could not be read.
    pub problems: Vec<CheckProblem>,
    /// How many files were looked at.
    pub files: usize,
    /// How many findings were fixed.
    pub fixed: usize,
}

/// A finding. Lines and columns count from 1, columns in characters; in a notebook they are those of the
/// cell.
#[derive(Clone, Debug, Serialize)]
pub struct CheckFinding {
    /// The rule's name.
    pub rule: String,
    /// `error`, `warning` or `note`
    pub severity: String,
    /// The path, as it was named.
    pub file: String,
    /// The cell of a notebook, from 1.
    pub cell: Option<u32>,
    /// Where it begins.
    pub line: u32,
    /// Where it begins.
    pub column: u32,
    /// Where it ends.
    pub end_line: u32,
    /// Where it ends.
    pub end_column: u32,
    /// Where it is in the file, if that has it in one piece: for those who show files and know nothing of
    /// cells.
    #[serde(skip)]
    pub in_file: Option<Region>,
    /// What is wrong, and what that does.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
    /// Other places that belong to it.
    pub labels: Vec<CheckLabel>,
    /// How to mend it.
    pub fix: Option<CheckFix>,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it begins.
    pub line: u32,
    /// Where it begins.
    pub column: u32,
    /// Where it ends.
    pub end_line: u32,
    /// Where it ends.
    pub end_column: u32,
}

/// Another place of a finding.
#[derive(Clone, Debug, Serialize)]
pub struct CheckLabel {
    /// Where.
    pub line: u32,
    /// Where.
    pub column: u32,
    /// What is there.
    pub message: String,
}

/// A fix.
#[derive(Clone, Debug, Serialize)]
pub struct CheckFix {
    /// It changes nothing that the program computes.
    pub safe: bool,
    /// What it does.
    pub title: String,
    /// The changes, all of which belong together. They are places in the file, for notebooks too.
    pub edits: Vec<CheckEdit>,
}

/// A change of a file.
#[derive(Clone, Debug, Serialize)]
pub struct CheckEdit {
    /// Where it begins.
    pub line: u32,
    /// Where it begins.
    pub column: u32,
    /// Where it ends.
    pub end_line: u32,
    /// Where it ends.
    pub end_column: u32,
    /// What stands there afterwards.
    pub text: String,
}

/// Something that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct CheckProblem {
    /// The path.
    pub file: String,
    /// Where, if it is one place.
    pub line: Option<u32>,
    /// Where, if it is one place.
    pub column: Option<u32>,
    /// What.
    pub message: String,
    /// Nothing of the file was checked.
    pub fatal: bool,
}

impl CheckReport {
    /// What a check found.
    pub fn new(report: &memfit_lint::Report, fixed: usize) -> Self {
        let mut findings = Vec::new();
        let mut problems = Vec::new();
        for source in &report.files {
            let file = source.path.display().to_string();
            let lines = memfit_lint::Lines::new(&source.text);
            findings.extend(source.findings.iter().map(|finding| {
                CheckFinding {
                    rule: finding.rule.to_owned(),
                    severity: finding.severity.name().to_owned(),
                    file: file.clone(),
                    cell: finding.start.cell,
                    line: finding.start.line,
                    column: finding.start.column,
                    end_line: finding.end.line,
                    end_column: finding.end.column,
                    in_file: finding.span.map(|span| region(span, &source.text, &lines)),
                    message: finding.message.clone(),
                    help: finding.help.clone(),
                    labels: finding
                        .labels
                        .iter()
                        .map(|label| CheckLabel {
                            line: label.start.line,
                            column: label.start.column,
                            message: label.text.clone(),
                        })
                        .collect(),
                    fix: finding.fix.as_ref().map(|fix| CheckFix {
                        safe: fix.safe,
                        title: fix.title.clone(),
                        edits: fix.edits.iter().map(|edit| edit_of(edit, &source.text, &lines)).collect(),
                    }),
                }
            }));
            problems.extend(source.problems.iter().map(|problem| CheckProblem {
                file: file.clone(),
                line: problem.start.map(|start| start.line),
                column: problem.start.map(|start| start.column),
                message: problem.message.clone(),
                fatal: problem.fatal,
            }));
        }
        Self { schema: super::schema::CHECK, findings, problems, files: report.read, fixed }
    }
}

fn edit_of(edit: &memfit_lint::Edit, text: &str, lines: &memfit_lint::Lines) -> CheckEdit {
    let Region { line, column, end_line, end_column } = region(edit.span, text, lines);
    CheckEdit { line, column, end_line, end_column, text: edit.text.clone() }
}

fn region(span: memfit_lint::Span, text: &str, lines: &memfit_lint::Lines) -> Region {
    let (start, end) = (lines.position(span.start, text), lines.position(span.end, text));
    Region { line: start.line, column: start.column, end_line: end.line, end_column: end.column }
}
