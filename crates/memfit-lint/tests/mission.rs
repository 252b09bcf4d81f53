//! The articles that the project was created from, where they are at hand: `MEMFIT_TEST_MISSION` names their folder.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memfit_lint::{Config, Severity, check_paths, check_source};

/// Blocks by number, and the rules that find something in them.
type Blocks = &'static [(usize, &'static [&'static str])];

/// Each article's code blocks, from the first, with what is found in them; blocks without findings are left out.
const TABLE: &[(&str, Blocks)] = &[
    ("000_", &[(2, &["partial-window-dropped", "zero-grad-inside-window"])]),
    (
        "001_",
        &[
            (1, &["oom-swallowed"]),
            (2, &["oom-swallowed"]),
            (3, &["one-parameter-gradient-scaled", "oom-swallowed", "zero-grad-inside-window"]),
        ],
    ),
    (
        "002_",
        &[(2, &["blocking-copy-from-pinned"]), (3, &["backward-on-no-grad-loss", "zero-grad-inside-window"])],
    ),
    ("003_", &[(2, &["partial-window-dropped"]), (3, &["deprecated-cuda-amp"])]),
    (
        "004_",
        &[
            (2, &["deprecated-cuda-amp", "half-model-with-grad-scaler", "missing-zero-grad"]),
            (3, &["partial-window-dropped", "stale-window-index"]),
        ],
    ),
];

fn folder() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("MEMFIT_TEST_MISSION")?);
    folder.is_dir().then_some(folder)
}

/// The number of the code block that a line is in.
fn block_of(text: &str, line: u32) -> usize {
    text.lines().take(line as usize).filter(|line| line.trim() == "```python").count()
}

#[test]
fn every_sample_has_its_findings() {
    let Some(folder) = folder() else { return };
    let report = check_paths(&[folder], &Config::default()).unwrap();
    for (prefix, expected) in TABLE {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let source = report.files.iter().find(|source| name(&source.path).starts_with(prefix)).unwrap();
        let mut found: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for finding in &source.findings {
            let block = found.entry(block_of(&source.text, finding.start.line)).or_default();
            if !block.contains(&finding.rule) {
                block.push(finding.rule);
            }
        }
        for rules in found.values_mut() {
            rules.sort_unstable();
        }
        let expected: BTreeMap<usize, Vec<&str>> =
            expected.iter().map(|(block, rules)| (*block, rules.to_vec())).collect();
        assert_eq!(found, expected, "{prefix}");
    }
}

/// The same mistakes, corrected.
#[test]
fn corrected_samples_have_none() {
    for (name, text) in CORRECTED {
        let source = check_source(Path::new("sample.py"), text, &Config::default()).unwrap();
        let found: Vec<_> =
            source.findings.iter().map(|finding| (finding.rule, finding.start.line)).collect();
        assert_eq!(found, [], "{name}");
        assert!(source.findings.iter().all(|finding| finding.severity < Severity::Error));
    }
}

const CORRECTED: &[(&str, &str)] = &[
    (
        "accumulation",
        "
import torch
accumulation_steps = 4
optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
model.train()
optimizer.zero_grad()
for i, (inputs, labels) in enumerate(train_loader):
    loss = loss_function(model(inputs), labels) / accumulation_steps
    loss.backward()
    if (i + 1) % accumulation_steps == 0 or i + 1 == len(train_loader):
        optimizer.step()
        optimizer.zero_grad()
",
    ),
    (
        "out of memory",
        "
import torch
try:
    optimizer.zero_grad()
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()
except torch.OutOfMemoryError as error:
    raise SystemExit(f\"does not fit: {error}\")
",
    ),
    (
        "windows over slices",
        "
import torch
batch_size, accumulation_steps = 32, 4
optimizer.zero_grad()
for i in range(0, batch_size * accumulation_steps, batch_size):
    loss = criterion(model(images[i:i + batch_size]), labels[i:i + batch_size]) / accumulation_steps
    loss.backward()
    if (i // batch_size + 1) % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
",
    ),
    (
        "mixed precision",
        "
import torch
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
scaler = torch.amp.GradScaler(\"cuda\")
for images, labels in dataloader:
    with torch.amp.autocast(\"cuda\"):
        loss = criterion(model(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
",
    ),
    (
        "pinned",
        "
import torch
from torch.utils.data import DataLoader
train_loader = DataLoader(dataset, batch_size=64, shuffle=True, pin_memory=True, num_workers=4)
for data, target in train_loader:
    data, target = data.cuda(non_blocking=True), target.cuda(non_blocking=True)
",
    ),
];
