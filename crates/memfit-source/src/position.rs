//! Positions in a text: byte spans, and lines and columns.

use serde::Serialize;

/// Range of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// Creates a span from `start` to `end`, exclusive.
    pub const fn new(start: u32, end: u32) -> Self {
        Self { start, end }
    }

    /// Empty span at an offset.
    pub const fn empty(offset: u32) -> Self {
        Self { start: offset, end: offset }
    }

    /// Returns `true` if `other` lies within.
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Range for indexing a string.
    pub const fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Text of the span; empty if it is out of bounds or splits a character.
    pub fn slice(self, text: &str) -> &str {
        text.get(self.range()).unwrap_or_default()
    }
}

/// Line and column, both from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LineColumn {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

/// Start offsets of a text's lines.
#[derive(Clone, Debug)]
pub struct LineIndex {
    starts: Vec<u32>,
}

impl LineIndex {
    /// Indexes the lines of a text, which end with `
    ///
    /// `, `\r
    ///
    /// ` or `\r`.
    pub fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut starts = vec![0];
        for at in memchr::memchr2_iter(b'\n', b'\r', bytes) {
            if bytes[at] == b'\n' || bytes.get(at + 1) != Some(&b'\n') {
                starts.push(at as u32 + 1);
            }
        }
        Self { starts }
    }

    /// Number of lines.
    pub fn lines(&self) -> usize {
        self.starts.len()
    }

    /// Line of an offset, from 0.
    pub fn line_of(&self, offset: u32) -> usize {
        self.starts.partition_point(|start| *start <= offset).saturating_sub(1)
    }

    /// Start of a line (from 0), or the end of the text for the line after the last.
    pub fn line_start(&self, line: usize, text: &str) -> u32 {
        self.starts.get(line).copied().unwrap_or(text.len() as u32)
    }

    /// Text of a line (from 0), including its line end.
    pub fn line_text<'t>(&self, line: usize, text: &'t str) -> &'t str {
        Span::new(self.line_start(line, text), self.line_start(line + 1, text)).slice(text)
    }

    /// Line and column of an offset.
    pub fn position(&self, offset: u32, text: &str) -> LineColumn {
        let line = self.line_of(offset);
        let before = Span::new(self.line_start(line, text), offset).slice(text);
        LineColumn { line: line as u32 + 1, column: before.chars().count() as u32 + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_in_three_ways_and_columns_count_characters() {
        let text = "a\nbé\r\nc\rd";
        let lines = LineIndex::new(text);
        assert_eq!(lines.lines(), 4);
        let at = |offset| {
            let found = lines.position(offset, text);
            (found.line, found.column)
        };
        assert_eq!((at(0), at(2), at(5), at(7), at(9)), ((1, 1), (2, 1), (2, 3), (3, 1), (4, 1)));
        assert_eq!(lines.line_text(1, text), "bé\r\n");
        assert_eq!(lines.line_text(9, text), "");
    }

    #[test]
    fn a_span_out_of_bounds_is_nothing() {
        assert_eq!(Span::new(1, 9).slice("abc"), "");
        assert_eq!(Span::new(1, 3).slice("abc"), "bc");
    }
}
