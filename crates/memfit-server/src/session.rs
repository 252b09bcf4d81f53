//! The open documents, what was found in each, and what is said about it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use memfit_lint::{Checked, Config, Edit, Level, Lines, Severity, Source, check_source};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::position::{of_byte, to_byte};
use crate::uri;

/// Where the pages of rules come from, in an editor's list of problems.
const SOURCE: &str = "memfit";

struct Document {
    source: Source,
    lines: Lines,
    version: Value,
}

/// What an editor's own settings may say, under `memfit`; what they leave out is as the project has it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wanted {
    select: Option<Vec<String>>,
    extend_select: Option<Vec<String>>,
    ignore: Option<Vec<String>>,
    severity: Option<BTreeMap<String, Level>>,
}

/// The conversation so far.
pub(crate) struct Session {
    /// As the project has it.
    project: Config,
    config: Config,
    documents: HashMap<String, Document>,
}

impl Session {
    pub(crate) fn new(config: Config) -> Self {
        Self { project: config.clone(), config, documents: HashMap::new() }
    }

    pub(crate) fn close(&mut self, uri: &str) {
        self.documents.remove(uri);
    }

    /// Takes a document and says what is found in it.
    pub(crate) fn open(&mut self, uri: &str, text: &str, version: &Value) -> Value {
        let path = uri::to_path(uri);
        let Ok(source) = check_source(&path, text, &self.config) else {
            return json!({"uri": uri, "diagnostics": []});
        };
        let document = Document { source, lines: Lines::new(text), version: version.clone() };
        let diagnostics = document.diagnostics(uri);
        self.documents.insert(uri.to_owned(), document);
        json!({"uri": uri, "version": version, "diagnostics": diagnostics})
    }

    /// What is found in an open document, for those who ask.
    pub(crate) fn found(&self, uri: &str) -> Vec<Value> {
        self.documents.get(uri).map_or_else(Vec::new, |document| document.diagnostics(uri))
    }

    /// Takes the editor's settings, and looks at every open document anew. Settings that cannot be meant change nothing.
    pub(crate) fn configure(&mut self, settings: &Value) -> Vec<Value> {
        let Ok(wanted) = Wanted::deserialize(settings.get("memfit").unwrap_or(&Value::Null)) else {
            return Vec::new();
        };
        let mut config = self.project.clone();
        config.select = wanted.select.unwrap_or(config.select);
        config.extend = wanted.extend_select.unwrap_or(config.extend);
        config.ignore = wanted.ignore.unwrap_or(config.ignore);
        config.severity = wanted.severity.unwrap_or(config.severity);
        if config.validate().is_err() {
            return Vec::new();
        }
        self.config = config;
        let open: Vec<(String, Arc<str>, Value)> = self
            .documents
            .iter()
            .map(|(uri, document)| (uri.clone(), document.source.text.clone(), document.version.clone()))
            .collect();
        open.iter().map(|(uri, text, version)| self.open(uri, text, version)).collect()
    }

    /// The page of the rule that found something here.
    pub(crate) fn hover(&self, uri: &str, position: &Value) -> Value {
        let Some(document) = self.documents.get(uri) else { return Value::Null };
        let at = to_byte(position, &document.source.text, &document.lines);
        let here = |finding: &&Checked| finding.span.is_some_and(|span| span.start <= at && at <= span.end);
        let Some(finding) = document.source.findings.iter().find(here) else { return Value::Null };
        let Some(rule) = memfit_lint::rule(finding.rule) else { return Value::Null };
        let span = finding.span.unwrap_or_default();
        json!({
            "contents": {"kind": "markdown", "value": memfit_lint::page(rule)},
            "range": document.range(span.start, span.end),
        })
    }

