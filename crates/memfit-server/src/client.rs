//! The editor: its capabilities, and the requests to it.

use std::path::PathBuf;

use lsp_server::{Connection, Message, Request};
use serde_json::{Value, json};

use crate::document::RUN;
use crate::{ServerError, send, uri};

/// Files whose changes matter: settings of projects, and recordings.
const WATCHED: [&str; 2] = ["**/pyproject.toml", "**/*.memfit"];

/// Editor, as its `initialize` request describes it.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "capabilities are independent of each other")]
pub(crate) struct Client {
    /// `true` if the editor pulls diagnostics. The server then pushes none: they would be shown twice.
    pub(crate) pulls: bool,
    /// `true` if the editor can run the commands of code lenses.
    pub(crate) runs: bool,
    watches: bool,
    refreshes_hints: bool,
    refreshes_lenses: bool,
    /// Settings in the form of `workspace/didChangeConfiguration`.
    pub(crate) options: Value,
    /// First folder of the workspace.
    pub(crate) root: Option<PathBuf>,
}

impl Client {
    /// Reads the parameters of `initialize`.
    pub(crate) fn new(params: &Value) -> Self {
        let can = |path: &str| params.pointer(&format!("/capabilities/{path}")).and_then(Value::as_bool);
        let commands = params.pointer("/capabilities/experimental/commands/commands");
        let options = &params["initializationOptions"];
        let folder = params.pointer("/workspaceFolders/0/uri").or_else(|| params.get("rootUri"));
        Self {
            pulls: params.pointer("/capabilities/textDocument/diagnostic").is_some(),
            runs: commands
                .and_then(Value::as_array)
                .is_some_and(|known| known.iter().any(|name| name == RUN)),
            watches: can("workspace/didChangeWatchedFiles/dynamicRegistration") == Some(true),
            refreshes_hints: can("workspace/inlayHint/refreshSupport") == Some(true),
            refreshes_lenses: can("workspace/codeLens/refreshSupport") == Some(true),
            // Some editors send the settings themselves, others an object that contains them.
            options: if options.get("memfit").is_some() {
                options.clone()
            } else {
                json!({"memfit": options})
            },
            root: folder.and_then(Value::as_str).map(uri::to_path),
        }
    }

    /// Asks the editor to report changes of files.
    pub(crate) fn watch_files(&self, connection: &Connection) -> Result<(), ServerError> {
        if !self.watches {
            return Ok(());
        }
        let watchers: Vec<Value> = WATCHED.iter().map(|glob| json!({"globPattern": glob})).collect();
        let method = "workspace/didChangeWatchedFiles";
        let registration =
            json!({"id": "files", "method": method, "registerOptions": {"watchers": watchers}});
        request(connection, "client/registerCapability", json!({"registrations": [registration]}))
    }

    /// Asks the editor to query what it displays again.
    pub(crate) fn refresh(&self, connection: &Connection) -> Result<(), ServerError> {
        let kinds = [
            (self.pulls, "workspace/diagnostic/refresh"),
            (self.refreshes_hints, "workspace/inlayHint/refresh"),
            (self.refreshes_lenses, "workspace/codeLens/refresh"),
        ];
        kinds
            .into_iter()
            .filter(|(wanted, _)| *wanted)
            .try_for_each(|(_, method)| request(connection, method, Value::Null))
    }
}

/// Sends a request. Its method is its id: answers are not awaited.
fn request(connection: &Connection, method: &str, params: Value) -> Result<(), ServerError> {
    let request = Request::new(method.to_owned().into(), method.to_owned(), params);
    send(connection, Message::Request(request))
}
