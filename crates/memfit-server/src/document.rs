//! Open documents with their findings: a file, or a notebook, whose cells are documents for the editor.
//!
//! A notebook is checked as one text, like its file: positions in it are translated to its cells.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use memfit_lint::{Checked, Config, Edit, Lines, Severity, Source, Span, check_source};
use memfit_source::{Dialect, NoModules};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::position::{offset_at, position_at};

/// Source name of diagnostics in the editor.
const SOURCE: &str = "memfit";
/// Command of the code lens that runs a file. The editor executes it: the server runs nothing.
pub(crate) const RUN: &str = "memfit.run";

/// Text with the editor's URI.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) uri: String,
    pub(crate) version: Value,
    pub(crate) text: Arc<str>,
}

/// Open document with the result of its check.
pub(crate) struct Document {
    source: Source,
    config: Config,
    /// Prefix of the URIs of rule pages, if the editor opens them.
    rule_pages: Option<String>,
    parts: Vec<Part>,
}

/// Text of the editor, and its position in the checked text.
struct Part {
    of: Item,
    lines: Lines,
    /// Span in the checked text.
    span: Span,
    /// `true` if it is encoded as a JSON string there.
    quoted: bool,
}

/// Structure of a notebook's file that is parsed back.
#[derive(Deserialize)]
struct Cells {
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    source: String,
}

impl Document {
    /// Checks a file.
    pub(crate) fn file(path: &Path, text: Item, config: Config, rule_pages: Option<String>) -> Self {
        let source = checked(path, &text.text, &config);
        let lines = Lines::new(&text.text);
        let span = Span::new(0, text.text.len() as u32);
        Self { source, config, rule_pages, parts: vec![Part { of: text, lines, span, quoted: false }] }
    }

    /// Checks a notebook.
    pub(crate) fn notebook(
        path: &Path,
        cells: Vec<Item>,
        config: Config,
        rule_pages: Option<String>,
    ) -> Self {
        let mut written = String::from("{\"cells\": [");
        let mut parts = Vec::with_capacity(cells.len());
        for cell in cells {
            if !parts.is_empty() {
                written.push(',');
            }
            written.push_str("{\"cell_type\": \"code\", \"source\": \"");
            let start = written.len() as u32;
            written.push_str(&json_escaped(&cell.text));
            let span = Span::new(start, written.len() as u32);
            written.push_str("\"}");
            parts.push(Part { lines: Lines::new(&cell.text), of: cell, span, quoted: true });
        }
        written.push_str("]}");
        // The extension marks it as a notebook, whatever the editor's URI.
        let source = checked(&path.with_extension("ipynb"), &written, &config);
        Self { source, config, rule_pages, parts }
    }

