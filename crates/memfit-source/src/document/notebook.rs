//! Jupyter notebooks: code cells as one text, with a map back to the JSON strings of the file.

mod edit;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Location, Snippet};
use crate::parse::Dialect;
use crate::position::{LineIndex, Span};

#[derive(Deserialize)]
struct Notebook<'a> {
    #[serde(borrow, default)]
    cells: Vec<Cell<'a>>,
}

#[derive(Deserialize)]
struct Cell<'a> {
    cell_type: String,
    #[serde(borrow)]
    source: Option<&'a RawValue>,
}

/// Map from the snippet to the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    /// In ascending order, in the snippet and in the file.
    pieces: Vec<Piece>,
    cells: Vec<CellSource>,
}

/// Bytes of the snippet, and the bytes of the file that they were decoded from.
#[derive(Clone, Copy, Debug)]
struct Piece {
    code: Span,
    file: Span,
    /// `true` for one character that the file writes as an escape sequence, which cannot be split.
    escaped: bool,
}

/// Source of a code cell.
#[derive(Clone, Debug)]
struct CellSource {
    /// Span in the snippet, without the line end that is appended to it there.
    code: Span,
    /// Cell number, counted from 1 over all cells.
    number: u32,
    /// Span in the file of the cell's source, a string or a list of strings.
    source: Span,
    /// Strings of the source: start in the snippet, and span in the file including the quotes.
    strings: Vec<(u32, Span)>,
    is_list: bool,
}

impl Piece {
    /// Converts an offset in the snippet, which may be its end, to one in the file.
    fn place(&self, offset: u32) -> u32 {
        match () {
            () if offset <= self.code.start => self.file.start,
            () if self.escaped || offset >= self.code.end => self.file.end,
            () => self.file.start + (offset - self.code.start),
        }
    }
}

impl Map {
    fn piece(&self, offset: u32) -> Option<&Piece> {
        self.pieces.get(self.pieces.partition_point(|piece| piece.code.start <= offset).checked_sub(1)?)
    }

    fn push(&mut self, code: usize, code_length: usize, file: usize, file_length: usize, escaped: bool) {
        let span = |start: usize, length: usize| Span::new(start as u32, (start + length) as u32);
        self.pieces.push(Piece { code: span(code, code_length), file: span(file, file_length), escaped });
    }

    pub(super) fn to_file(&self, span: Span) -> Option<Span> {
        let start = match self.piece(span.start)? {
            piece if piece.escaped && span.start < piece.code.end => piece.file.start,
            piece => piece.place(span.start),
        };
        // The end belongs to the piece of the last byte.
        let end = if span.end > span.start { self.piece(span.end - 1)?.place(span.end) } else { start };
        Some(Span::new(start, end.max(start)))
    }

    pub(super) fn locate(&self, offset: u32, text: &str) -> Location {
        let index = self.cells.partition_point(|cell| cell.code.start <= offset).saturating_sub(1);
        let (start, number) = self.cells.get(index).map_or((0, 1), |cell| (cell.code.start, cell.number));
        let cell = text.get(start as usize..).unwrap_or_default();
        let position = LineIndex::new(cell).position(offset.saturating_sub(start), cell);
        Location { cell: Some(number), line: position.line, column: position.column }
    }
}

/// Returns the code of a notebook, if it has any.
pub(super) fn snippets(text: &Arc<str>) -> Result<Option<Snippet>, serde_json::Error> {
    if !text.trim_start().starts_with('{') {
        // A JSON list would otherwise be read as a notebook by position.
        return serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).map(|_| None);
    }
    let notebook: Notebook<'_> = serde_json::from_str(text)?;
    let mut code = String::new();
    let mut map = Map::default();
    let base = text.as_ptr() as usize;
    for (number, cell) in notebook.cells.iter().enumerate() {
        let Some(source) = cell.source.filter(|_| cell.cell_type == "code") else { continue };
        let begin = code.len();
        let is_list = source.get().trim_start().starts_with('[');
        let parts: Vec<&RawValue> = if is_list { serde_json::from_str(source.get())? } else { vec![source] };
        // Raw values are slices of the file's text, so pointer differences give their offsets.
        let place = |part: &RawValue| {
            let at = ((part.get().as_ptr() as usize).saturating_sub(base)) as u32;
            Span::new(at, at + part.get().len() as u32)
        };
        let mut strings = Vec::with_capacity(parts.len());
        for part in parts {
            strings.push((code.len() as u32, place(part)));
            decode(part.get(), place(part).start, &mut code, &mut map);
        }
        if is_foreign(&code[begin..]) {
            code.truncate(begin);
            map.pieces.retain(|piece| (piece.code.start as usize) < begin);
            continue;
        }
        let written = Span::new(begin as u32, code.len() as u32);
        let source = place(source);
        map.cells.push(CellSource { code: written, number: number as u32 + 1, source, strings, is_list });
        if !code[begin..].ends_with('\n') {
            code.push('\n');
        }
    }
    let snippet = |map| Snippet {
        text: code.as_str().into(),
        dialect: Dialect::IPython,
        is_whole: true,
        map: super::Map::Notebook(map),
    };
    Ok((!map.cells.is_empty()).then(|| snippet(map)))
}

