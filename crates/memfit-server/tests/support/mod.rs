//! An editor in the tests' process.

#![allow(dead_code, reason = "not every test uses everything")]

use std::path::Path;

use lsp_server::{Connection, Message, Notification, Request, RequestId, Response};
use memfit_lint::{Config, Level};
use serde_json::{Value, json};

/// An editor at the other end of a connection.
pub(crate) struct Editor {
    connection: Connection,
    next: i32,
}

impl Editor {
    pub(crate) fn notify(&self, method: &str, params: Value) {
        let message = Message::Notification(Notification::new(method.to_owned(), params));
        self.connection.sender.send(message).unwrap();
    }

    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let request = Request::new(RequestId::from(self.next), method.to_owned(), params);
        self.connection.sender.send(Message::Request(request)).unwrap();
        loop {
            if let Message::Response(Response { result, error, .. }) =
                self.connection.receiver.recv().unwrap()
            {
                return result.unwrap_or_else(|| json!({"error": error.map(|error| error.message)}));
            }
        }
    }

    /// Method and parameters of the next request.
    pub(crate) fn request(&self) -> (String, Value) {
        loop {
            if let Message::Request(request) = self.connection.receiver.recv().unwrap() {
                return (request.method, request.params);
            }
        }
    }

    /// Parameters of the next notification.
    pub(crate) fn diagnostics(&self) -> Value {
        loop {
            if let Message::Notification(notification) = self.connection.receiver.recv().unwrap() {
                return notification.params;
            }
        }
    }
}

/// Starts a server, and stops it at the end of the session.
pub(crate) fn run_session(session: impl FnOnce(&mut Editor)) {
    run_session_with(json!({"capabilities": {}}), session);
}

/// Runs a session with an editor that initializes with these parameters.
pub(crate) fn run_session_with(params: Value, session: impl FnOnce(&mut Editor)) {
    let (server, client) = Connection::memory();
    let thread = std::thread::spawn(move || {
        // The first folder of a file's path is its project.
        let settings = |file: &Path| match file.components().nth(1).map(|part| part.as_os_str().to_owned()) {
            Some(name) if name == "strict" => {
                let severity = [("data-parallel".to_owned(), Level::Error)];
                Ok(Config { severity: severity.into(), ..Config::default() })
            }
            Some(name) if name == "broken" => Err("`[tool.memfit]` cannot be read".to_owned()),
            _ => Ok(Config::default()),
        };
        memfit_server::serve(&server, &settings, "0")
    });
    let mut editor = Editor { connection: client, next: 0 };
    let answer = editor.ask("initialize", params);
    assert_eq!(answer["serverInfo"]["name"], "memfit");
    editor.notify("initialized", json!({}));
    session(&mut editor);
    editor.ask("shutdown", Value::Null);
    editor.notify("exit", Value::Null);
    thread.join().unwrap().unwrap();
}
