//! The language server: findings, fixes and pages of rules in an editor.
//!
//! Owns the conversation with an editor: which documents are open, what was found in each, and the answers about them
//! ([`serve`]). Documents come whole, are checked when they change, and are never written.
//! It must not know rules, nor where settings come from.

mod position;
mod session;
mod uri;

use lsp_server::{Connection, Message, Notification, Request, Response};
use memfit_lint::Config;
use serde_json::{Value, json};

use session::Session;

/// Why the conversation ended badly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The editor and the server do not understand each other.
    #[error("the editor broke the protocol: {0}")]
    Protocol(String),
    /// The threads that read and write failed.
    #[error("the connection to the editor failed")]
    Connection(#[from] std::io::Error),
    /// The editor is gone.
    #[error("the editor is gone")]
    Gone,
}

/// Serves an editor on standard input and output until it says goodbye.
pub fn serve_stdio(config: Config, version: &str) -> Result<(), ServerError> {
    let (connection, threads) = Connection::stdio();
    let outcome = serve(&connection, config, version);
    // The threads end when both of their ends are gone.
    drop(connection);
    threads.join()?;
    outcome
}

/// Serves an editor on a connection until it says goodbye.
pub fn serve(connection: &Connection, config: Config, version: &str) -> Result<(), ServerError> {
    let (id, asked) =
        connection.initialize_start().map_err(|error| ServerError::Protocol(error.to_string()))?;
    let answer = json!({
        "capabilities": {
            "positionEncoding": "utf-16",
            "textDocumentSync": {"openClose": true, "change": 1, "save": true},
            "diagnosticProvider": {"identifier": "memfit", "interFileDependencies": false, "workspaceDiagnostics": false},
            "hoverProvider": true,
            "codeActionProvider": {"codeActionKinds": ["quickfix", "source.fixAll.memfit"]},
        },
        "serverInfo": {"name": "memfit", "version": version},
    });
    connection.initialize_finish(id, answer).map_err(|error| ServerError::Protocol(error.to_string()))?;
    // An editor that asks for what is found is not told unasked as well: it would show everything twice.
    let asks = asked.pointer("/capabilities/textDocument/diagnostic").is_some();
    let mut session = Session::new(config);
    for message in &connection.receiver {
        match message {
            Message::Request(request) => {
                let ends = connection
                    .handle_shutdown(&request)
                    .map_err(|error| ServerError::Protocol(error.to_string()))?;
                if ends {
                    return Ok(());
                }
                send(connection, Message::Response(answer_to(&session, request)))?;
            }
            Message::Notification(notification) => {
                let news = heard(&mut session, &notification);
                if asks && notification.method == "workspace/didChangeConfiguration" {
                    let refresh = "workspace/diagnostic/refresh".to_owned();
                    let request = Request::new("refresh".to_owned().into(), refresh, Value::Null);
                    send(connection, Message::Request(request))?;
                }
                for diagnostics in news.into_iter().filter(|_| !asks) {
                    let told = Notification::new("textDocument/publishDiagnostics".to_owned(), diagnostics);
                    send(connection, Message::Notification(told))?;
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

/// What an editor tells: other settings, and documents that open, change and close. The answer is what is found in
/// each document that this concerns.
fn heard(session: &mut Session, notification: &Notification) -> Vec<Value> {
    if notification.method == "workspace/didChangeConfiguration" {
        return session.configure(&notification.params["settings"]);
    }
    of_document(session, notification).into_iter().collect()
}

fn of_document(session: &mut Session, notification: &Notification) -> Option<Value> {
    let document = notification.params.get("textDocument")?;
    let uri = document.get("uri")?.as_str()?;
    let text = match notification.method.as_str() {
        "textDocument/didOpen" => document.get("text")?.as_str()?,
        // Documents come whole: the last change is the document.
        "textDocument/didChange" => {
            notification.params.get("contentChanges")?.as_array()?.last()?.get("text")?.as_str()?
        }
        "textDocument/didClose" => {
            session.close(uri);
            return Some(json!({"uri": uri, "diagnostics": []}));
        }
        _ => return None,
    };
    let version = document.get("version").cloned().unwrap_or(Value::Null);
    Some(session.open(uri, text, &version))
}

fn answer_to(session: &Session, request: Request) -> Response {
    let uri = request.params.pointer("/textDocument/uri").and_then(Value::as_str).unwrap_or_default();
    match request.method.as_str() {
        "textDocument/hover" => Response::new_ok(request.id, session.hover(uri, &request.params["position"])),
        "textDocument/diagnostic" => {
            let items = session.found(uri);
            Response::new_ok(request.id, json!({"kind": "full", "items": items}))
        }
        "textDocument/codeAction" => Response::new_ok(
            request.id,
            session.actions(uri, &request.params["range"], &request.params["context"]),
        ),
        other => {
            let code = lsp_server::ErrorCode::MethodNotFound as i32;
            Response::new_err(request.id, code, format!("`{other}` is not known here"))
        }
    }
}
