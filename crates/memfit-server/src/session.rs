//! Open documents and notebooks, with the settings that each is checked under.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use memfit_lint::{Config, Level};
use serde::Deserialize;
use serde_json::Value;

use crate::Settings;
use crate::client::Client;
use crate::document::{Document, Item};
use crate::recorded::RecordingFile;
use crate::{changes, uri};

/// GPU in the command of the code lens ("run with memfit"), unless the editor's settings name another.
const DEFAULT_GPU: &str = "t4";

/// The editor's own settings under `memfit`; missing ones come from the file's project.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EditorSettings {
    select: Option<Vec<String>>,
    extend_select: Option<Vec<String>>,
    ignore: Option<Vec<String>>,
    severity: Option<BTreeMap<String, Level>>,
    /// Recording whose bytes are shown next to the lines; relative to the workspace's first folder.
    recording: Option<PathBuf>,
    /// GPU in the command of the code lens.
    gpu: Option<String>,
    /// Prefix of the URIs under which the editor opens rule pages.
    rule_pages: Option<String>,
}

impl EditorSettings {
    fn override_project(&self, project: Config) -> Config {
        Config {
            select: self.select.clone().unwrap_or(project.select),
            extend: self.extend_select.clone().unwrap_or(project.extend),
            ignore: self.ignore.clone().unwrap_or(project.ignore),
            severity: self.severity.clone().unwrap_or(project.severity),
            ..project
        }
    }
}

