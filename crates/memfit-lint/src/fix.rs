//! Fixes: put together where they do not touch each other, and kept only if the result still parses.

use memfit_source::document::Snippet;
use memfit_source::{Span, is_valid};

use crate::rule::Edit;

/// What came of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The new text of the file.
    pub text: String,
    /// How many findings were fixed.
    pub fixed: usize,
}

/// Puts the edits of as many fixes as go together into a text: those that come first win.
pub(crate) fn compose(fixes: &[&[Edit]]) -> (Vec<Edit>, usize) {
    let mut taken: Vec<Edit> = Vec::new();
    let mut fixed = 0;
    for edits in fixes {
        // An edit that is there already, as of an import that several findings share, is no conflict.
        let fresh: Vec<&Edit> = edits.iter().filter(|edit| !taken.contains(edit)).collect();
        let clashes = fresh.iter().any(|edit| taken.iter().any(|other| overlap(edit.span, other.span)));
        if clashes {
            continue;
        }
        taken.extend(fresh.into_iter().cloned());
        fixed += 1;
    }
    taken.sort();
    (taken, fixed)
}

/// Two edits that cannot both be done. Insertions at the same byte have no order.
fn overlap(a: Span, b: Span) -> bool {
    if a.start == a.end || b.start == b.end {
        return a.start <= b.end
            && b.start <= a.end
            && (a.start == b.start || (a.start < b.end && b.start < a.end));
    }
    a.start < b.end && b.start < a.end
}

/// Does edits of a text.
pub(crate) fn edited(text: &str, edits: &[Edit]) -> Option<String> {
    let mut result = String::with_capacity(text.len() + 64);
    let mut at = 0;
    for edit in edits {
        result.push_str(text.get(at..edit.span.start as usize)?);
        result.push_str(&edit.text);
        at = edit.span.end as usize;
    }
    result.push_str(text.get(at..)?);
    Some(result)
}

/// The edits of one snippet, as edits of its file; nothing if the snippet would not parse any more.
pub(crate) fn in_file(snippet: &Snippet, edits: &[Edit]) -> Option<Vec<Edit>> {
    let changed = edited(&snippet.text, edits)?;
    // What did not parse before cannot be held to it.
    if !is_valid(&changed, snippet.dialect) && is_valid(&snippet.text, snippet.dialect) {
        return None;
    }
    edits
        .iter()
        .map(|edit| {
            Some(Edit { span: snippet.to_file(edit.span)?, text: snippet.encode(&edit.text, edit.span) })
        })
        .collect()
}

/// Does edits of a file.
pub fn apply(text: &str, edits: &[Edit], fixed: usize) -> Option<Applied> {
    let mut edits = edits.to_vec();
    edits.sort();
    Some(Applied { text: edited(text, &edits)?, fixed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixes_that_touch_each_other_wait() {
        let a = [Edit::replace(Span::new(0, 4), "x")];
        let b = [Edit::replace(Span::new(3, 6), "y")];
        let c = [Edit::insert(8, "z")];
        let d = [Edit::insert(8, "w")];
        let (edits, fixed) = compose(&[&a, &b, &c, &d, &c]);
        assert_eq!((edits.len(), fixed), (2, 3));
        assert_eq!(edited("0123456789", &edits).as_deref(), Some("x4567z89"));
    }
}
