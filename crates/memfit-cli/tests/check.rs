//! End-to-end tests of `memfit check`: output, changes to files, exit status.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const BAD: &str = "import torch\n\nwith torch.no_grad:\n    pass\n";

fn place(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

fn memfit(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memfit"))
        .args(arguments)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .env("COLUMNS", "100")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn json(folder: &Path, arguments: &[&str]) -> (i32, Value) {
    let output = memfit(folder, arguments);
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_finding_is_shown_in_its_source() {
    let folder = place(&[("train.py", BAD)]);
    let output = memfit(folder.path(), &["check", "train.py"]);
    assert_eq!(output.status.code(), Some(1));
    insta::assert_snapshot!("check_text", text(&output.stdout));
    assert!(output.stderr.is_empty());
}

#[test]
fn json_keeps_to_its_schema() {
    let folder = place(&[("a/train.py", BAD), ("b/fine.py", "import torch\n")]);
    let (status, report) = json(folder.path(), &["check", ".", "--format", "json", "--json", "copy.json"]);
    assert_eq!((status, &report["schema"], &report["files"]), (1, &"memfit.check/1".into(), &2.into()));
    let finding = &report["findings"][0];
    assert_eq!((&finding["rule"], &finding["severity"]), (&"no-grad-not-called".into(), &"error".into()));
    assert_eq!((&finding["line"], &finding["column"]), (&3.into(), &6.into()));
    assert!(finding["file"].as_str().unwrap().ends_with("a/train.py"));
    assert_eq!(finding["fix"]["safe"], true);
    let copy = std::fs::read(folder.path().join("copy.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&copy).unwrap(), report);
}

#[test]
fn fixes_change_the_file_and_diffs_do_not() {
    let folder = place(&[("train.py", BAD)]);
    for other in ["--json=findings.json", "--format=json"] {
        let refused = memfit(folder.path(), &["check", "train.py", "--diff", other]);
        assert_eq!(refused.status.code(), Some(2), "a patch is not the findings: {other}");
    }
    let output = memfit(folder.path(), &["check", "train.py", "--diff"]);
    assert!(
        text(&output.stdout).contains("-with torch.no_grad:\n+with torch.no_grad():\n"),
        "{}",
        text(&output.stdout)
    );
    assert_eq!(std::fs::read_to_string(folder.path().join("train.py")).unwrap(), BAD);
    let output = memfit(folder.path(), &["check", "train.py", "--fix"]);
    assert_eq!(
        (output.status.code(), text(&output.stdout).lines().next()),
        (Some(0), Some("1 finding fixed."))
    );
    assert_eq!(
        std::fs::read_to_string(folder.path().join("train.py")).unwrap(),
        BAD.replace("no_grad:", "no_grad():")
    );
}

#[test]
fn notebooks_and_markdown_are_read_and_mended_in_place() {
    let notebook = r##"{"cells": [{"cell_type": "markdown", "source": ["# x"]},
 {"cell_type": "code", "source": ["%matplotlib inline\n", "import torch\n", "with torch.no_grad:\n", "    pass"]}], "nbformat": 4}"##;
    let page = "# x\n\n- a\n  ```python\n  import torch\n  with torch.no_grad:\n      pass\n  ```\n";
    let folder = place(&[("x.ipynb", notebook), ("x.md", page), ("notes.txt", page)]);
    let (status, report) = json(folder.path(), &["check", ".", "--format", "json"]);
    let places: Vec<_> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| {
            (finding["cell"].as_u64(), finding["line"].as_u64().unwrap(), finding["column"].as_u64().unwrap())
        })
        .collect();
    assert_eq!((status, places), (1, vec![(None, 6, 8), (Some(2), 3, 6), (None, 6, 8)]));
    memfit(folder.path(), &["check", ".", "--fix"]);
    let mended = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(mended("x.ipynb"), notebook.replace("no_grad:", "no_grad():"));
    assert_eq!(mended("x.md"), page.replace("no_grad:", "no_grad():"));
}

#[test]
fn the_exit_status_depends_on_findings_and_errors() {
    let warning = "import torch\ntorch.autograd.set_detect_anomaly(True)\n";
    let folder =
        place(&[("warning.py", warning), ("broken.ipynb", "{ torch"), ("half.py", "import torch\nx = (\n")]);
    let status = |arguments: &[&str]| memfit(folder.path(), arguments).status.code().unwrap();
    assert_eq!(status(&["check", "warning.py"]), 0);
    assert_eq!(status(&["check", "warning.py", "--fail-on", "warning"]), 1);
    assert_eq!(status(&["check", "broken.ipynb"]), 2);
    assert_eq!(status(&["check", "nowhere.py"]), 2);
    assert_eq!(status(&["check", "warning.py", "--select", "no-such-rule"]), 2);
    // A file with a syntax error: the rest of it is checked, and the result is not a success.
    let half = memfit(folder.path(), &["check", "half.py"]);
    assert_eq!(half.status.code(), Some(2));
    assert!(text(&half.stderr).contains("half.py:"), "{}", text(&half.stderr));
    let worse = format!("{BAD}x = (\n");
    std::fs::write(folder.path().join("worse.py"), worse).unwrap();
    assert_eq!(status(&["check", "worse.py"]), 1);
    std::fs::write(folder.path().join("page.md"), "```python\nimport torch\nx = (\n```\n").unwrap();
    assert_eq!(status(&["check", "page.md"]), 0);
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    assert_eq!(status(&["check", "empty"]), 2);
}

#[test]
fn excluded_files_are_skipped_in_folders() {
    let folder = place(&[
        ("pyproject.toml", "[tool.memfit]\nexclude = ['old/', '*_generated.py', '!kept_generated.py']\n"),
        ("old/train.py", BAD),
        ("src/net_generated.py", BAD),
        ("src/kept_generated.py", BAD),
        ("src/train.py", BAD),
    ]);
    let files = |place: &Path, arguments: &[&str]| -> Vec<String> {
        let (_, report) = json(place, arguments);
        let findings = report["findings"].as_array().unwrap().clone();
        findings.iter().map(|finding| finding["file"].as_str().unwrap().to_owned()).collect()
    };
    let all = ["check", ".", "--format", "json"];
    assert_eq!(files(folder.path(), &all), ["src/kept_generated.py", "src/train.py"]);
    // From a subfolder, and with command-line patterns; a file that is named explicitly is read whatever the
    // patterns say.
    assert_eq!(files(&folder.path().join("src"), &all), ["kept_generated.py", "train.py"]);
    let typed = ["check", ".", "--format", "json", "--exclude", "src"];
    assert_eq!(files(folder.path(), &typed), ["old/train.py"]);
    let named = ["check", "old/train.py", "--format", "json"];
    assert_eq!(files(folder.path(), &named), ["old/train.py"]);
    let wrong = memfit(folder.path(), &["check", ".", "--exclude", "a{b"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
}

#[test]
fn settings_and_comments_choose() {
    let folder = place(&[
        ("pyproject.toml", "[tool.memfit]\nignore = ['no-grad-not-called']\n"),
        ("train.py", BAD),
        (
            "quiet.py",
            "import torch\nwith torch.no_grad:  # memfit: ignore[no-grad-not-called] shown in class\n    pass\nx = 1  # memfit: ignore[data-parallel] no more\n",
        ),
    ]);
    let rules = |arguments: &[&str]| -> Vec<String> {
        let (_, report) = json(folder.path(), arguments);
        report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|finding| finding["rule"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(rules(&["check", "train.py", "--format", "json"]), [""; 0]);
    assert_eq!(rules(&["--isolated", "check", "train.py", "--format", "json"]), ["no-grad-not-called"]);
    assert_eq!(rules(&["--isolated", "check", "quiet.py", "--format", "json"]), ["unused-suppression"]);
}

#[test]
fn ignored_files_are_passed_over_and_imports_are_followed() {
    let main = "import torch\nfrom helpers import evaluate\nmodel = torch.nn.Linear(2, 2)\nwith torch.no_grad():\n    evaluate(model, loader)\n";
    let helper = "def evaluate(model, val_loader):\n    for x in val_loader:\n        out = model(x)\n";
    let step = "import torch\nfrom steps import backward\nmodel = torch.nn.Linear(2, 2)\noptimizer = torch.optim.Adam(model.parameters())\nfor i, x in enumerate(loader):\n    optimizer.zero_grad()\n    backward(model(x).mean() / 4)\n    if (i + 1) % 4 == 0:\n        optimizer.step()\n";
    let folder = place(&[
        (".gitignore", "ignored/\n"),
        ("ignored/train.py", BAD),
        ("main.py", main),
        ("helpers.py", &format!("import torch\n{helper}")),
        ("step.py", step),
        ("steps.py", "import torch\ndef backward(loss):\n    loss.backward()\n"),
    ]);
    let (_, report) = json(folder.path(), &["check", ".", "--format", "json"]);
    let found: Vec<_> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| (finding["file"].as_str().unwrap(), finding["rule"].as_str().unwrap()))
        .collect();
    assert_eq!(found, [("step.py", "zero-grad-inside-window"), ("step.py", "partial-window-dropped")]);
}

/// Facts about a base class or an object's class in another module are known, also through a package.
#[test]
fn methods_of_imported_classes_are_followed() {
    let base = "import torch\nclass Base:\n    def __init__(self, model):\n        self.model = model\n        self.optimizer = torch.optim.SGD(model.parameters(), 0.1)\n    def forward_backward(self, x):\n        (self.model(x).mean() / 4).backward()\n";
    let steps = "    def epoch(self, train_loader):\n        for i, x in enumerate(train_loader):\n            self.optimizer.zero_grad()\n            self.forward_backward(x)\n            if (i + 1) % 4 == 0:\n                self.optimizer.step()\n";
    let sub = format!("import torch\nfrom engine import Base\nclass Mine(Base):\n{steps}");
    let object = "import torch\nfrom engine.base import Base\nengine = Base(torch.nn.Linear(2, 2))\nfor i, x in enumerate(train_loader):\n    engine.optimizer.zero_grad()\n    engine.forward_backward(x)\n    if (i + 1) % 4 == 0:\n        engine.optimizer.step()\n";
    let unknown = sub.replace("from engine import", "from elsewhere import");
    let module = "import torch\nfrom engine import Net\nclass Mine(Net):\n    def forward(self, x):\n        return x\nnetwork = Mine()\nbest = 9\nfor epoch in range(3):\n    loss = train(network)\n    if loss < best:\n        best = loss\n        weights = network.state_dict()\nnetwork.load_state_dict(weights)\n";
    let net = "from torch.nn import Module\nclass Net(Module):\n    pass\n";
    let folder = place(&[
        ("engine/__init__.py", "from .base import Base\nfrom .net import Net as Net\n"),
        ("engine/base.py", base),
        ("engine/net.py", net),
        ("module.py", module),
        ("object.py", object),
        ("sub.py", &sub),
        ("unknown.py", &unknown),
    ]);
    let (_, report) = json(folder.path(), &["check", ".", "--format", "json", "--select", "all"]);
    let mut found: Vec<_> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| (finding["file"].as_str().unwrap(), finding["rule"].as_str().unwrap()))
        .filter(|(_, rule)| ["zero-grad-inside-window", "state-dict-alias"].contains(rule))
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ("module.py", "state-dict-alias"),
            ("object.py", "zero-grad-inside-window"),
            ("sub.py", "zero-grad-inside-window")
        ]
    );
}

#[test]
fn other_programs_get_their_forms() {
    let folder = place(&[("train.py", BAD)]);
    let (_, sarif) = json(folder.path(), &["check", "train.py", "--format", "sarif"]);
    let run = &sarif["runs"][0];
    assert_eq!(
        (&sarif["version"], &run["results"][0]["ruleId"]),
        (&"2.1.0".into(), &"no-grad-not-called".into())
    );
    assert_eq!(run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"], 3);
    assert_eq!(run["tool"]["driver"]["rules"][0]["id"], "no-grad-not-called");
    let (_, gitlab) = json(folder.path(), &["check", "train.py", "--format", "gitlab"]);
    assert_eq!(
        (&gitlab[0]["severity"], &gitlab[0]["location"]["path"]),
        (&"critical".into(), &"train.py".into())
    );
    let github = text(&memfit(folder.path(), &["check", "train.py", "--format", "github"]).stdout);
    assert!(
        github.starts_with(
            "::error file=train.py,line=3,endLine=3,col=6,endColumn=19,title=memfit no-grad-not-called::"
        ),
        "{github}"
    );
    let junit = text(&memfit(folder.path(), &["check", "train.py", "--format", "junit"]).stdout);
    assert!(
        junit.contains(
            "<testcase name=\"no-grad-not-called\" classname=\"train.py\" file=\"train.py\" line=\"3\">"
        ),
        "{junit}"
    );
    let concise = text(&memfit(folder.path(), &["check", "train.py", "--format", "concise"]).stdout);
    assert!(concise.starts_with("train.py:3:6: error[no-grad-not-called] "), "{concise}");
}
