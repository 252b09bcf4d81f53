//! SARIF 2.1.0, the format of findings for code hosts and editors.

use serde_json::{Value, json};

use crate::wire::{CheckFinding, CheckReport};

/// The properties of a rule that SARIF contains.
#[derive(Clone, Debug)]
pub struct RuleInfo {
    /// Name.
    pub name: String,
    /// Purpose in one sentence.
    pub summary: String,
    /// Page, in Markdown.
    pub page: String,
    /// Severity: `error`, `warning` or `note`.
    pub severity: String,
}

/// Converts the report to one SARIF run.
pub fn sarif(report: &CheckReport, rules: &[RuleInfo], version: &str) -> Value {
    let used_rules: Vec<&RuleInfo> =
        rules.iter().filter(|rule| report.findings.iter().any(|finding| finding.rule == rule.name)).collect();
    let descriptors: Vec<Value> = used_rules
        .iter()
        .map(|rule| {
            json!({
                "id": rule.name,
                "name": rule.name,
                "shortDescription": {"text": rule.summary},
                "help": {"text": rule.page, "markdown": rule.page},
                "defaultConfiguration": {"level": rule.severity},
            })
        })
        .collect();
    let results: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| result(finding, used_rules.iter().position(|rule| rule.name == finding.rule)))
        .collect();
    let notifications: Vec<Value> = report
        .problems
        .iter()
        .map(|problem| {
            let mut location = json!({"physicalLocation": {"artifactLocation": {"uri": uri(&problem.file)}}});
            if let Some(line) = problem.line {
                location["physicalLocation"]["region"] = json!({"startLine": line});
            }
            json!({"level": "warning", "message": {"text": problem.message}, "locations": [location]})
        })
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "memfit", "version": version, "rules": descriptors}},
            "columnKind": "unicodeCodePoints",
            "invocations": [{"executionSuccessful": true, "toolExecutionNotifications": notifications}],
            "results": results,
        }],
    })
}

fn result(finding: &CheckFinding, index: Option<usize>) -> Value {
    let text = match &finding.help {
        Some(help) => format!("{}; {help}", finding.message),
        None => finding.message.clone(),
    };
    let mut place = json!({"artifactLocation": {"uri": uri(&finding.file)}});
    if let Some(at) = finding.in_file {
        place["region"] = json!({
            "startLine": at.line,
            "startColumn": at.column,
            "endLine": at.end_line,
            "endColumn": at.end_column,
        });
    }
    let mut value = json!({
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
    });
    if let Some(index) = index {
        value["ruleIndex"] = json!(index);
    }
    if !finding.labels.is_empty() {
        let related: Vec<Value> = finding
            .labels
            .iter()
            .map(|label| {
                let mut place = json!({"artifactLocation": {"uri": uri(&finding.file)}});
                // In a notebook, a label's line is relative to its cell.
                if finding.cell.is_none() {
                    place["region"] = json!({"startLine": label.line, "startColumn": label.column});
                }
                json!({"message": {"text": label.message}, "physicalLocation": place})
            })
            .collect();
        // SARIF requires these to be distinct.
        let mut distinct: Vec<Value> = Vec::with_capacity(related.len());
        for place in related {
            if !distinct.contains(&place) {
                distinct.push(place);
            }
        }
        value["relatedLocations"] = Value::Array(distinct);
    }
    if let Some(fix) = finding.fix.as_ref().filter(|_| finding.cell.is_none()) {
        let replacements: Vec<Value> = fix
            .edits
            .iter()
            .map(|edit| {
                json!({
                    "deletedRegion": {
                        "startLine": edit.line, "startColumn": edit.column,
                        "endLine": edit.end_line, "endColumn": edit.end_column,
                    },
                    "insertedContent": {"text": edit.text},
                })
            })
            .collect();
        value["fixes"] = json!([{
            "description": {"text": fix.title},
            "artifactChanges": [{"artifactLocation": {"uri": uri(&finding.file)}, "replacements": replacements}],
        }]);
    }
    value
}

/// Converts a path to a relative URI reference; characters that a URI does not allow are escaped.
fn uri(path: &str) -> String {
    let mut result = String::with_capacity(path.len());
    for byte in path.trim_start_matches("./").bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) {
            result.push(char::from(byte));
        } else {
            let _ = std::fmt::Write::write_fmt(&mut result, format_args!("%{byte:02X}"));
        }
    }
    if path.starts_with('/') { format!("file://{result}") } else { result }
}
