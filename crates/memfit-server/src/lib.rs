//! Language server: findings, fixes and rule pages in an editor, and bytes of the last run next to its lines.
//!
//! The crate implements the protocol with an editor: open documents and notebooks, their findings, and the
//! answers about them ([`serve`]). Documents are checked when they change, and are never written; nothing is
//! run. The rules are those of `memfit-lint`; [`Settings`] provides the settings for a file.

mod changes;
mod client;
mod document;
mod position;
mod recorded;
mod session;
mod uri;

use std::path::Path;

use lsp_server::{Connection, Message, Notification, Request, Response};
use memfit_lint::Config;
use serde_json::{Value, json};

use client::Client;
use session::Session;

/// Provider of a file's settings.
pub trait Settings {
    /// Settings of the project that contains the file, or the fault in them, as a sentence.
    fn settings_for(&self, file: &Path) -> Result<Config, String>;
}

impl<F: Fn(&Path) -> Result<Config, String>> Settings for F {
    fn settings_for(&self, file: &Path) -> Result<Config, String> {
        self(file)
    }
}

/// Error that ended the session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Violation of the protocol.
    #[error("the editor violated the protocol: {0}")]
    Protocol(String),
    /// The threads that read and write failed.
    #[error("the connection to the editor failed")]
    Connection(#[from] std::io::Error),
    /// The editor disconnected.
    #[error("the editor closed the connection")]
    Gone,
}

/// Serves an editor on standard input and output until it shuts down.
pub fn serve_stdio(settings: &dyn Settings, version: &str) -> Result<(), ServerError> {
    let (connection, threads) = Connection::stdio();
    let outcome = serve(&connection, settings, version);
    // The I/O threads stop when `connection`, which owns the other ends of their channels, is dropped.
    drop(connection);
    threads.join()?;
    outcome
}

/// Serves an editor on a connection until it shuts down.
pub fn serve(connection: &Connection, settings: &dyn Settings, version: &str) -> Result<(), ServerError> {
    let (id, asked) =
        connection.initialize_start().map_err(|error| ServerError::Protocol(error.to_string()))?;
    let client = Client::new(&asked);
    let mut answer = json!({
        "capabilities": {
            "positionEncoding": "utf-16",
            "textDocumentSync": {"openClose": true, "change": 1, "save": true},
            "notebookDocumentSync": {
                "notebookSelector": [{"notebook": {"notebookType": "jupyter-notebook"}, "cells": [{"language": "python"}]}],
                "save": true,
            },
            "hoverProvider": true,
            "inlayHintProvider": true,
            "codeLensProvider": {"resolveProvider": false},
            "codeActionProvider": {"codeActionKinds": ["quickfix", "source.fixAll.memfit"]},
        },
        "serverInfo": {"name": "memfit", "version": version},
    });
    // Pull diagnostics are offered only to clients that declare support: others might use them in addition to
    // the pushed ones.
    if client.pulls {
        let options =
            json!({"identifier": "memfit", "interFileDependencies": false, "workspaceDiagnostics": false});
        answer["capabilities"]["diagnosticProvider"] = options;
    }
    connection.initialize_finish(id, answer).map_err(|error| ServerError::Protocol(error.to_string()))?;
    let mut session = Session::new(settings, client);
    session.client().watch_files(connection)?;
    send_messages(connection, &mut session)?;
    for message in &connection.receiver {
        match message {
            Message::Request(request) => {
                let ends = connection
                    .handle_shutdown(&request)
                    .map_err(|error| ServerError::Protocol(error.to_string()))?;
                if ends {
                    return Ok(());
                }
                send(connection, Message::Response(answer_to(&mut session, request)))?;
                send_messages(connection, &mut session)?;
            }
            Message::Notification(notification) => {
                let news = handle_notification(&mut session, &notification);
                send_messages(connection, &mut session)?;
                let of_all = ["workspace/didChangeConfiguration", "workspace/didChangeWatchedFiles"];
                if of_all.contains(&notification.method.as_str()) {
                    session.client().refresh(connection)?;
                }
                let pushes = !session.client().pulls;
                for diagnostics in news.into_iter().filter(|_| pushes) {
                    let published =
                        Notification::new("textDocument/publishDiagnostics".to_owned(), diagnostics);
                    send(connection, Message::Notification(published))?;
                }
            }
            Message::Response(_) => {}
        }
    }
    Ok(())
}

