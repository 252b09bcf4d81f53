//! A conversation with an editor, in memory.
#![allow(clippy::unwrap_used, reason = "a test that cannot talk has failed")]

use lsp_server::{Connection, Message, Notification, Request, RequestId, Response};
use memfit_lint::Config;
use serde_json::{Value, json};

const URI: &str = "file:///project/train.py";
const TEXT: &str = "import torch\n\nwith torch.no_grad:  # 𝄞\n    pass\n";

struct Editor {
    connection: Connection,
    next: i32,
}

impl Editor {
    fn tell(&self, method: &str, params: Value) {
        let message = Message::Notification(Notification::new(method.to_owned(), params));
        self.connection.sender.send(message).unwrap();
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
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

    fn diagnostics(&self) -> Value {
        loop {
            if let Message::Notification(told) = self.connection.receiver.recv().unwrap() {
                return told.params;
            }
        }
    }
}

/// Starts a server, and ends it when the conversation is over.
fn converse(talk: impl FnOnce(&mut Editor)) {
    let (server, client) = Connection::memory();
    let thread = std::thread::spawn(move || memfit_server::serve(&server, Config::default(), "0"));
    let mut editor = Editor { connection: client, next: 0 };
    let answer = editor.ask("initialize", json!({"capabilities": {}}));
    assert_eq!(answer["serverInfo"]["name"], "memfit");
    editor.tell("initialized", json!({}));
    talk(&mut editor);
    editor.ask("shutdown", Value::Null);
    editor.tell("exit", Value::Null);
    thread.join().unwrap().unwrap();
}

fn open(editor: &Editor, text: &str) -> Value {
    let document = json!({"uri": URI, "languageId": "python", "version": 1, "text": text});
    editor.tell("textDocument/didOpen", json!({"textDocument": document}));
    editor.diagnostics()
}

#[test]
fn findings_come_with_fixes_and_pages() {
    converse(|editor| {
        let told = open(editor, TEXT);
        let found = &told["diagnostics"][0];
        assert_eq!((&found["code"], &found["severity"]), (&json!("no-grad-not-called"), &json!(1)));
        assert_eq!(
            found["range"],
            json!({"start": {"line": 2, "character": 5}, "end": {"line": 2, "character": 18}})
        );

        let document = json!({"uri": URI});
        let hover = editor.ask(
            "textDocument/hover",
            json!({"textDocument": document, "position": {"line": 2, "character": 7}}),
        );
        assert!(hover["contents"]["value"].as_str().unwrap().starts_with("# no-grad-not-called"));
        let nothing = editor.ask(
            "textDocument/hover",
            json!({"textDocument": document, "position": {"line": 0, "character": 0}}),
        );
        assert_eq!(nothing, Value::Null);

        let params =
            json!({"textDocument": document, "range": found["range"], "context": {"diagnostics": []}});
        let actions = editor.ask("textDocument/codeAction", params);
        let titles: Vec<&str> =
            actions.as_array().unwrap().iter().map(|action| action["title"].as_str().unwrap()).collect();
        assert_eq!(
            titles,
            [
                "memfit: Call it",
                "memfit: ignore `no-grad-not-called` on this line",
                "memfit: mend all that is safe to mend"
            ]
        );
        assert_eq!(actions[0]["edit"]["changes"][URI][0]["newText"], "()");
        assert_eq!(
            actions[1]["edit"]["changes"][URI][0]["range"]["start"],
            json!({"line": 2, "character": 25})
        );
        assert!(actions[2]["edit"]["changes"][URI][0]["newText"].as_str().unwrap().contains("no_grad():"));
    });
}

#[test]
fn a_change_is_looked_at_and_a_closed_document_is_forgotten() {
    converse(|editor| {
        open(editor, TEXT);
        let changed = json!({"textDocument": {"uri": URI, "version": 2}, "contentChanges": [{"text": "import torch\n"}]});
        editor.tell("textDocument/didChange", changed);
        assert_eq!(editor.diagnostics()["diagnostics"], json!([]));
        editor.tell("textDocument/didClose", json!({"textDocument": {"uri": URI}}));
        assert_eq!(editor.diagnostics()["diagnostics"], json!([]));
        let answer = editor.ask(
            "textDocument/hover",
            json!({"textDocument": {"uri": URI}, "position": {"line": 0, "character": 0}}),
        );
        assert_eq!(answer, Value::Null);
    });
}

#[test]
fn nonsense_is_answered_and_survived() {
    converse(|editor| {
        editor.tell("textDocument/didOpen", json!({"textDocument": 3}));
        editor.tell("textDocument/didChange", Value::Null);
        let answer = editor.ask("textDocument/unheardOf", json!({}));
        assert!(answer["error"].as_str().unwrap().contains("unheardOf"));
        let answer = editor.ask("textDocument/codeAction", json!({"textDocument": {"uri": "x"}}));
        assert_eq!(answer, Value::Null);
    });
}
