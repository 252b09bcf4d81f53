//! Fixes as changes of a file, kept only if the result still parses.

use memfit_source::document::{Location, Snippet};
use memfit_source::{Edit, EditError, Span, edit};

/// What came of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The new text of the file.
    pub text: String,
    /// How many findings were fixed.
    pub fixed: usize,
    /// What was to be fixed and could not be.
    pub refused: Vec<Refused>,
}

/// A fix that was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The rule's name.
    pub rule: &'static str,
    /// Where, in the text as it is left.
    pub start: Location,
    /// Why, as a clause.
    pub reason: String,
}

/// The edits of one snippet for a finding, as edits of its file; an error if the snippet would not parse any
/// more, or if the file cannot hold them.
pub(crate) fn in_file(
    snippet: &Snippet,
    edits: &[Edit],
    about: Span,
    file: &str,
) -> Result<Vec<Edit>, EditError> {
    edit::apply_checked(&snippet.text, edits, snippet.dialect)?;
    snippet.file_edits(edits, about, file)
}

/// Does edits of a file.
pub fn apply(text: &str, edits: &[Edit], fixed: usize) -> Option<Applied> {
    Some(Applied { text: edit::apply(text, edits).ok()?, fixed, refused: Vec::new() })
}
