//! Tests of what an editor shows about a run: the code lens that starts it, and bytes next to the lines.
#![allow(clippy::unwrap_used, reason = "a failed message fails the test")]

mod support;

use std::fs::File;
use std::path::{Path, PathBuf};

use memfit_recording::{Block, Frame, Origin, Recording, SourceFile, Totals, Track};
use memfit_vocabulary::Category;
use serde_json::{Value, json};

use support::{Editor, run_session_with};

const TEXT: &str =
    "import torch\n\nmodel = make()\nfor batch in loader:\n    loss = model(batch)\n    loss.backward()\n";
const MIB: u64 = 1 << 20;

/// Folder of one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::canonicalize(folder).unwrap()
}

/// Writes a script, and a recording of it: 3 MiB of parameters on line 3; 8 MiB of activations and 4 MiB of
/// temporary tensors on line 5.
fn record(folder: &Path, sources: Vec<SourceFile>) {
    let mut track = Track::default();
    let (file, name) = (track.texts.intern("train.py"), track.texts.intern("<module>"));
    let module = track.texts.intern("body");
    let mut totals = Totals { reserved: 64 * MIB, ..Totals::default() };
    for (line, mib, noted) in
        [(3, 3, Category::Parameters), (5, 8, Category::Activations), (5, 4, Category::Temporary)]
    {
        let frame = track.stacks.intern_frame(Frame { name, file, line });
        let stack = track.stacks.intern(&[frame]);
        totals.allocated += mib * MIB;
        let (address, bytes) = (totals.allocated, mib * MIB);
        let (noted, requested) = (Some(noted), Some(bytes));
        let block =
            Block { address, bytes, requested, stack, module, owner: module, noted, ..Block::default() };
        track.alloc(&block, totals);
    }
    let origin = Origin {
        device: Some("Tesla T4".into()),
        command: vec!["python".into(), "train.py".into()],
        sources,
        ..Origin::default()
    };
    let file = File::create(folder.join("run.memfit")).unwrap();
    Recording { origin, tracks: vec![track] }.write(file).unwrap();
}

fn ran(folder: &Path) -> Vec<SourceFile> {
    let path = folder.join("train.py");
    std::fs::write(&path, TEXT).unwrap();
    vec![SourceFile::new("train.py".into(), path, TEXT)]
}

fn uri(folder: &Path) -> String {
    format!("file://{}/train.py", folder.display())
}

fn open(editor: &Editor, uri: &str, text: &str) {
    let document = json!({"uri": uri, "languageId": "python", "version": 1, "text": text});
    editor.notify("textDocument/didOpen", json!({"textDocument": document}));
    editor.diagnostics();
}

