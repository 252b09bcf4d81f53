//! GitLab's code quality report.

use serde_json::{Value, json};

use crate::wire::{CheckReport, Region};

/// Builds the report: one entry per finding.
pub fn gitlab(report: &CheckReport) -> Value {
    let mut seen = std::collections::HashMap::new();
    let entries = report
        .findings
        .iter()
        .map(|finding| {
            // The fingerprint of a finding does not change when lines above it are added or removed.
            let key = format!("{}\0{}\0{}", finding.file, finding.rule, finding.message);
            let count = seen.entry(key.clone()).and_modify(|count| *count += 1).or_insert(0_u32);
            let severity = match finding.severity.as_str() {
                "error" => "critical",
                "warning" => "major",
                _ => "info",
            };
            let at = finding.in_file.unwrap_or(Region { line: 1, column: 1, end_line: 1, end_column: 1 });
            json!({
                "description": finding.message,
                "check_name": finding.rule,
                "fingerprint": fingerprint(&format!("{key}\0{count}")),
                "severity": severity,
                "location": {
                    "path": finding.file,
                    "positions": {
                        "begin": {"line": at.line, "column": at.column},
                        "end": {"line": at.end_line, "column": at.end_column},
                    },
                },
            })
        })
        .collect();
    Value::Array(entries)
}

/// FNV-1a with two different offsets. It is an identifier, not a cryptographic hash.
fn fingerprint(text: &str) -> String {
    let hash = |begin: u64| {
        text.bytes().fold(begin, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    format!("{:016x}{:016x}", hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142))
}
