//! Objects that are given models: wrappers, and tasks that evaluate.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::path::Path;

use memfit_lint::{Config, check_paths};

/// Returns the files in which a rule finds something.
fn files_with_finding(rule: &str, files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let config = Config { select: vec![rule.to_owned()], ..Config::default() };
    let report = check_paths(&[folder.path().to_owned()], &config).unwrap();
    let name = |path: &Path| path.strip_prefix(folder.path()).unwrap().display().to_string();
    report.files.iter().map(|source| name(&source.path)).collect()
}

/// A model that is given another one, and a script that trains the inner one.
fn wrapper(own: &str) -> Vec<(&'static str, String)> {
    let model = format!(
        "\
import torch
from torch import nn

class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.own = {own}

    def forward(self, x):
        return self.inner(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.body(x))
"
    );
    let script = "\
import torch
from model import Net, Wrapper

net = Wrapper(Net()).cuda()
optimizer = torch.optim.Adam(net.inner.parameters(), lr=1e-3)
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
"
    .to_owned();
    vec![("model.py", model), ("train.py", script)]
}

#[test]
fn a_wrapper_has_only_the_weights_of_its_own_class() {
    for (own, expected) in [
        ("nn.Linear(8, 8)", &["train.py"] as &[&str]),
        ("nn.Parameter(torch.zeros(8), requires_grad=False)", &[]),
        ("torch.linspace(0, 1, 1000)", &[]),
    ] {
        let files = wrapper(own);
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        assert_eq!(files_with_finding("gradients-for-nothing", &files), expected, "{own}");
    }
}

#[test]
fn an_object_may_run_the_model_that_it_is_given() {
    let features = |decorator: &str| {
        format!(
            "\
import torch

class Features:
    @staticmethod
    {decorator}
    def get_features(model, batch):
        out = model(batch[\"x\"])
        return out / out.norm(dim=-1, keepdim=True)
"
        )
    };
    let task = "\
import torch

class Task:
    def valid_step(self, model, criterion, batch):
        features = criterion.get_features(model, batch)
        return features.softmax(-1)

    def run_inference(self, model, criterion, dataloader):
        kept = []
        for batch in dataloader:
            probabilities = self.valid_step(model, criterion, batch)
            kept += probabilities.tolist()
        return kept
";
    let (on, off) = (features("# with gradients"), features("@torch.no_grad()"));
    assert_eq!(
        files_with_finding("eval-without-no-grad", &[("features.py", on.as_str()), ("task.py", task)]),
        ["task.py"]
    );
    assert!(
        files_with_finding("eval-without-no-grad", &[("features.py", off.as_str()), ("task.py", task)])
            .is_empty()
    );
}