fn hints(editor: &mut Editor, uri: &str) -> Vec<Value> {
    let range = json!({"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}});
    let answer = editor.ask("textDocument/inlayHint", json!({"textDocument": {"uri": uri}, "range": range}));
    answer.as_array().cloned().unwrap_or_default()
}

/// Line, column and label of each hint.
fn placed(hints: &[Value]) -> Vec<(u64, u64, &str)> {
    let number = |hint: &Value, key: &str| hint["position"][key].as_u64().unwrap();
    let place = |hint| (number(hint, "line"), number(hint, "character"));
    hints.iter().map(|hint| (place(hint).0, place(hint).1, hint["label"].as_str().unwrap())).collect()
}

fn settings(folder: &Path) -> Value {
    // The recording's path is relative to the workspace.
    json!({
        "capabilities": {"experimental": {"commands": {"commands": ["memfit.run"]}}},
        "rootUri": format!("file://{}", folder.display()),
        "initializationOptions": {"recording": "run.memfit"},
    })
}

#[test]
fn lines_have_the_bytes_of_the_run_until_they_change() {
    let folder = folder("lines");
    record(&folder, ran(&folder));
    let uri = uri(&folder);
    run_session_with(settings(&folder), |editor| {
        open(editor, &uri, TEXT);
        let shown = hints(editor, &uri);
        let expected = [(2, 14, "3.0 MiB parameters"), (4, 23, "12.0 MiB activations, temporary")];
        assert_eq!(placed(&shown), expected);
        let tooltip = shown[1]["tooltip"]["value"].as_str().unwrap();
        assert!(
            tooltip.contains("- 8.0 MiB activations of `body`\n- 4.0 MiB temporary of `body`"),
            "{tooltip}"
        );
        assert!(tooltip.contains("virtual GPU (Tesla T4): `python train.py`"), "{tooltip}");
        assert!(!tooltip.contains("have changed"), "{tooltip}");

        let change = |editor: &Editor, text: &str| {
            let params =
                json!({"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{"text": text}]});
            editor.notify("textDocument/didChange", params);
            editor.diagnostics();
        };
        // Lines above move it. The column is in UTF-16 code units.
        change(editor, &format!("# 𝄞\n{TEXT}"));
        let shown = hints(editor, &uri);
        assert_eq!(
            placed(&shown),
            [(3, 14, "3.0 MiB parameters"), (5, 23, "12.0 MiB activations, temporary")]
        );
        assert!(shown[0]["tooltip"]["value"].as_str().unwrap().contains("have changed"));
        // A changed line has no bytes, and neither has one that moved into another block.
        change(editor, &TEXT.replace("make()", "make(2)"));
        assert_eq!(placed(&hints(editor, &uri)), [(4, 23, "12.0 MiB activations, temporary")]);
        change(editor, &TEXT.replace("    loss = model", "        loss = model"));
        assert_eq!(placed(&hints(editor, &uri)), [(2, 14, "3.0 MiB parameters")]);
        // No hints outside the requested range.
        let range = json!({"start": {"line": 3, "character": 0}, "end": {"line": 9, "character": 0}});
        let asked = json!({"textDocument": {"uri": uri}, "range": range});
        assert_eq!(editor.ask("textDocument/inlayHint", asked), json!([]));
    });
}

#[test]
fn a_recording_without_hashes_of_the_source_shows_nothing_and_a_new_one_is_read() {
    let folder = folder("unknown");
    ran(&folder);
    record(&folder, Vec::new());
    let uri = uri(&folder);
    run_session_with(settings(&folder), |editor| {
        open(editor, &uri, TEXT);
        assert_eq!(hints(editor, &uri), [] as [Value; 0]);
        record(&folder, ran(&folder));
        assert_eq!(hints(editor, &uri).len(), 2);
        std::fs::remove_file(folder.join("run.memfit")).unwrap();
        assert_eq!(hints(editor, &uri), [] as [Value; 0]);
        std::fs::write(folder.join("run.memfit"), "nonsense").unwrap();
        assert_eq!(hints(editor, &uri), [] as [Value; 0]);
        let complaint = editor.diagnostics()["message"].as_str().unwrap().to_owned();
        assert!(
            complaint.contains("run.memfit` is not shown: this is not a memfit recording"),
            "{complaint}"
        );
    });
}

#[test]
fn a_script_has_a_lens_where_it_trains() {
    let folder = folder("lens");
    let library = "import torch\ndef f(loss):\n    loss.backward()\n";
    let guarded = format!("{library}if __name__ == \"__main__\":\n    f(g())\n");
    let calls = format!("{library}f(g())\n");
    let table = [
        (TEXT, Some(3)),
        (library, None),
        (guarded.as_str(), Some(3)),
        (calls.as_str(), Some(3)),
        ("print('hello')\nif __name__ == \"__main__\":\n    pass\n", None),
    ];
    let uri = uri(&folder);
    let asked = json!({"textDocument": {"uri": uri}});
    run_session_with(settings(&folder), |editor| {
        for (text, line) in table {
            open(editor, &uri, text);
            let lenses = editor.ask("textDocument/codeLens", asked.clone());
            let found = lenses[0]["range"]["start"]["line"].as_u64();
            assert_eq!(found, line, "{text}");
            if line.is_some() {
                let command = json!({
                    "title": "Run on a virtual GPU (t4)", "command": "memfit.run", "arguments": [uri, "t4"],
                });
                assert_eq!(lenses[0]["command"], command);
            }
        }
        let settings = json!({"settings": {"memfit": {"gpu": "h100-sxm:2"}}});
        editor.notify("workspace/didChangeConfiguration", settings);
        open(editor, &uri, TEXT);
        let lenses = editor.ask("textDocument/codeLens", asked.clone());
        assert_eq!(lenses[0]["command"]["arguments"][1], "h100-sxm:2");
    });
    // An editor that would not know the command gets none.
    run_session_with(json!({"capabilities": {}}), |editor| {
        open(editor, &uri, TEXT);
        assert_eq!(editor.ask("textDocument/codeLens", asked.clone()), json!([]));
    });
}

#[test]
fn a_finding_links_to_the_page_of_its_rule_if_the_editor_opens_it() {
    let text = "import torch\nx = torch.nn.DataParallel(\"y\")\ntorch.optim.SGD(x.parameters(), 1)\n";
    let href = |options: Value| {
        let mut found = Value::Null;
        run_session_with(json!({"capabilities": {}, "initializationOptions": options}), |editor| {
            let document =
                json!({"uri": "file:///a/b.py", "languageId": "python", "version": 1, "text": text});
            editor.notify("textDocument/didOpen", json!({"textDocument": document}));
            found = editor.diagnostics()["diagnostics"][0]["codeDescription"]["href"].clone();
            let page = editor.ask("memfit/rule", json!({"name": "data-parallel"}));
            assert!(page.as_str().unwrap().starts_with("# data-parallel"));
            assert_eq!(editor.ask("memfit/rule", json!({"name": "no-such-rule"})), Value::Null);
        });
        found
    };
    assert_eq!(href(Value::Null), Value::Null);
    // Settings may be given with and without the section's name.
    let page = json!("pages:/data-parallel.md");
    assert_eq!(href(json!({"rulePages": "pages:/"})), page);
    assert_eq!(href(json!({"memfit": {"rulePages": "pages:/"}})), page);
}

/// A changed recording or setting is reported to editors that can ask again.
#[test]
fn an_editor_is_asked_to_refresh() {
    let folder = folder("refresh");
    let refresh = json!({"refreshSupport": true});
    let watch = json!({"dynamicRegistration": true});
    let workspace = json!({"inlayHint": refresh, "codeLens": refresh, "didChangeWatchedFiles": watch});
    let params = json!({"capabilities": {"workspace": workspace}, "rootUri": uri(&folder)});
    run_session_with(params, |editor| {
        let (method, asked) = editor.request();
        assert_eq!(method, "client/registerCapability");
        assert_eq!(asked["registrations"][0]["registerOptions"]["watchers"][1]["globPattern"], "**/*.memfit");
        editor.notify("workspace/didChangeWatchedFiles", json!({"changes": []}));
        assert_eq!(editor.request().0, "workspace/inlayHint/refresh");
        assert_eq!(editor.request().0, "workspace/codeLens/refresh");
    });
}
