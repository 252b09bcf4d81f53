//! Python in files: plain, in the cells of a notebook, in fenced blocks of Markdown.
//!
//! A document consists of one or more Python snippets, each with a map to the bytes of the file, so that
//! findings are reported at positions in the file and fixes change nothing else.

mod markdown;
mod notebook;

use std::sync::Arc;

use crate::edit::{Edit, EditError};
use crate::parse::Dialect;
use crate::position::Span;

/// File format of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A Python file.
    Python,
    /// A Jupyter notebook.
    Notebook,
    /// Text with fenced blocks.
    Markdown,
}

impl Format {
    /// Detects the format by a file name, or returns `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        let extension = name.rsplit_once('.')?.1.to_ascii_lowercase();
        Some(match extension.as_str() {
            "py" | "pyi" | "pyw" => Self::Python,
            "ipynb" => Self::Notebook,
            "md" | "markdown" | "mdx" | "qmd" | "rmd" => Self::Markdown,
            _ => return None,
        })
    }

    /// Detects the format by the text of a file whose name does not show it.
    pub fn from_text(text: &str) -> Self {
        if has_python_fence(text) { Self::Markdown } else { Self::Python }
    }
}

/// Returns `true` if a text has a fenced Python block.
pub fn has_python_fence(text: &str) -> bool {
    text.contains("```") && text.lines().any(|line| markdown::opens(line).is_some())
}

/// Python code in a document.
#[derive(Clone, Debug)]
pub struct Snippet {
    /// The code.
    pub text: Arc<str>,
    /// Python dialect.
    pub dialect: Dialect,
    /// `true` if parse errors should be reported. Code in a Markdown text is often abridged.
    pub is_whole: bool,
    map: Map,
}

/// Map from a snippet to the file.
#[derive(Clone, Debug)]
enum Map {
    /// The snippet is the file.
    Same,
    /// Start of each line in the snippet and in the file.
    Lines(Vec<(u32, u32)>),
    /// Map of a notebook.
    Notebook(notebook::Map),
}

/// Position in a file, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Notebook cell, from 1.
    pub cell: Option<u32>,
    /// Line in the file, or in the cell.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// Error while extracting the Python code of a document.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The file is not a valid notebook.
    #[error("it is not a Jupyter notebook: {0}")]
    Notebook(serde_json::Error),
}

impl Snippet {
    /// Converts a span to one of the file. Returns `None` for text that is not contiguous in the file.
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

    /// Translates edits of the snippet to edits of `file`; `finding` is the span of the finding.
    pub fn file_edits(&self, edits: &[Edit], finding: Span, file: &str) -> Result<Vec<Edit>, EditError> {
        match &self.map {
            Map::Notebook(map) => map.edits(edits, finding, &self.text, file),
            _ => edits
                .iter()
                .map(|edit| {
                    let span = self.to_file(edit.span).ok_or(EditError::OutOfText)?;
                    Ok(Edit { span, text: self.indented(&edit.text, edit.span) })
                })
                .collect(),
        }
    }

    /// Indents all lines but the first to the depth of the enclosing Markdown block.
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

    /// Converts an offset in the snippet to a position in the file; `file` is the text of the file.
    pub fn locate(&self, offset: u32, file: &str, lines: &crate::LineIndex) -> Location {
        match &self.map {
            Map::Notebook(map) => map.locate(offset, &self.text),
            _ => {
                let at = self.to_file(Span::empty(offset)).map_or(offset, |span| span.start);
                let position = lines.position(at, file);
                Location { cell: None, line: position.line, column: position.column }
            }
        }
    }
}

/// Extracts the snippets of a document.
pub fn snippets(text: &Arc<str>, format: Format) -> Result<Vec<Snippet>, DocumentError> {
    Ok(match format {
        Format::Python => {
            vec![Snippet { text: text.clone(), dialect: Dialect::Python, is_whole: true, map: Map::Same }]
        }
        Format::Markdown => markdown::snippets(text),
        Format::Notebook => notebook::snippets(text).map_err(DocumentError::Notebook)?.into_iter().collect(),
    })
}
