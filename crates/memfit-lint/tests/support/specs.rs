//! Reads the specifications in `specs/`.

use std::path::{Path, PathBuf};

/// Context of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Found,
    LeftAlone,
    CannotBeDecided,
}

pub(crate) struct Block {
    pub(crate) part: Part,
    pub(crate) line: usize,
    pub(crate) text: String,
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("specs")
}

/// Blocks of a specification, each with the common preamble.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut given = String::new();
    let mut blocks = Vec::new();
    let mut part = Part::Found;
    let mut open: Option<(bool, usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        if let Some((is_given, begin, code)) = &mut open {
            if line == "```" {
                if *is_given {
                    given = std::mem::take(code);
                } else {
                    blocks.push(Block { part, line: *begin, text: format!("{given}{code}") });
                }
                open = None;
            } else {
                code.push_str(line);
                code.push('\n');
            }
            continue;
        }
        match line {
            "## Found" => part = Part::Found,
            "## Left alone" => part = Part::LeftAlone,
            "## Cannot be decided" => part = Part::CannotBeDecided,
            "```python given" => open = Some((true, number + 1, String::new())),
            "```python" => open = Some((false, number + 1, String::new())),
            _ => {}
        }
    }
    blocks
}

/// Lines with findings of the rule that a text expects, with the severity.
pub(crate) fn expected(text: &str, rule: &str) -> Vec<(u32, String)> {
    text.lines()
        .enumerate()
        .filter_map(|(number, line)| {
            let (_, comment) = line.rsplit_once("# ")?;
            let severity = comment.strip_suffix(&format!(": [{rule}]"))?;
            Some((number as u32 + 1, severity.to_owned()))
        })
        .collect()
}
