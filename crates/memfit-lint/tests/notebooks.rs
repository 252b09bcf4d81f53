//! Fixes in notebooks change the code as in a Python file, and nothing else.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::path::Path;

use memfit_lint::{Config, check_source};
use serde_json::{Value, json};

fn config() -> Config {
    Config { select: vec!["all".to_owned()], ..Config::default() }
}

/// Python blocks of the specifications.
fn blocks() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("specs");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut blocks = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(path).unwrap();
        let fenced = |start: &str| -> Vec<String> {
            let parts = text.split(start).skip(1);
            parts.map(|part| part.split("```").next().unwrap().to_owned()).collect()
        };
        let given = fenced("```python given\n").concat();
        blocks.extend(fenced("```python\n").into_iter().map(|block| format!("{given}{block}")));
    }
    blocks
}

/// Notebook with these cells, without the line end that a cell does not have.
fn notebook(cells: &[&str], as_lists: bool) -> String {
    let cells: Vec<Value> = cells
        .iter()
        .map(|cell| {
            let cell = cell.trim_end_matches('\n');
            let lines: Vec<&str> = cell.split_inclusive('\n').collect();
            let source = if as_lists { json!(lines) } else { json!(cell) };
            json!({"cell_type": "code", "source": source, "outputs": [], "metadata": {}})
        })
        .collect();
    let mut text = serde_json::to_string_pretty(&json!({"cells": cells, "nbformat": 4})).unwrap();
    text.push('\n');
    text
}

fn code(notebook: &str) -> String {
    let notebook: Value = serde_json::from_str(notebook).unwrap();
    let mut text = String::new();
    for cell in notebook["cells"].as_array().unwrap() {
        match &cell["source"] {
            Value::Array(lines) => {
                let lines: Vec<&str> = lines.iter().map(|line| line.as_str().unwrap()).collect();
                let (last, others) = lines.split_last().unwrap_or((&"", &[]));
                let is_line = |line: &&str| line.ends_with('\n') && line.matches('\n').count() == 1;
                assert!(others.iter().all(is_line) && !last.contains('\n'), "{lines:?}");
                text.push_str(&lines.concat());
            }
            source => text.push_str(source.as_str().unwrap()),
        }
        text.push('\n');
    }
    text
}

#[test]
fn a_notebook_is_fixed_as_a_file_of_python_is() {
    let mut changed = 0;
    for block in blocks() {
        let python = check_source(Path::new("train.py"), &block, &config()).unwrap();
        let fixed = python.fix_all(true, &config()).unwrap();
        for as_lists in [true, false] {
            let text = notebook(&[&block], as_lists);
            let source = check_source(Path::new("train.ipynb"), &text, &config()).unwrap();
            assert_eq!(source.findings.len(), python.findings.len(), "{block}");
            let after = source.fix_all(true, &config()).unwrap();
            assert_eq!(code(&after.text), fixed.text, "{block}");
            assert_eq!((after.fixed, after.refused.len()), (fixed.fixed, fixed.refused.len()), "{block}");
            // Another program that writes notebooks would write the same bytes.
            assert_eq!(after.text, notebook(&[&fixed.text], as_lists));
            changed += usize::from(after.text != text);
        }
    }
    assert!(changed > 100, "only {changed} notebooks were changed");
}

#[test]
fn the_last_line_of_a_cell_can_be_taken_out() {
    let training = "\
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())
criterion = torch.nn.MSELoss()
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
";
    // An unused suppression is removed, and the line before it becomes the last.
    let idle = format!("{training}# memfit: ignore[empty-cache-in-loop]\n");
    let text = notebook(&[&idle, "print(1)\n"], true);
    let source = check_source(Path::new("idle.ipynb"), &text, &Config::default()).unwrap();
    let after = source.fix_all(false, &Config::default()).unwrap();
    assert_eq!(after.text, notebook(&[training, "print(1)\n"], true));
}
