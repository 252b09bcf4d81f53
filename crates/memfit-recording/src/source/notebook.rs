//! Jupyter notebooks: what their cells printed, as one text.

use std::io::Read;

use serde::Deserialize;

use super::OpenError;

/// A notebook larger than this is not read.
const LARGEST: u64 = 256 << 20;

#[derive(Deserialize)]
struct Notebook {
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    #[serde(default)]
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Output {
    #[serde(default)]
    text: Lines,
    #[serde(default)]
    traceback: Lines,
    #[serde(default)]
    evalue: Option<String>,
}

/// One text, or a list of lines.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Lines {
    Many(Vec<String>),
    One(String),
    #[default]
    #[serde(skip)]
    None,
}

impl Lines {
    fn add_to(self, text: &mut String) {
        match self {
            Self::Many(lines) => {
                for line in lines {
                    text.push_str(&line);
                    if !line.ends_with('\n') {
                        text.push('\n');
                    }
                }
            }
            Self::One(one) => {
                text.push_str(&one);
                text.push('\n');
            }
            Self::None => {}
        }
    }
}

/// What all cells printed, and what is wrong where the notebook is damaged: its bytes are then taken for a
/// text, in which the errors of the cells stand all the same.
pub(super) fn text(notebook: impl Read) -> Result<(String, Option<OpenError>), OpenError> {
    let mut bytes = Vec::new();
    notebook.take(LARGEST).read_to_end(&mut bytes)?;
    let read: Result<Notebook, _> = serde_json::from_slice(&bytes);
    match read {
        Ok(notebook) => Ok((printed(notebook), None)),
        Err(error) => {
            let why = format!("at byte {}: {error}", place_of(&bytes, &error));
            let rest = unescaped(&String::from_utf8_lossy(&bytes));
            Ok((rest, Some(OpenError::Broken { format: "notebook", why })))
        }
    }
}

/// The byte that an error is at: JSON's reader counts lines and columns.
fn place_of(bytes: &[u8], error: &serde_json::Error) -> usize {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let before: usize = lines.by_ref().take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    (before + error.column()).min(bytes.len())
}

/// What JSON writes with a backslash, as far as it stands in the way of reading lines.
fn unescaped(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\u001b", "\u{1b}").replace("\\\"", "\"")
}

fn printed(notebook: Notebook) -> String {
    let mut text = String::new();
    for output in notebook.cells.into_iter().flat_map(|cell| cell.outputs) {
        output.text.add_to(&mut text);
        let had_traceback = !matches!(&output.traceback, Lines::None);
        output.traceback.add_to(&mut text);
        // The traceback ends in the message already.
        if !had_traceback && let Some(message) = output.evalue {
            text.push_str(&message);
        }
        text.push_str("\n\n");
    }
    text
}
