//! Edits of Python source: conflicts between them, their application, and unified diffs.
//!
//! This is the only editor of Python source in the workspace. The fixes of `memfit check`, the change that
//! `memfit plan --diff` writes and the remedies of `memfit explain` are lists of [`Edit`]s; none of them
//! manipulates text itself.

mod arguments;

use serde::Serialize;

use crate::parse::{Dialect, is_valid};
use crate::position::Span;

/// Replacement of a span of the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Edit {
    /// Span that is replaced.
    pub span: Span,
    /// Replacement text.
    pub text: String,
}

/// Error while edits are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// Two edits replace the same bytes.
    #[error("two of its changes touch the same place")]
    Overlap,
    /// An edit is out of bounds or splits a character.
    #[error("one of its changes lies outside of the text")]
    OutOfText,
    /// An edit crosses the end of a notebook cell.
    #[error("one of its changes goes across cells of the notebook")]
    AcrossCells,
    /// The result is not valid Python.
    #[error("the changed text would no longer be valid Python")]
    Broken,
}

impl Edit {
    /// Inserts a text before a byte.
    pub fn insert(at: u32, text: impl Into<String>) -> Self {
        Self { span: Span::empty(at), text: text.into() }
    }

    /// Replaces a span.
    pub fn replace(span: Span, text: impl Into<String>) -> Self {
        Self { span, text: text.into() }
    }

    /// Removes a span.
    pub const fn delete(span: Span) -> Self {
        Self { span, text: String::new() }
    }

    /// Returns `true` if the edits conflict. Two insertions at the same byte do, since their order is
    /// undefined.
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

/// Merges the edits of fixes that do not conflict; earlier fixes win. Returns the edits and the number of
/// fixes that they contain.
pub fn compose(fixes: &[&[Edit]]) -> (Vec<Edit>, usize) {
    let mut taken: Vec<Edit> = Vec::new();
    let mut fixed = 0;
    for edits in fixes {
        // An identical edit, such as an import that several fixes need, is not a conflict.
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

/// Applies edits to a text. Insertions at the same byte are ordered by their text.
pub fn apply(text: &str, edits: &[Edit]) -> Result<String, EditError> {
    apply_within(text, Span::new(0, text.len() as u32), edits)
}

/// Returns a part of the text with the edits within it applied.
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

/// Applies edits and parses the result: fails if a valid text would become invalid.
pub fn apply_checked(text: &str, edits: &[Edit], dialect: Dialect) -> Result<String, EditError> {
    let changed = apply(text, edits)?;
    // A text that was invalid before is not checked.
    if is_valid(&changed, dialect) || !is_valid(text, dialect) { Ok(changed) } else { Err(EditError::Broken) }
}

/// Number of unchanged lines around a change in a diff.
const CONTEXT_LINES: usize = 3;

/// Formats a change as a unified diff for `patch` and `git apply`. The result is empty if nothing changes.
pub fn unified_diff(old_name: &str, new_name: &str, before: &str, after: &str) -> String {
    if before == after {
        return String::new();
    }
    let changes = similar::TextDiff::from_lines(before, after);
    changes.unified_diff().context_radius(CONTEXT_LINES).header(old_name, new_name).to_string()
}

#[cfg(test)]
mod tests;
