//! Output of `memfit check`.

use serde::Serialize;

/// Findings, and files that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// [`schema::CHECK`](super::schema::CHECK).
    pub schema: &'static str,
    /// Findings.
    pub findings: Vec<CheckFinding>,
    /// Files that could not be read.
    pub problems: Vec<CheckProblem>,
    /// Number of files.
    pub files: usize,
    /// Number of fixed findings.
    pub fixed: usize,
}

/// A finding. Lines and columns count from 1, columns in characters; in a notebook they are relative to the
/// cell.
#[derive(Clone, Debug, Serialize)]
pub struct CheckFinding {
    /// The rule's name.
    pub rule: String,
    /// `error`, `warning` or `note`
    pub severity: String,
    /// The path as given on the command line.
    pub file: String,
    /// The cell of a notebook, counted from 1.
    pub cell: Option<u32>,
    /// Start line.
    pub line: u32,
    /// Start column.
    pub column: u32,
    /// End line.
    pub end_line: u32,
    /// End column.
    pub end_column: u32,
    /// Position in the file, if the code is contiguous in it. For programs that display files and do not know
    /// notebook cells.
    #[serde(skip)]
    pub in_file: Option<Region>,
    /// The mistake and its consequence.
    pub message: String,
    /// Advice.
    pub help: Option<String>,
    /// Related places.
    pub labels: Vec<CheckLabel>,
    /// The fix.
    pub fix: Option<CheckFix>,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Start line.
    pub line: u32,
    /// Start column.
    pub column: u32,
    /// End line.
    pub end_line: u32,
    /// End column.
    pub end_column: u32,
}

/// A related place of a finding.
#[derive(Clone, Debug, Serialize)]
pub struct CheckLabel {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
    /// Description.
    pub message: String,
}

/// A fix.
#[derive(Clone, Debug, Serialize)]
pub struct CheckFix {
    /// `true` if the fix does not change what the program computes.
    pub safe: bool,
    /// Summary.
    pub title: String,
    /// The edits, which belong together. Positions refer to the file, also for notebooks.
    pub edits: Vec<CheckEdit>,
}

/// A change of a file.
#[derive(Clone, Debug, Serialize)]
pub struct CheckEdit {
    /// Start line.
    pub line: u32,
    /// Start column.
    pub column: u32,
    /// End line.
    pub end_line: u32,
    /// End column.
    pub end_column: u32,
    /// Replacement text.
    pub text: String,
}

/// A file, or a part of it, that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct CheckProblem {
    /// The path.
    pub file: String,
    /// Line, if the problem has a location.
    pub line: Option<u32>,
    /// Column, if the problem has a location.
    pub column: Option<u32>,
    /// Description.
    pub message: String,
    /// `true` if nothing in the file was checked.
    pub fatal: bool,
}

impl CheckReport {
    /// Converts the result of a check to its wire form.
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
