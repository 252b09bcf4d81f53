//! How Python stands in a file: alone, in the cells of a notebook, in the fenced blocks of a Markdown text.
//!
//! A document is one or more snippets of Python, each with the way back to the bytes of the file, so that
//! findings are reported where people see them and fixes change nothing else.

mod markdown;
mod notebook;

use std::sync::Arc;

use crate::edit::{Edit, EditError};
use crate::parse::Dialect;
use crate::position::Span;

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Python alone.
    Python,
    /// A Jupyter notebook.
    Notebook,
    /// Text with fenced blocks.
    Markdown,
}

impl Format {
    /// By a file's name, if that says it.
    pub fn of_name(name: &str) -> Option<Self> {
        let extension = name.rsplit_once('.')?.1.to_ascii_lowercase();
        Some(match extension.as_str() {
            "py" | "pyi" | "pyw" => Self::Python,
            "ipynb" => Self::Notebook,
            "md" | "markdown" | "mdx" | "qmd" | "rmd" => Self::Markdown,
            _ => return None,
        })
    }

    /// By a file's text, where its name does not say it.
    pub fn of_text(text: &str) -> Self {
        if has_python_fence(text) { Self::Markdown } else { Self::Python }
    }
}

/// Whether a text has a fenced block that says it is Python.
pub fn has_python_fence(text: &str) -> bool {
    text.contains("```") && text.lines().any(|line| markdown::opens(line).is_some())
}

/// Python in a document.
#[derive(Clone, Debug)]
pub struct Snippet {
    /// The Python.
    pub text: Arc<str>,
    /// Which.
    pub dialect: Dialect,
    /// Whether a parse error is worth telling: in a text for people, code is often cut short.
    pub is_whole: bool,
    map: Map,
}

/// The way back from a snippet to the file.
#[derive(Clone, Debug)]
enum Map {
    /// They are the same.
    Same,
    /// For each line: where it begins in the snippet and in the file.
    Lines(Vec<(u32, u32)>),
    /// A notebook's.
    Notebook(notebook::Map),
}

/// Where something is in a file, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The cell of a notebook, from 1.
    pub cell: Option<u32>,
    /// In the file, or in the cell.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
}

/// A document's Python could not be found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The notebook is not one.
    #[error("it is not a Jupyter notebook: {0}")]
    Notebook(serde_json::Error),
}

impl Snippet {
    /// The bytes of the file that a span stands for; nothing for text that the file does not have in one
    /// piece.
    pub fn to_file(&self, span: Span) -> Option<Span> {
        match &self.map {
            Map::Same => Some(span),
            Map::Lines(lines) => {
                let place = |offset: u32| {
                    let index = lines.partition_point(|(start, _)| *start <= offset).checked_sub(1)?;
                    let (start, file) = lines.get(index)?;
                    Some(file + (offset - start))
                };
                Some(Span::new(place(span.start)?, place(span.end)?))
            }
            Map::Notebook(map) => map.to_file(span),
        }
    }

    /// Edits of the snippet as edits of the file, whose text is given; `about` is the span that they are for.
    pub fn file_edits(&self, edits: &[Edit], about: Span, file: &str) -> Result<Vec<Edit>, EditError> {
        match &self.map {
            Map::Notebook(map) => map.edits(edits, about, &self.text, file),
            _ => edits
                .iter()
                .map(|edit| {
                    let span = self.to_file(edit.span).ok_or(EditError::OutOfText)?;
                    Ok(Edit { span, text: self.indented(&edit.text, edit.span) })
                })
                .collect(),
        }
    }

    /// A text as the file has it: a block of Markdown may be indented, and so is each further line of it.
    fn indented(&self, text: &str, span: Span) -> String {
        match &self.map {
            Map::Lines(lines) => {
                let index = lines.partition_point(|(start, _)| *start <= span.start).saturating_sub(1);
                text.replace('\n', &format!("\n{}", " ".repeat(self.indents(index))))
            }
            _ => text.to_owned(),
        }
    }

    fn indents(&self, line: usize) -> usize {
        let Map::Lines(lines) = &self.map else { return 0 };
        match (lines.get(line), lines.get(line + 1)) {
            (Some((start, file)), Some((next, next_file))) => {
                ((next_file - file) as usize).saturating_sub((next - start) as usize)
            }
            _ => 0,
        }
    }

    /// Where a byte of the snippet is, for people: `file` is the text of the file.
    pub fn locate(&self, offset: u32, file: &str, lines: &crate::LineIndex) -> Location {
        match &self.map {
            Map::Notebook(map) => map.locate(offset, &self.text),
            _ => {
                let at = self.to_file(Span::at(offset)).map_or(offset, |span| span.start);
                let position = lines.position(at, file);
                Location { cell: None, line: position.line, column: position.column }
            }
        }
    }
}

/// The snippets of a document.
pub fn snippets(text: &Arc<str>, format: Format) -> Result<Vec<Snippet>, DocumentError> {
    Ok(match format {
        Format::Python => {
            vec![Snippet { text: text.clone(), dialect: Dialect::Python, is_whole: true, map: Map::Same }]
        }
        Format::Markdown => markdown::snippets(text),
        Format::Notebook => notebook::snippets(text).map_err(DocumentError::Notebook)?.into_iter().collect(),
    })
}
