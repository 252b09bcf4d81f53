//! Protocol sessions with an editor, in memory.
#![allow(clippy::unwrap_used, reason = "a failed message fails the test")]

mod support;

use serde_json::{Value, json};

use support::{Editor, run_session, run_session_with};

const URI: &str = "file:///project/train.py";
const TEXT: &str = "import torch\n\nwith torch.no_grad:  # 𝄞\n    pass\n";

fn open(editor: &Editor, text: &str) -> Value {
    let document = json!({"uri": URI, "languageId": "python", "version": 1, "text": text});
    editor.notify("textDocument/didOpen", json!({"textDocument": document}));
    editor.diagnostics()
}

#[test]
fn findings_come_with_fixes_and_pages() {
    run_session(|editor| {
        let published = open(editor, TEXT);
        let found = &published["diagnostics"][0];
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
                "memfit: apply all safe fixes"
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
    run_session(|editor| {
        open(editor, TEXT);
        let changed = json!({"textDocument": {"uri": URI, "version": 2}, "contentChanges": [{"text": "import torch\n"}]});
        editor.notify("textDocument/didChange", changed);
        assert_eq!(editor.diagnostics()["diagnostics"], json!([]));
        editor.notify("textDocument/didClose", json!({"textDocument": {"uri": URI}}));
        assert_eq!(editor.diagnostics()["diagnostics"], json!([]));
        let answer = editor.ask(
            "textDocument/hover",
            json!({"textDocument": {"uri": URI}, "position": {"line": 0, "character": 0}}),
        );
        assert_eq!(answer, Value::Null);
    });
}

#[test]
fn an_editor_may_ask_for_what_is_found() {
    run_session_with(json!({"capabilities": {"textDocument": {"diagnostic": {}}}}), |editor| {
        let document = json!({"uri": URI, "languageId": "python", "version": 1, "text": TEXT});
        editor.notify("textDocument/didOpen", json!({"textDocument": document}));
        let asked = json!({"textDocument": {"uri": URI}});
        // No diagnostics are pushed: the first message is the answer.
        let answer = editor.ask("textDocument/diagnostic", asked.clone());
        assert_eq!(
            (&answer["kind"], &answer["items"][0]["code"]),
            (&json!("full"), &json!("no-grad-not-called"))
        );
        editor.notify("textDocument/didClose", asked.clone());
        assert_eq!(editor.ask("textDocument/diagnostic", asked)["items"], json!([]));
    });
}

#[test]
fn settings_of_the_editor_are_taken_and_what_cannot_be_meant_is_not() {
    run_session(|editor| {
        open(editor, TEXT);
        let set = |editor: &Editor, memfit: Value| {
            editor.notify("workspace/didChangeConfiguration", json!({"settings": {"memfit": memfit}}));
        };
        set(editor, json!({"severity": {"no-grad-not-called": "note"}}));
        let published = editor.diagnostics();
        assert_eq!((&published["version"], &published["diagnostics"][0]["severity"]), (&json!(1), &json!(3)));
        // Neither setting has an effect, and the user gets the reason.
        set(editor, json!({"ignore": ["no-such-rule"]}));
        assert!(
            editor.diagnostics()["message"].as_str().unwrap().contains("there is no rule `no-such-rule`")
        );
        set(editor, json!({"ignore": 3}));
        assert!(editor.diagnostics()["message"].as_str().unwrap().contains("settings are invalid"));
        set(editor, json!({"ignore": ["no-grad-not-called"]}));
        assert_eq!(editor.diagnostics()["diagnostics"], json!([]));
        // A removed setting falls back to the project's.
        set(editor, json!({}));
        assert_eq!(editor.diagnostics()["diagnostics"][0]["severity"], json!(1));
    });
}

/// Columns are in UTF-16 code units in both directions.
#[test]
fn findings_after_characters_of_other_scripts_have_the_right_place() {
    let text = "import torch\nname = \"𝄞é\"; weights = torch.nn.DataParallel(\"𝄞\")  # 𝄞\n\
                torch.optim.SGD(weights.parameters(), 1)\n";
    run_session(|editor| {
        let published = open(editor, text);
        let range = &published["diagnostics"][0]["range"];
        assert_eq!((&range["start"]["line"], &range["end"]["line"]), (&json!(1), &json!(1)));
        let line: Vec<u16> = text.lines().nth(1).unwrap().encode_utf16().collect();
        let column = |end: &str| range[end]["character"].as_u64().unwrap() as usize;
        let slice = String::from_utf16(&line[column("start")..column("end")]).unwrap();
        assert!(slice.starts_with("torch.nn.DataParallel"), "{slice}");
        let position = json!({"line": 1, "character": column("start") + 2});
        let hover =
            editor.ask("textDocument/hover", json!({"textDocument": {"uri": URI}, "position": position}));
        assert!(hover["contents"]["value"].as_str().unwrap().starts_with("# data-parallel"));
    });
}

#[test]
fn nonsense_is_answered_and_survived() {
    run_session(|editor| {
        editor.notify("textDocument/didOpen", json!({"textDocument": 3}));
        editor.notify("textDocument/didChange", Value::Null);
        let answer = editor.ask("textDocument/unheardOf", json!({}));
        assert!(answer["error"].as_str().unwrap().contains("unheardOf"));
        let answer = editor.ask("textDocument/codeAction", json!({"textDocument": {"uri": "x"}}));
        assert_eq!(answer, Value::Null);
    });
}

/// Each file is checked under its own project's settings; an error in settings is reported once.
#[test]
fn settings_are_those_of_the_file() {
    run_session(|editor| {
        let text = "import torch\nx = torch.nn.DataParallel(\"y\")\ntorch.optim.SGD(x.parameters(), 1)\n";
        let open = |uri: &str| {
            let document = json!({"uri": uri, "languageId": "python", "version": 1, "text": text});
            editor.notify("textDocument/didOpen", json!({"textDocument": document}));
            editor.diagnostics()
        };
        let severity = |published: &Value| published["diagnostics"][0]["severity"].clone();
        assert_eq!(severity(&open("file:///strict/a.py")), json!(1));
        assert_eq!(severity(&open("file:///plain/a.py")), json!(3));
        let shown = open("file:///broken/a.py");
        assert_eq!(
            (&shown["type"], &shown["message"]),
            (&json!(1), &json!("memfit: `[tool.memfit]` cannot be read"))
        );
        // The file is checked nevertheless, and the message is not repeated.
        assert_eq!(severity(&editor.diagnostics()), json!(3));
        assert_eq!(severity(&open("file:///broken/b.py")), json!(3));
    });
}

const NOTEBOOK: &str = "file:///project/train.ipynb";

fn cell(name: &str, text: &str) -> Value {
    json!({"uri": format!("vscode-notebook-cell:/project/train.ipynb#{name}"), "languageId": "python", "version": 1, "text": text})
}

fn listed(name: &str) -> Value {
    json!({"kind": 2, "document": format!("vscode-notebook-cell:/project/train.ipynb#{name}")})
}

/// A notebook is one program: imports of one cell are known in the next, and positions are those of the
/// cells.
#[test]
fn a_notebook_is_checked_as_one_program() {
    run_session(|editor| {
        let texts = [cell("a", "import torch as t\n"), cell("b", "# 𝄞 \"x\"\nwith t.no_grad:\n    pass\n")];
        let notebook = json!({"uri": NOTEBOOK, "notebookType": "jupyter-notebook", "version": 1, "cells": [listed("a"), listed("b")]});
        editor.notify(
            "notebookDocument/didOpen",
            json!({"notebookDocument": notebook, "cellTextDocuments": texts}),
        );
        assert_eq!(editor.diagnostics()["diagnostics"], json!([]));
        let published = editor.diagnostics();
        assert_eq!(published["uri"], texts[1]["uri"]);
        let found = &published["diagnostics"][0];
        assert_eq!(found["code"], "no-grad-not-called");
        let range = json!({"start": {"line": 1, "character": 5}, "end": {"line": 1, "character": 14}});
        assert_eq!(found["range"], range);

        let here = json!({"textDocument": {"uri": texts[1]["uri"]}, "position": {"line": 1, "character": 6}});
        let hover = editor.ask("textDocument/hover", here);
        assert!(hover["contents"]["value"].as_str().unwrap().starts_with("# no-grad-not-called"));
        assert_eq!(hover["range"], range);
        let params =
            json!({"textDocument": {"uri": texts[1]["uri"]}, "range": range, "context": {"diagnostics": []}});
        let actions = editor.ask("textDocument/codeAction", params);
        let uri = texts[1]["uri"].as_str().unwrap();
        let end = json!({"line": 1, "character": 14});
        assert_eq!(
            actions[0]["edit"]["changes"][uri],
            json!([{"range": {"start": end, "end": end}, "newText": "()"}])
        );
        assert_eq!(
            actions[1]["edit"]["changes"][uri][0]["range"]["start"],
            json!({"line": 1, "character": 15})
        );
        let whole = &actions[2]["edit"]["changes"];
        assert_eq!(whole[uri][0]["newText"], "# 𝄞 \"x\"\nwith t.no_grad():\n    pass\n");
        assert_eq!(whole.as_object().unwrap().len(), 1);
    });
}

#[test]
fn cells_change_and_go() {
    run_session(|editor| {
        let texts = [cell("a", "import torch\n"), cell("b", "with torch.no_grad():\n    pass\n")];
        let notebook = json!({"uri": NOTEBOOK, "notebookType": "jupyter-notebook", "version": 1, "cells": [listed("a"), listed("b")]});
        editor.notify(
            "notebookDocument/didOpen",
            json!({"notebookDocument": notebook, "cellTextDocuments": texts}),
        );
        let codes = |published: Value| published["diagnostics"].as_array().unwrap().len();
        assert_eq!((codes(editor.diagnostics()), codes(editor.diagnostics())), (0, 0));
        let change = |change: Value| {
            let params =
                json!({"notebookDocument": {"uri": NOTEBOOK, "version": 2}, "change": {"cells": change}});
            editor.notify("notebookDocument/didChange", params);
        };
        // As an editor sends typing: the parentheses are removed.
        let range = json!({"start": {"line": 0, "character": 18}, "end": {"line": 0, "character": 20}});
        let document = json!({"uri": texts[1]["uri"], "version": 2});
        change(json!({"textContent": [{"document": document, "changes": [{"range": range, "text": ""}]}]}));
        assert_eq!(codes(editor.diagnostics()), 0);
        let published = editor.diagnostics();
        assert_eq!(
            (&published["version"], published["diagnostics"][0]["code"].as_str()),
            (&json!(2), Some("no-grad-not-called"))
        );
        // The cell is removed, and its diagnostics are cleared.
        change(json!({"structure": {"array": {"start": 1, "deleteCount": 1}, "didClose": [document]}}));
        let gone = editor.diagnostics();
        assert_eq!((&gone["uri"], &gone["diagnostics"]), (&texts[1]["uri"], &json!([])));
        assert_eq!(editor.diagnostics()["uri"], texts[0]["uri"]);
        editor.notify(
            "notebookDocument/didClose",
            json!({"notebookDocument": {"uri": NOTEBOOK}, "cellTextDocuments": []}),
        );
        assert_eq!(editor.diagnostics()["uri"], texts[0]["uri"]);
    });
}
