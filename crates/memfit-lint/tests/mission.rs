//! Findings in the articles that the project is based on. Skipped unless `MEMFIT_TEST_MISSION` names their
//! folder.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memfit_lint::{Config, check_paths, check_source};

/// Block numbers with the rules that report them.
type Blocks = &'static [(usize, &'static [&'static str])];

/// The code blocks with findings, numbered from 1, by the prefix of the article's file name.
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

/// Number of the code block that contains a line.
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

/// Code of each block of an article.
fn blocks(text: &str) -> Vec<String> {
    let parts = text.split("```python\n").skip(1);
    parts.map(|part| part.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn corrected_samples_have_no_findings() {
    let Some(folder) = folder() else { return };
    for (prefix, corrections) in CORRECTIONS {
        let mut entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let starts = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(prefix);
        let article = std::fs::read_to_string(entries.find(starts).unwrap()).unwrap();
        let blocks = blocks(&article);
        for (block, changes) in *corrections {
            let mut text = blocks[*block - 1].clone();
            for (from, to) in *changes {
                assert_eq!(text.matches(from).count(), 1, "{prefix} {block}: `{from}`\n{text}");
                text = text.replace(from, to);
            }
            let source = check_source(Path::new("sample.py"), &text, &Config::default()).unwrap();
            let found: Vec<_> = source.findings.iter().map(|found| (found.rule, found.start.line)).collect();
            assert_eq!(found, [], "{prefix} {block}:\n{text}");
            assert!(source.problems.is_empty(), "{prefix} {block}:\n{text}");
        }
    }
}

#[test]
fn each_sample_with_a_finding_is_corrected() {
    for ((prefix, found), (corrected, corrections)) in TABLE.iter().zip(CORRECTIONS) {
        assert_eq!(prefix, corrected);
        let found: Vec<usize> = found.iter().map(|(block, _)| *block).collect();
        let corrected: Vec<usize> = corrections.iter().map(|(block, _)| *block).collect();
        assert_eq!(found, corrected, "{prefix}");
    }
}

/// Texts of a block and their replacements.
type Changes = &'static [(&'static str, &'static str)];

/// Blocks with mistakes in each article, and their corrections.
const CORRECTIONS: &[(&str, &[(usize, Changes)])] = &[
    (
        "000_",
        &[(
            2,
            &[
                ("    optimizer.zero_grad()\n", ""),
                ("model.train()\n", "model.train()\noptimizer.zero_grad()\n"),
                (
                    "== 0:\n        optimizer.step()",
                    "== 0 or i + 1 == len(train_loader):\n        optimizer.step()\n        optimizer.zero_grad()",
                ),
            ],
        )],
    ),
    (
        "001_",
        &[
            (1, &[SWALLOWED]),
            (2, &[SWALLOWED]),
            (
                3,
                &[
                    SWALLOWED,
                    ("        optimizer.zero_grad() #", "        #"),
                    ("try:\n", "try:\n    optimizer.zero_grad()\n"),
                    (
                        "loss = criterion(outputs, batch_labels)",
                        "loss = criterion(outputs, batch_labels) / accumulation_steps",
                    ),
                    ("        else:\n", "            optimizer.zero_grad()\n"),
                    ("            with torch.no_grad(): #", "            #"),
                    ("                optimizer.param_groups[0]['params'][0].grad = ", "            #"),
                ],
            ),
        ],
    ),
    (
        "002_",
        &[
            (
                2,
                &[(
                    "data.cuda(), target.cuda()",
                    "data.cuda(non_blocking=True), target.cuda(non_blocking=True)",
                )],
            ),
            (
                3,
                &[
                    ("        optimizer.zero_grad()\n", ""),
                    ("        with torch.no_grad():\n", "        if True:\n"),
                    (
                        "outputs = model(data)",
                        "outputs = model(data)\n            assert outputs.requires_grad",
                    ),
                    (
                        "        loss.backward()",
                        "        loss = loss / accumulation_steps\n        loss.backward()",
                    ),
                    (
                        "== 0:\n            optimizer.step()",
                        "== 0 or batch_idx + 1 == len(train_loader):\n            optimizer.step()\n            optimizer.zero_grad()",
                    ),
                ],
            ),
        ],
    ),
    (
        "003_",
        &[
            (
                2,
                &[(
                    "if (i+1) % accumulation_steps == 0:",
                    "if (i+1) % accumulation_steps == 0 or i+1 == len(train_loader):",
                )],
            ),
            (
                3,
                &[
                    ("torch.cuda.amp import", "torch.amp import"),
                    ("scaler = GradScaler()", "scaler = GradScaler(\"cuda\")"),
                    ("with autocast():", "with autocast(\"cuda\"):"),
                ],
            ),
        ],
    ),
    (
        "004_",
        &[
            (
                2,
                &[
                    ("model.half() #", "#"),
                    ("    images = images.half() #", "    #"),
                    ("torch.cuda.amp.GradScaler()", "torch.amp.GradScaler(\"cuda\")"),
                    ("torch.cuda.amp.autocast()", "torch.amp.autocast(\"cuda\")"),
                    ("scaler.update()", "scaler.update()\n    optimizer.zero_grad()"),
                ],
            ),
            (
                3,
                &[
                    (
                        "for images, labels in dataloader:",
                        "for i, (images, labels) in enumerate(dataloader):",
                    ),
                    ("== 0:", "== 0 or i + 1 == len(dataloader):"),
                ],
            ),
        ],
    ),
];

/// Correction of a handler that catches and prints all errors, including out-of-memory errors.
const SWALLOWED: (&str, &str) = (
    "except RuntimeError as e:\n    print(f\"Error: {e}\")",
    "except torch.OutOfMemoryError as e:\n    raise SystemExit(f\"it does not fit: {e}\")",
);
