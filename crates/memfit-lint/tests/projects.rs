//! What the files of a project say to one another, and not to those of another.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::path::Path;

use memfit_lint::{Config, check_paths};

const EVALUATION: &str = "\
import torch

def evaluate(model, loader):
    model.eval()
    for x in loader:
        out = model(x)
        print(out.mean().item())
";

/// Files by name, and those of them in which something is found.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let config = Config { select: vec!["eval-without-no-grad".to_owned()], ..Config::default() };
    let report = check_paths(&[folder.path().to_owned()], &config).unwrap();
    let name = |path: &Path| path.strip_prefix(folder.path()).unwrap().display().to_string();
    report.files.iter().map(|source| name(&source.path)).collect()
}

#[test]
fn calls_without_gradients_count_in_the_project_that_makes_them() {
    let caller =
        "import torch\nfrom here import evaluate\nwith torch.no_grad():\n    evaluate(model, loader)\n";
    let files = [
        ("one/pyproject.toml", ""),
        ("one/src/evaluation.py", EVALUATION),
        ("one/scripts/main.py", caller),
        ("two/setup.py", ""),
        ("two/evaluation.py", EVALUATION),
    ];
    assert_eq!(found(&files), ["two/evaluation.py"]);
    // Without a sign of where a project begins, all is one.
    let bare: Vec<_> = files
        .iter()
        .copied()
        .filter(|(name, _)| !name.ends_with("pyproject.toml") && !name.ends_with("setup.py"))
        .collect();
    assert_eq!(found(&bare), [] as [&str; 0]);
}

#[test]
fn models_that_differentiate_speak_for_their_project() {
    let forces = "\
import torch

class Forces(torch.nn.Module):
    def forward(self, x):
        return gradient(self.net(x), x)

def gradient(energy, x):
    return torch.autograd.grad(energy.sum(), x)
";
    let files = [
        ("one/setup.cfg", ""),
        ("one/models.py", forces),
        ("one/tests/test_evaluation.py", EVALUATION),
        ("two/setup.cfg", ""),
        ("two/evaluation.py", EVALUATION),
    ];
    assert_eq!(found(&files), ["two/evaluation.py"]);
}