    /// Fixes of what is found in a range, the ways to keep it quiet, and one action for all that is safe.
    pub(crate) fn actions(&self, uri: &str, range: &Value, context: &Value) -> Value {
        let Some(document) = self.documents.get(uri) else { return Value::Null };
        let wanted = |kind: &str| {
            context.get("only").and_then(Value::as_array).is_none_or(|only| {
                only.iter()
                    .filter_map(Value::as_str)
                    .any(|prefix| kind == prefix || kind.starts_with(&format!("{prefix}.")))
            })
        };
        let text = &document.source.text;
        let (start, end) =
            (to_byte(&range["start"], text, &document.lines), to_byte(&range["end"], text, &document.lines));
        let mut actions = Vec::new();
        if wanted("quickfix") {
            for finding in &document.source.findings {
                let touches = finding.span.is_some_and(|span| span.start <= end && start <= span.end);
                if touches {
                    actions.extend(document.quick_fixes(uri, finding));
                }
            }
        }
        if wanted("source.fixAll.memfit")
            && let Ok(applied) = document.source.fixed(false, &self.config)
            && applied.text != **text
        {
            let whole = Edit::replace(memfit_lint::Span::new(0, text.len() as u32), applied.text);
            actions.push(json!({
                "title": "memfit: mend all that is safe to mend",
                "kind": "source.fixAll.memfit",
                "edit": document.workspace_edit(uri, &[whole]),
            }));
        }
        Value::Array(actions)
    }
}

impl Document {
    fn diagnostics(&self, uri: &str) -> Vec<Value> {
        self.source.findings.iter().filter_map(|finding| self.diagnostic(uri, finding)).collect()
    }

    fn range(&self, start: u32, end: u32) -> Value {
        let text = &self.source.text;
        json!({"start": of_byte(start, text, &self.lines), "end": of_byte(end, text, &self.lines)})
    }

    fn diagnostic(&self, uri: &str, finding: &Checked) -> Option<Value> {
        let span = finding.span?;
        let severity = match finding.severity {
            Severity::Error => 1,
            Severity::Warning => 2,
            Severity::Note => 3,
        };
        let message = match &finding.help {
            Some(help) => format!("{}\n{help}", finding.message),
            None => finding.message.clone(),
        };
        // The places of a notebook's labels are those of its code, which is not the file.
        let related: Vec<Value> = finding
            .labels
            .iter()
            .filter(|_| finding.start.cell.is_none())
            .map(|label| json!({"location": {"uri": uri, "range": self.range(label.span.start, label.span.end)}, "message": label.text}))
            .collect();
        Some(json!({
            "range": self.range(span.start, span.end),
            "severity": severity,
            "code": finding.rule,
            "source": SOURCE,
            "message": message,
            "relatedInformation": related,
        }))
    }

    fn workspace_edit(&self, uri: &str, edits: &[Edit]) -> Value {
        let edits: Vec<Value> = edits
            .iter()
            .map(|edit| json!({"range": self.range(edit.span.start, edit.span.end), "newText": edit.text}))
            .collect();
        json!({"changes": {uri: edits}})
    }

    fn quick_fixes(&self, uri: &str, finding: &Checked) -> Vec<Value> {
        let diagnostics: Vec<Value> = self.diagnostic(uri, finding).into_iter().collect();
        let mut actions = Vec::new();
        if let Some(fix) = &finding.fix {
            let doubt = if fix.safe { "" } else { " (look at what it changes)" };
            actions.push(json!({
                "title": format!("memfit: {}{doubt}", fix.title),
                "kind": "quickfix",
                "isPreferred": fix.safe,
                "diagnostics": diagnostics,
                "edit": self.workspace_edit(uri, &fix.edits),
            }));
        }
        if let (Some(span), None) = (finding.span, finding.start.cell) {
            let line = self.lines.line_of(span.start);
            let whole = self.lines.text_of(line, &self.source.text);
            let end = self.lines.start_of(line, &self.source.text)
                + whole.trim_end_matches(['\n', '\r']).len() as u32;
            let comment = format!("  # memfit: ignore[{}] ", finding.rule);
            actions.push(json!({
                "title": format!("memfit: ignore `{}` on this line", finding.rule),
                "kind": "quickfix",
                "diagnostics": diagnostics,
                "edit": self.workspace_edit(uri, &[Edit::insert(end, comment)]),
            }));
        }
        actions
    }
}
