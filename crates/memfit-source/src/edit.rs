//! Changes of Python source: edits of spans, which of them go together, their result, and how it is shown.
//!
//! The one editor of Python source in the workspace. The fixes of `memfit check`, the change that
//! `memfit plan --diff` writes and the remedies of `memfit explain` are lists of [`Edit`]s; none of them cuts
//! text by itself.

mod arguments;

use serde::Serialize;

use crate::parse::{Dialect, is_valid};
use crate::position::Span;

/// A change of the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Edit {
    /// The span that is replaced.
    pub span: Span,
    /// The text that replaces it.
    pub text: String,
}

/// Edits that cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// Two of them replace the same bytes.
    #[error("two of its changes touch the same place")]
    Overlap,
    /// One of them lies outside of the text, or splits a character.
    #[error("one of its changes lies outside of the text")]
    OutOfText,
    /// One of them goes beyond the cell that it begins in.
    #[error("one of its changes goes across cells of the notebook")]
    AcrossCells,
    /// The result is no Python.
    #[error("the changed text would not be Python any more")]
    Broken,
}

impl Edit {
    /// Puts a text in front of a byte.
    pub fn insert(at: u32, text: impl Into<String>) -> Self {
        Self { span: Span::at(at), text: text.into() }
    }

    /// Replaces a span.
    pub fn replace(span: Span, text: impl Into<String>) -> Self {
        Self { span, text: text.into() }
    }

    /// Removes a span.
    pub const fn delete(span: Span) -> Self {
        Self { span, text: String::new() }
    }

    /// Whether both cannot be made, or have no order: two insertions at the same byte have none.
    fn clashes(&self, other: &Self) -> bool {
        let (a, b) = (self.span, other.span);
        if a.start == a.end || b.start == b.end {
            return a.start <= b.end
                && b.start <= a.end
                && (a.start == b.start || (a.start < b.end && b.start < a.end));
        }
        a.start < b.end && b.start < a.end
    }
}

/// The edits of as many fixes as go together, and how many fixes these are: those that come first win.
pub fn compose(fixes: &[&[Edit]]) -> (Vec<Edit>, usize) {
    let mut taken: Vec<Edit> = Vec::new();
    let mut fixed = 0;
    for edits in fixes {
        // An edit that is there already, as of an import that several findings share, is no conflict.
        let fresh: Vec<&Edit> = edits.iter().filter(|edit| !taken.contains(edit)).collect();
        if fresh.iter().any(|edit| taken.iter().any(|other| edit.clashes(other))) {
            continue;
        }
        taken.extend(fresh.into_iter().cloned());
        fixed += 1;
    }
    taken.sort();
    (taken, fixed)
}

/// The text with these edits made. Insertions at the same byte come in the order of their texts.
pub fn apply(text: &str, edits: &[Edit]) -> Result<String, EditError> {
    apply_within(text, Span::new(0, text.len() as u32), edits)
}

/// A part of the text with the edits that lie in it made.
pub fn apply_within(text: &str, part: Span, edits: &[Edit]) -> Result<String, EditError> {
    let mut edits: Vec<&Edit> = edits.iter().filter(|edit| part.contains(edit.span)).collect();
    edits.sort();
    edits.dedup();
    if edits.windows(2).any(|pair| pair[1].span.start < pair[0].span.end) {
        return Err(EditError::Overlap);
    }
    let mut out = String::with_capacity(part.range().len() + 64);
    let mut at = part.start as usize;
    for edit in edits {
        out.push_str(text.get(at..edit.span.start as usize).ok_or(EditError::OutOfText)?);
        out.push_str(&edit.text);
        at = edit.span.end as usize;
    }
    out.push_str(text.get(at..part.end as usize).ok_or(EditError::OutOfText)?);
    Ok(out)
}

/// The text with these edits made, parsed again: a text that was Python stays Python.
pub fn apply_checked(text: &str, edits: &[Edit], dialect: Dialect) -> Result<String, EditError> {
    let changed = apply(text, edits)?;
    // A text that did not parse before cannot be held to it.
    if is_valid(&changed, dialect) || !is_valid(text, dialect) { Ok(changed) } else { Err(EditError::Broken) }
}

/// Unchanged lines that a diff shows around a change.
const CONTEXT_LINES: usize = 3;

/// A change as a unified diff, as `patch` and `git apply` take it; empty where nothing changes.
pub fn unified_diff(old_name: &str, new_name: &str, before: &str, after: &str) -> String {
    if before == after {
        return String::new();
    }
    let changes = similar::TextDiff::from_lines(before, after);
    changes.unified_diff().context_radius(CONTEXT_LINES).header(old_name, new_name).to_string()
}

#[cfg(test)]
mod tests;