/// Returns `true` if a cell magic on the first line runs the cell in another language.
fn is_foreign(cell: &str) -> bool {
    let first = cell.trim_start().lines().next().unwrap_or_default();
    let Some(magic) = first.strip_prefix("%%") else { return false };
    let name: String = magic.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    !["time", "timeit", "capture", "prun", "memfit", "memit", "mprun"].contains(&name.as_str())
}

/// Appends the text of a JSON string and records the file positions of its bytes.
fn decode(raw: &str, at: u32, code: &mut String, map: &mut Map) {
    let mut index = 1;
    let end = raw.len().saturating_sub(1);
    while index < end {
        let rest = &raw[index..end];
        let length = match rest.find('\\') {
            Some(0) => {
                let (character, length) = unescape(rest);
                map.push(code.len(), character.len_utf8(), at as usize + index, length, true);
                code.push(character);
                length
            }
            other => {
                let length = other.unwrap_or(rest.len());
                map.push(code.len(), length, at as usize + index, length, false);
                code.push_str(&rest[..length]);
                length
            }
        };
        index += length;
    }
}

/// Decodes the escape sequence at the beginning of a text. Returns the character and the sequence's length.
fn unescape(text: &str) -> (char, usize) {
    let unit = |at: usize| {
        let hex = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u32::from_str_radix(hex, 16).ok()
    };
    let plain = |character| (character, 2);
    match text.as_bytes().get(1) {
        Some(b'n') => plain('\n'),
        Some(b't') => plain('\t'),
        Some(b'r') => plain('\r'),
        Some(b'b') => plain('\u{8}'),
        Some(b'f') => plain('\u{c}'),
        Some(b'u') => match (unit(0), unit(6)) {
            (Some(high @ 0xD800..0xDC00), Some(low @ 0xDC00..0xE000)) => {
                let point = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                (char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER), 12)
            }
            (Some(unit), _) => (char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER), 6),
            (None, _) => (char::REPLACEMENT_CHARACTER, text.len().min(6)),
        },
        Some(other) => plain(char::from(*other)),
        None => (char::REPLACEMENT_CHARACTER, text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_joined_and_found_again() {
        let text: Arc<str> = r##"{"cells": [
 {"cell_type": "markdown", "source": ["# hi"]},
 {"cell_type": "code", "source": ["x = \"a\"\n", "y = 2"]},
 {"cell_type": "code", "source": "%%bash\nls"},
 {"cell_type": "code", "source": "%time z = 'é\u00e9'\nprint(z)"}
], "nbformat": 4}"##
            .into();
        let found = snippets(&text).unwrap().unwrap();
        assert_eq!(&*found.text, "x = \"a\"\ny = 2\n%time z = 'éé'\nprint(z)\n");
        let at = |word: &str| found.text.find(word).unwrap() as u32;
        for word in ["y = 2", "print(z)"] {
            let start = at(word);
            let file = found.to_file(Span::new(start, start + word.len() as u32)).unwrap();
            assert_eq!(file.slice(&text), word);
        }
        let quoted = at("\"a\"");
        assert_eq!(
            found.to_file(Span::new(quoted, quoted + 1)).map(|span| span.start),
            Some(text.find("\\\"a").unwrap() as u32)
        );
        let lines = LineIndex::new(&text);
        let place = found.locate(at("print"), &text, &lines);
        assert_eq!((place.cell, place.line, place.column), (Some(4), 2, 1));
    }

    #[test]
    fn other_json_is_refused_as_a_notebook() {
        assert!(snippets(&"{".into()).is_err());
        assert!(snippets(&"[]".into()).is_err());
        assert!(snippets(&"{}".into()).unwrap().is_none());
    }
}
