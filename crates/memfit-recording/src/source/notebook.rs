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

/// What all cells printed.
pub(super) fn text(notebook: impl Read) -> Result<String, OpenError> {
    let notebook: Notebook = serde_json::from_reader(notebook.take(LARGEST))
        .map_err(|error| OpenError::Broken { format: "notebook", why: error.to_string() })?;
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
    Ok(text)
}
