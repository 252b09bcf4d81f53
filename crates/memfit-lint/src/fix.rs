//! Application of fixes to a file, with a check that the result parses.

use memfit_source::document::{Location, Snippet};
use memfit_source::{Edit, EditError, Span, edit};

/// Result of fixing a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// New text of the file.
    pub text: String,
    /// Number of fixed findings.
    pub fixed: usize,
    /// Fixes that could not be applied.
    pub refused: Vec<Refused>,
}

/// Fix that was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Name of the rule.
    pub rule: &'static str,
    /// Position in the new text.
    pub start: Location,
    /// Reason, as a clause.
    pub reason: String,
}

/// Translates a finding's edits from the snippet to its file. Fails if the snippet would no longer parse, or
/// if the file cannot represent the edits.
pub(crate) fn in_file(
    snippet: &Snippet,
    edits: &[Edit],
    about: Span,
    file: &str,
) -> Result<Vec<Edit>, EditError> {
    edit::apply_checked(&snippet.text, edits, snippet.dialect)?;
    snippet.file_edits(edits, about, file)
}

/// Applies edits to a file.
pub fn apply(text: &str, edits: &[Edit], fixed: usize) -> Option<Applied> {
    Some(Applied { text: edit::apply(text, edits).ok()?, fixed, refused: Vec::new() })
}
