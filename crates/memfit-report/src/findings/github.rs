//! Workflow commands of GitHub Actions: each finding becomes an annotation of a pull request.

use std::fmt::Write as _;

use crate::wire::CheckReport;

/// One command a finding.
pub fn github(report: &CheckReport) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let command = match finding.severity.as_str() {
            "error" => "error",
            "warning" => "warning",
            _ => "notice",
        };
        let message = match &finding.help {
            Some(help) => format!("{}; {help}", finding.message),
            None => finding.message.clone(),
        };
        let (line, end_line, columns) = match finding.in_file {
            // GitHub accepts columns only within one line.
            Some(at) if at.line == at.end_line => {
                (at.line, at.end_line, format!(",col={},endColumn={}", at.column, at.end_column))
            }
            Some(at) => (at.line, at.end_line, String::new()),
            None => (1, 1, String::new()),
        };
        let _ = writeln!(
            text,
            "::{command} file={},line={line},endLine={end_line}{columns},title={}::{}",
            property(&finding.file),
            property(&format!("memfit {}", finding.rule)),
            data(&message),
        );
    }
    text
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
