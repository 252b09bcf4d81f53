//! Output of the cells of Jupyter notebooks as one text.

use std::io::Read;

use serde::Deserialize;

use super::OpenError;

/// Maximum size of a notebook.
const MAX_FILE_BYTES: u64 = 256 << 20;

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

/// A text, or a list of lines.
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

/// Returns the output of all cells. If the notebook is damaged, returns its raw bytes as text, in which error
/// messages can still be found, and the error.
pub(super) fn text(notebook: impl Read) -> Result<(String, Option<OpenError>), OpenError> {
    let mut bytes = Vec::new();
    notebook.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    let read: Result<Notebook, _> = serde_json::from_slice(&bytes);
    match read {
        Ok(notebook) => Ok((printed(notebook), None)),
        Err(error) => {
            let why = format!("at byte {}: {error}", byte_offset(&bytes, &error));
            let rest = unescaped(&String::from_utf8_lossy(&bytes));
            Ok((rest, Some(OpenError::Broken { format: "notebook", why })))
        }
    }
}

/// Converts the line and column of a JSON error to a byte offset.
fn byte_offset(bytes: &[u8], error: &serde_json::Error) -> usize {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let before: usize = lines.by_ref().take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    (before + error.column()).min(bytes.len())
}

/// Resolves JSON escapes that would hinder the search of lines.
fn unescaped(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\u001b", "\u{1b}").replace("\\\"", "\"")
}

fn printed(notebook: Notebook) -> String {
    let mut text = String::new();
    for output in notebook.cells.into_iter().flat_map(|cell| cell.outputs) {
        output.text.add_to(&mut text);
        let had_traceback = !matches!(&output.traceback, Lines::None);
        output.traceback.add_to(&mut text);
        // The traceback already ends with the message.
        if !had_traceback && let Some(message) = output.evalue {
            text.push_str(&message);
        }
        text.push_str("\n\n");
    }
    text
}