    /// Texts.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &Item> {
        self.parts.iter().map(|part| &part.of)
    }

    /// Returns `true` for a notebook.
    pub(crate) fn is_notebook(&self) -> bool {
        self.parts.iter().all(|part| part.quoted)
    }

    /// Diagnostics of each of its texts, as notifications.
    pub(crate) fn diagnostic_reports(&self) -> Vec<Value> {
        let report_of_part = |part: &Part| {
            let diagnostics = self.diagnostics(&part.of.uri);
            json!({"uri": part.of.uri, "version": part.of.version, "diagnostics": diagnostics})
        };
        self.parts.iter().map(report_of_part).collect()
    }

    /// Diagnostics of one of its texts.
    pub(crate) fn diagnostics(&self, uri: &str) -> Vec<Value> {
        let here = |finding: &&Checked| {
            finding.span.and_then(|span| self.part_at(span.start)).is_some_and(|part| part.of.uri == uri)
        };
        self.source.findings.iter().filter(here).filter_map(|finding| self.diagnostic(finding)).collect()
    }

    /// Documentation page of the rule with a finding at this position.
    pub(crate) fn hover(&self, uri: &str, position: &Value) -> Value {
        let Some(at) = self.offset_at(uri, position) else { return Value::Null };
        let here = |finding: &&Checked| finding.span.is_some_and(|span| span.start <= at && at <= span.end);
        let found = self.source.findings.iter().find(here);
        let Some(span) = found.and_then(|finding| finding.span) else { return Value::Null };
        let Some(rule) = found.and_then(|finding| memfit_lint::rule(finding.rule)) else {
            return Value::Null;
        };
        let range = self.part_at(span.start).map(|part| self.range(part, span));
        json!({
            "contents": {"kind": "markdown", "value": memfit_lint::page(rule)},
            "range": range,
        })
    }

    /// Lens that runs the file, where running it trains.
    pub(crate) fn run_lens(&self, gpu: &str) -> Option<Value> {
        let [part] = self.parts.as_slice() else { return None };
        if part.quoted || !part.of.uri.starts_with("file:") || !memfit_source::is_relevant(&part.of.text) {
            return None;
        }
        let facts = memfit_source::facts(&part.of.text, Dialect::Python, &NoModules).ok()?;
        Some(json!({
            "range": self.range(part, facts.training_entry()?),
            "command": {
                "title": format!("Run on a virtual GPU ({gpu})"),
                "command": RUN,
                "arguments": [part.of.uri, gpu],
            },
        }))
    }

    /// Code actions for a range: fixes, suppressions, and one action for all safe fixes.
    pub(crate) fn actions(&self, uri: &str, range: &Value, context: &Value) -> Value {
        let wanted = |kind: &str| {
            context.get("only").and_then(Value::as_array).is_none_or(|only| {
                only.iter()
                    .filter_map(Value::as_str)
                    .any(|prefix| kind == prefix || kind.starts_with(&format!("{prefix}.")))
            })
        };
        let (Some(start), Some(end)) =
            (self.offset_at(uri, &range["start"]), self.offset_at(uri, &range["end"]))
        else {
            return Value::Null;
        };
        let mut actions = Vec::new();
        if wanted("quickfix") {
            for finding in &self.source.findings {
                if finding.span.is_some_and(|span| span.start <= end && start <= span.end) {
                    actions.extend(self.quick_fixes(finding));
                }
            }
        }
        if wanted("source.fixAll.memfit")
            && let Some(edit) = self.fix_all_edit()
        {
            actions.push(json!({
                "title": "memfit: apply all safe fixes",
                "kind": "source.fixAll.memfit",
                "edit": edit,
            }));
        }
        Value::Array(actions)
    }

    fn part_at(&self, byte: u32) -> Option<&Part> {
        self.parts.iter().find(|part| part.span.start <= byte && byte <= part.span.end)
    }

    /// Converts a position in one of the texts to an offset in the checked text.
    fn offset_at(&self, uri: &str, position: &Value) -> Option<u32> {
        let part = self.parts.iter().find(|part| part.of.uri == uri)?;
        let within = offset_at(position, &part.of.text, &part.lines);
        if !part.quoted {
            return Some(within);
        }
        Some(part.span.start + json_escaped(part.of.text.get(..within as usize)?).len() as u32)
    }

    /// Converts an offset in the checked text to an offset in a part's text.
    fn offset_in_part(&self, part: &Part, byte: u32) -> u32 {
        let byte = byte.clamp(part.span.start, part.span.end);
        let before = Span::new(part.span.start, byte).slice(&self.source.text);
        if part.quoted { json_unescaped(before).len() as u32 } else { before.len() as u32 }
    }

    fn range(&self, part: &Part, span: Span) -> Value {
        let place = |byte: u32| position_at(self.offset_in_part(part, byte), &part.of.text, &part.lines);
        json!({"start": place(span.start), "end": place(span.end)})
    }

    fn diagnostic(&self, finding: &Checked) -> Option<Value> {
        let span = finding.span?;
        let part = self.part_at(span.start)?;
        let severity = match finding.severity {
            Severity::Error => 1,
            Severity::Warning => 2,
            Severity::Note => 3,
        };
        let message = match &finding.help {
            Some(help) => format!("{}\n{help}", finding.message),
            None => finding.message.clone(),
        };
        // Labels of a notebook have positions in its code, which is not the checked text.
        let related: Vec<Value> = finding
            .labels
            .iter()
            .filter(|_| !part.quoted)
            .map(|label| {
                let range = self.range(part, label.span);
                json!({"location": {"uri": part.of.uri, "range": range}, "message": label.text})
            })
            .collect();
        let mut diagnostic = json!({
            "range": self.range(part, span),
            "severity": severity,
            "code": finding.rule,
            "source": SOURCE,
            "message": message,
            "relatedInformation": related,
        });
        if let Some(pages) = &self.rule_pages {
            diagnostic["codeDescription"] = json!({"href": format!("{pages}{}.md", finding.rule)});
        }
        Some(diagnostic)
    }

    fn workspace_edit(&self, edits: &[Edit]) -> Option<Value> {
        let mut changes: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for edit in edits {
            let part = self.part_at(edit.span.start)?;
            let text = if part.quoted { json_unescaped(&edit.text) } else { edit.text.clone() };
            let changed = json!({"range": self.range(part, edit.span), "newText": text});
            changes.entry(&part.of.uri).or_default().push(changed);
        }
        Some(json!({"changes": changes}))
    }

    fn quick_fixes(&self, finding: &Checked) -> Vec<Value> {
        let diagnostics: Vec<Value> = self.diagnostic(finding).into_iter().collect();
        let mut actions = Vec::new();
        if let Some(fix) = &finding.fix
            && let Some(edit) = self.workspace_edit(&fix.edits)
        {
            let doubt = if fix.safe { "" } else { " (look at what it changes)" };
            actions.push(json!({
                "title": format!("memfit: {}{doubt}", fix.title),
                "kind": "quickfix",
                "isPreferred": fix.safe,
                "diagnostics": diagnostics,
                "edit": edit,
            }));
        }
        if let Some(span) = finding.span
            && let Some(part) = self.part_at(span.start)
        {
            let text = &part.of.text;
            let line = part.lines.line_of(self.offset_in_part(part, span.start));
            let whole = part.lines.line_text(line, text);
            let end = part.lines.line_start(line, text) + whole.trim_end_matches(['\n', '\r']).len() as u32;
            let place = position_at(end, text, &part.lines);
            let comment = format!("  # memfit: ignore[{}] ", finding.rule);
            let edit = json!({"range": {"start": place, "end": place}, "newText": comment});
            actions.push(json!({
                "title": format!("memfit: ignore `{}` on this line", finding.rule),
                "kind": "quickfix",
                "diagnostics": diagnostics,
                "edit": {"changes": {&part.of.uri: [edit]}},
            }));
        }
        actions
    }

    /// Workspace edit that replaces each changed text as a whole.
    fn fix_all_edit(&self) -> Option<Value> {
        let applied = self.source.fix_all(false, &self.config).ok()?;
        let after: Vec<String> = if self.is_notebook() {
            let cells: Cells = serde_json::from_str(&applied.text).ok()?;
            cells.cells.into_iter().map(|cell| cell.source).collect()
        } else {
            vec![applied.text]
        };
        let mut changes: BTreeMap<&str, Value> = BTreeMap::new();
        for (part, after) in self.parts.iter().zip(after) {
            if after != *part.of.text {
                let range = self.range(part, part.span);
                changes.insert(&part.of.uri, json!([{"range": range, "newText": after}]));
            }
        }
        (!changes.is_empty()).then(|| json!({"changes": changes}))
    }
}

fn checked(path: &Path, text: &str, config: &Config) -> Source {
    if !config.excludes(path)
        && let Ok(source) = check_source(path, text, config)
    {
        return source;
    }
    Source { path: path.to_owned(), text: text.into(), findings: Vec::new(), problems: Vec::new() }
}

/// Encodes a text as the content of a JSON string.
fn json_escaped(text: &str) -> String {
    let string = Value::from(text).to_string();
    string.get(1..string.len() - 1).unwrap_or_default().to_owned()
}

/// Decodes the content of a JSON string.
fn json_unescaped(text: &str) -> String {
    serde_json::from_str(&format!("\"{text}\"")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{json_escaped, json_unescaped};

    #[test]
    fn quotes_go_there_and_back() {
        for text in ["", "a\n\"b\"\t\\n", "é𝄞\u{8}", "x = 'y'\r\n"] {
            assert_eq!(json_unescaped(&json_escaped(text)), text);
        }
        assert_eq!(json_unescaped("broken \\"), "");
    }
}
