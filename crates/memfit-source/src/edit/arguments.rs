//! Edits of call arguments.

use super::Edit;
use crate::facts::{Call, Facts};
use crate::position::Span;

impl Facts {
    /// Appends an argument to a call.
    pub fn add_argument(&self, call: &Call, text: &str) -> Edit {
        let end = call.parentheses.end.saturating_sub(1);
        // Arguments bound by `functools.partial` are at another place in the text.
        match call.arguments.last().filter(|last| call.parentheses.contains(last.span)) {
            None => Edit::insert(end, text),
            Some(last) => {
                // An existing trailing comma is kept.
                let between = self.slice(Span::new(last.span.end, end));
                let comma = between.find(',').filter(|at| !between[..*at].contains('#'));
                match comma {
                    Some(at) => Edit::insert(last.span.end + at as u32 + 1, format!(" {text},")),
                    None => Edit::insert(last.span.end, format!(", {text}")),
                }
            }
        }
    }

    /// Removes an argument of a call, with its comma.
    pub fn remove_argument(&self, call: &Call, span: Span) -> Edit {
        if !call.parentheses.contains(span) {
            // Arguments bound by `functools.partial` are at another place in the text.
            return Edit::delete(Span::empty(span.start));
        }
        let index = call.arguments.iter().position(|argument| argument.span == span);
        let previous =
            index.and_then(|index| index.checked_sub(1)).and_then(|index| call.arguments.get(index));
        let previous = previous.filter(|previous| call.parentheses.contains(previous.span));
        if let Some(previous) = previous {
            return Edit::delete(Span::new(previous.span.end, span.end));
        }
        if let Some(next) = index.and_then(|index| call.arguments.get(index + 1)) {
            return Edit::delete(Span::new(span.start, next.span.start));
        }
        let rest = self.slice(Span::new(span.end, call.parentheses.end));
        let comma =
            if rest.trim_start().starts_with(',') { rest.find(',').map_or(0, |at| at as u32 + 1) } else { 0 };
        Edit::delete(Span::new(span.start, span.end + comma))
    }

    /// Returns the start of a byte's line, and the line's indentation.
    pub fn line_start(&self, offset: u32) -> (u32, &str) {
        let before = &self.text[..offset as usize];
        let start = before.rfind(['\n', '\r']).map_or(0, |at| at + 1);
        let line = &self.text[start..];
        let blank = line.len() - line.trim_start_matches([' ', '\t']).len();
        (start as u32, &line[..blank])
    }

    /// Returns the lines of a statement if nothing else is on them.
    pub fn whole_lines(&self, span: Span) -> Option<Span> {
        let (start, blank) = self.line_start(span.start);
        if start as usize + blank.len() != span.start as usize {
            return None;
        }
        let rest = &self.text[span.end as usize..];
        let end = rest.find('\n').map_or(rest.len(), |at| at + 1);
        rest[..end].trim().is_empty().then(|| Span::new(start, span.end + end as u32))
    }
}
