//! Where things stand in a text: byte spans, and lines and columns for people.

use serde::Serialize;

/// A range of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

impl Span {
    /// From one byte up to another.
    pub const fn new(start: u32, end: u32) -> Self {
        Self { start, end }
    }

    /// Nothing, at this byte.
    pub const fn at(offset: u32) -> Self {
        Self { start: offset, end: offset }
    }

    /// Whether another span lies within.
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// As indices of a string.
    pub const fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The text of it; nothing where it is out of bounds or splits a character.
    pub fn of(self, text: &str) -> &str {
        text.get(self.range()).unwrap_or_default()
    }
}

/// A line and a column, both from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LineColumn {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

/// Where each line of a text begins.
#[derive(Clone, Debug)]
pub struct LineIndex {
    starts: Vec<u32>,
}

impl LineIndex {
    /// The lines of a text: `\n`, `\r\n` and `\r` end one.
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

    /// How many lines there are.
    pub fn lines(&self) -> usize {
        self.starts.len()
    }

    /// The number of the line that a byte is on, from 0.
    pub fn line_of(&self, offset: u32) -> usize {
        self.starts.partition_point(|start| *start <= offset).saturating_sub(1)
    }

    /// Where a line (from 0) begins; the end of the text for one past the last.
    pub fn start_of(&self, line: usize, text: &str) -> u32 {
        self.starts.get(line).copied().unwrap_or(text.len() as u32)
    }

    /// The text of a line (from 0), with its end.
    pub fn text_of<'t>(&self, line: usize, text: &'t str) -> &'t str {
        Span::new(self.start_of(line, text), self.start_of(line + 1, text)).of(text)
    }

    /// Line and column of a byte.
    pub fn position(&self, offset: u32, text: &str) -> LineColumn {
        let line = self.line_of(offset);
        let before = Span::new(self.start_of(line, text), offset).of(text);
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
        assert_eq!(lines.text_of(1, text), "bé\r\n");
        assert_eq!(lines.text_of(9, text), "");
    }

    #[test]
    fn a_span_out_of_bounds_is_nothing() {
        assert_eq!(Span::new(1, 9).of("abc"), "");
        assert_eq!(Span::new(1, 3).of("abc"), "bc");
    }
}