/// State of a session.
pub(crate) struct Session<'a> {
    settings: &'a dyn Settings,
    client: Client,
    editor_settings: EditorSettings,
    recording: RecordingFile,
    /// Files and notebooks by URI.
    documents: HashMap<String, Document>,
    /// Notebook of each cell.
    cells: HashMap<String, String>,
    /// Faults in settings that were not reported yet.
    pending_messages: Vec<String>,
    /// The last message, which is not repeated.
    last_message: Option<String>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(settings: &'a dyn Settings, client: Client) -> Self {
        let mut session = Self {
            settings,
            client,
            editor_settings: EditorSettings::default(),
            recording: RecordingFile::default(),
            documents: HashMap::new(),
            cells: HashMap::new(),
            pending_messages: Vec::new(),
            last_message: None,
        };
        let initial = session.client.options.take();
        session.configure(&initial);
        session
    }

    /// Capabilities of the editor.
    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Takes the messages for the user.
    pub(crate) fn take_messages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.pending_messages)
    }

    /// Opens a file and returns its diagnostics.
    pub(crate) fn open(&mut self, text: Item) -> Vec<Value> {
        let path = uri::to_path(&text.uri);
        let config = self.config_for(&path);
        let uri = text.uri.clone();
        self.store(uri, Document::file(&path, text, config, self.editor_settings.rule_pages.clone()))
    }

    /// Opens a notebook and returns the diagnostics of each code cell.
    pub(crate) fn open_notebook(&mut self, uri: &str, cells: Vec<Item>) -> Vec<Value> {
        let path = uri::to_path(uri);
        let config = self.config_for(&path);
        self.forget_cells(uri);
        for cell in &cells {
            self.cells.insert(cell.uri.clone(), uri.to_owned());
        }
        let pages = self.editor_settings.rule_pages.clone();
        self.store(uri.to_owned(), Document::notebook(&path, cells, config, pages))
    }

    /// Applies a change to a notebook.
    pub(crate) fn change_notebook(&mut self, uri: &str, change: &Value) -> Vec<Value> {
        let Some(document) = self.documents.get(uri).filter(|document| document.is_notebook()) else {
            return Vec::new();
        };
        let before: Vec<Item> = document.texts().cloned().collect();
        let after = changes::apply_cell_changes(before.clone(), change);
        let gone = before.into_iter().filter(|cell| after.iter().all(|kept| kept.uri != cell.uri));
        let mut reports: Vec<Value> = gone.map(|cell| nothing_in(&cell.uri)).collect();
        reports.extend(self.open_notebook(uri, after));
        reports
    }

    /// Text of an open file.
    pub(crate) fn text(&self, uri: &str) -> Option<&Item> {
        self.documents.get(uri).filter(|document| !document.is_notebook())?.texts().next()
    }

    /// Closes a file or a notebook, and clears its diagnostics.
    pub(crate) fn close(&mut self, uri: &str) -> Vec<Value> {
        self.forget_cells(uri);
        let closed = self.documents.remove(uri);
        closed.iter().flat_map(Document::texts).map(|text| nothing_in(&text.uri)).collect()
    }

    /// Checks every open document again, since settings may have changed.
    pub(crate) fn recheck_all(&mut self) -> Vec<Value> {
        let open: Vec<(String, bool, Vec<Item>)> = self
            .documents
            .iter()
            .map(|(uri, document)| (uri.clone(), document.is_notebook(), document.texts().cloned().collect()))
            .collect();
        open.into_iter()
            .flat_map(|(uri, is_notebook, texts)| {
                if is_notebook {
                    return self.open_notebook(&uri, texts);
                }
                texts.into_iter().flat_map(|text| self.open(text)).collect()
            })
            .collect()
    }

    /// Applies the editor's settings; invalid ones have no effect.
    pub(crate) fn configure(&mut self, settings: &Value) -> Vec<Value> {
        let asked = settings.get("memfit").filter(|asked| !asked.is_null());
        let wanted = match asked.map_or_else(|| Ok(EditorSettings::default()), EditorSettings::deserialize) {
            Ok(wanted) => wanted,
            Err(error) => {
                self.complain(format!(
                    "the editor's `memfit` settings are invalid and were ignored: {error}"
                ));
                return Vec::new();
            }
        };
        if let Err(error) = wanted.override_project(Config::default()).validate() {
            let why = format!("{error}; {}", error.hint());
            self.complain(format!("the editor's `memfit` settings are invalid and were ignored: {why}"));
            return Vec::new();
        }
        let root = self.client.root.clone().unwrap_or_default();
        self.recording.set_path(wanted.recording.as_ref().map(|path| root.join(path)));
        self.editor_settings = wanted;
        self.recheck_all()
    }

    /// Diagnostics of an open text, for an editor that pulls them.
    pub(crate) fn diagnostics(&self, uri: &str) -> Vec<Value> {
        self.document_of(uri).map_or_else(Vec::new, |document| document.diagnostics(uri))
    }

    /// Inlay hints: bytes of the recorded run next to the lines of a file.
    pub(crate) fn inlay_hints(&mut self, uri: &str, range: &Value) -> Value {
        if let Err(message) = self.recording.refresh() {
            self.complain(message);
        }
        let (Some(text), Some(recorded)) = (self.text(uri), self.recording.content()) else {
            return Value::Null;
        };
        let line = |end: &str| range.get(end)?.get("line")?.as_u64();
        let within =
            line("start").unwrap_or(0) as usize..=line("end").map_or(usize::MAX, |line| line as usize);
        recorded.hints(&uri::to_path(uri), &text.text, &within)
    }

    /// Code lenses of a file, if the editor knows their command.
    pub(crate) fn code_lenses(&self, uri: &str) -> Value {
        let document = self.documents.get(uri).filter(|_| self.client.runs);
        let gpu = self.editor_settings.gpu.as_deref().unwrap_or(DEFAULT_GPU);
        Value::Array(document.and_then(|document| document.run_lens(gpu)).into_iter().collect())
    }

    /// Document of a text, which may be one of its cells.
    pub(crate) fn document_of(&self, uri: &str) -> Option<&Document> {
        self.documents.get(self.cells.get(uri).map_or(uri, String::as_str))
    }

    fn store(&mut self, uri: String, document: Document) -> Vec<Value> {
        let reports = document.diagnostic_reports();
        self.documents.insert(uri, document);
        reports
    }

    fn forget_cells(&mut self, notebook: &str) {
        self.cells.retain(|_, of| of != notebook);
    }

    /// Settings of the file's project, overridden by the editor's.
    fn config_for(&mut self, path: &Path) -> Config {
        let project = self.settings.settings_for(path).unwrap_or_else(|message| {
            self.complain(message);
            Config::default()
        });
        self.editor_settings.override_project(project)
    }

    /// Adds a message, unless it is the last one.
    fn complain(&mut self, message: String) {
        if self.last_message.as_ref() != Some(&message) {
            self.last_message = Some(message.clone());
            self.pending_messages.push(message);
        }
    }
}

fn nothing_in(uri: &str) -> Value {
    serde_json::json!({"uri": uri, "diagnostics": []})
}