fn send(connection: &Connection, message: Message) -> Result<(), ServerError> {
    connection.sender.send(message).map_err(|_| ServerError::Gone)
}

/// Shows errors in settings and recordings to the user.
fn send_messages(connection: &Connection, session: &mut Session<'_>) -> Result<(), ServerError> {
    for message in session.take_messages() {
        let shown = json!({"type": 1, "message": format!("memfit: {message}")});
        send(connection, Message::Notification(Notification::new("window/showMessage".to_owned(), shown)))?;
    }
    Ok(())
}

/// Handles a notification: changed settings, and documents that open, change and close. Returns the
/// diagnostics of the documents concerned.
fn handle_notification(session: &mut Session<'_>, notification: &Notification) -> Vec<Value> {
    let params = &notification.params;
    match notification.method.as_str() {
        "workspace/didChangeConfiguration" => session.configure(&params["settings"]),
        // A watched or saved pyproject.toml may have changed.
        "workspace/didChangeWatchedFiles" => session.recheck_all(),
        method if method.starts_with("notebookDocument/") => of_notebook(session, method, params),
        method => of_document(session, method, params).unwrap_or_default(),
    }
}

fn of_document(session: &mut Session<'_>, method: &str, params: &Value) -> Option<Vec<Value>> {
    let item = params.get("textDocument")?;
    let uri = item.get("uri")?.as_str()?;
    let text = match method {
        "textDocument/didOpen" => changes::parse_item(item)?,
        "textDocument/didChange" => {
            let mut text = session.text(uri)?.clone();
            text.text = changes::apply_text_changes(text.text, params.get("contentChanges")?);
            text.version = item.get("version").cloned().unwrap_or(Value::Null);
            text
        }
        // Checked again under the current settings.
        "textDocument/didSave" => session.text(uri)?.clone(),
        "textDocument/didClose" => return Some(session.close(uri)),
        _ => return None,
    };
    Some(session.open(text))
}

fn of_notebook(session: &mut Session<'_>, method: &str, params: &Value) -> Vec<Value> {
    let notebook = &params["notebookDocument"];
    let Some(uri) = notebook.get("uri").and_then(Value::as_str) else { return Vec::new() };
    match method {
        "notebookDocument/didOpen" => {
            session.open_notebook(uri, changes::cells(&notebook["cells"], &params["cellTextDocuments"]))
        }
        "notebookDocument/didChange" => session.change_notebook(uri, &params["change"]),
        "notebookDocument/didSave" => session.change_notebook(uri, &Value::Null),
        "notebookDocument/didClose" => session.close(uri),
        _ => Vec::new(),
    }
}

fn answer_to(session: &mut Session<'_>, request: Request) -> Response {
    let uri = request.params.pointer("/textDocument/uri").and_then(Value::as_str).unwrap_or_default();
    let document = session.document_of(uri);
    match request.method.as_str() {
        "textDocument/hover" => {
            let page = document.map(|document| document.hover(uri, &request.params["position"]));
            Response::new_ok(request.id, page)
        }
        "textDocument/inlayHint" => {
            Response::new_ok(request.id, session.inlay_hints(uri, &request.params["range"]))
        }
        "textDocument/codeLens" => Response::new_ok(request.id, session.code_lenses(uri)),
        // The page of a rule by its name, for an editor that opens `codeDescription` itself.
        "memfit/rule" => {
            let name = request.params.get("name").and_then(Value::as_str).unwrap_or_default();
            Response::new_ok(request.id, memfit_lint::rule(name).map(memfit_lint::page))
        }
        "textDocument/diagnostic" => {
            let items = session.diagnostics(uri);
            Response::new_ok(request.id, json!({"kind": "full", "items": items}))
        }
        "textDocument/codeAction" => {
            let (range, context) = (&request.params["range"], &request.params["context"]);
            let actions = document.map(|document| document.actions(uri, range, context));
            Response::new_ok(request.id, actions)
        }
        other => {
            let code = lsp_server::ErrorCode::MethodNotFound as i32;
            Response::new_err(request.id, code, format!("`{other}` is not known here"))
        }
    }
}
