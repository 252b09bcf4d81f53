//! JUnit XML: one suite per file, one failed case per finding.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use memfit_vocabulary::acts;

use crate::wire::{CheckFinding, CheckReport};

/// The report as XML.
pub fn junit(report: &CheckReport) -> String {
    let mut files: BTreeMap<&str, Vec<&CheckFinding>> = BTreeMap::new();
    for finding in &report.findings {
        files.entry(&finding.file).or_default().push(finding);
    }
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        text,
        "<testsuites name=\"memfit check\" tests=\"{0}\" failures=\"{0}\" errors=\"0\">",
        report.findings.len().max(1) - usize::from(report.findings.is_empty())
    );
    for (file, findings) in &files {
        let count = findings.len();
        let _ = writeln!(
            text,
            "  <testsuite name=\"{}\" tests=\"{count}\" failures=\"{count}\" errors=\"0\">",
            escaped(file)
        );
        for finding in findings {
            let place = format!("{}:{}:{}", finding.file, finding.line, finding.column);
            let _ = writeln!(
                text,
                "    <testcase name=\"{}\" classname=\"{}\" file=\"{}\" line=\"{}\">",
                escaped(&finding.rule),
                escaped(file),
                escaped(file),
                finding.line
            );
            let _ = writeln!(
                text,
                "      <failure type=\"{}\" message=\"{}\">{}</failure>",
                escaped(&finding.severity),
                escaped(&finding.message),
                escaped(&place)
            );
            text.push_str("    </testcase>\n");
        }
        text.push_str("  </testsuite>\n");
    }
    text.push_str("</testsuites>\n");
    text
}

fn escaped(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => result.push_str("&amp;"),
            '<' => result.push_str("&lt;"),
            '>' => result.push_str("&gt;"),
            '"' => result.push_str("&quot;"),
            '\n' => result.push_str("&#10;"),
            // XML 1.0 cannot represent the other control characters.
            character if acts(character) && character != '\t' => result.push('\u{FFFD}'),
            character => result.push(character),
        }
    }
    result
}
