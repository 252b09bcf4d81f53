//! Fixes: put together where they do not touch each other, and kept only if the result still parses.

use memfit_source::document::Snippet;
use memfit_source::{Edit, edit};

/// What came of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The new text of the file.
    pub text: String,
    /// How many findings were fixed.
    pub fixed: usize,
}

/// The edits of one snippet, as edits of its file; nothing if the snippet would not parse any more.
pub(crate) fn in_file(snippet: &Snippet, edits: &[Edit]) -> Option<Vec<Edit>> {
    edit::apply_checked(&snippet.text, edits, snippet.dialect).ok()?;
    edits
        .iter()
        .map(|edit| {
            Some(Edit { span: snippet.to_file(edit.span)?, text: snippet.encode(&edit.text, edit.span) })
        })
        .collect()
}

/// Does edits of a file.
pub fn apply(text: &str, edits: &[Edit], fixed: usize) -> Option<Applied> {
    Some(Applied { text: edit::apply(text, edits).ok()?, fixed })
}
