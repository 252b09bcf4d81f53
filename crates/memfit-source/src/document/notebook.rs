//! Jupyter notebooks: the code cells as one text, and the way back into the JSON strings that hold them.

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

/// The way back to the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    /// Runs of bytes that are the same in both: where in the snippet, where in the file.
    pieces: Vec<(u32, u32)>,
    /// Where each cell begins in the snippet, and its number.
    cells: Vec<(u32, u32)>,
}

impl Map {
    pub(super) fn to_file(&self, span: Span) -> Option<Span> {
        let place = |offset: u32| {
            let index = self.pieces.partition_point(|(start, _)| *start <= offset).checked_sub(1)?;
            let (start, file) = self.pieces.get(index)?;
            Some(file + (offset - start))
        };
        let start = place(span.start)?;
        // The end belongs to the piece of the byte before it.
        let end = if span.end > span.start { place(span.end - 1)? + 1 } else { start };
        Some(Span::new(start, end))
    }

    pub(super) fn locate(&self, offset: u32, text: &str) -> Location {
        let index = self.cells.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
        let (start, number) = self.cells.get(index).copied().unwrap_or((0, 1));
        let cell = text.get(start as usize..).unwrap_or_default();
        let position = LineIndex::new(cell).position(offset.saturating_sub(start), cell);
        Location { cell: Some(number), line: position.line, column: position.column }
    }
}

/// The code of a notebook, if it has any.
pub(super) fn snippets(text: &Arc<str>) -> Result<Option<Snippet>, serde_json::Error> {
    if !text.trim_start().starts_with('{') {
        // A list would pass for a notebook whose first field it is.
        return serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).map(|_| None);
    }
    let notebook: Notebook<'_> = serde_json::from_str(text)?;
    let mut code = String::new();
    let mut map = Map::default();
    let base = text.as_ptr() as usize;
    for (number, cell) in notebook.cells.iter().enumerate() {
        let Some(source) = cell.source.filter(|_| cell.cell_type == "code") else { continue };
        let begin = code.len();
        let parts: Vec<&RawValue> = if source.get().trim_start().starts_with('[') {
            serde_json::from_str(source.get())?
        } else {
            vec![source]
        };
        for part in parts {
            // The parts are slices of the file's own text, so their place is their address less the text's.
            let at = (part.get().as_ptr() as usize).saturating_sub(base);
            decode(part.get(), at as u32, &mut code, &mut map);
        }
        if is_foreign(&code[begin..]) {
            code.truncate(begin);
            map.pieces.retain(|(start, _)| (*start as usize) < begin);
            continue;
        }
        map.cells.push((begin as u32, number as u32 + 1));
        if !code.ends_with('\n') {
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

/// A cell whose first line hands it to another language.
fn is_foreign(cell: &str) -> bool {
    let first = cell.trim_start().lines().next().unwrap_or_default();
    let Some(magic) = first.strip_prefix("%%") else { return false };
    let name: String = magic.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    !["time", "timeit", "capture", "prun", "memfit", "memit", "mprun"].contains(&name.as_str())
}

/// Appends a JSON string's text, noting where its bytes are in the file.
fn decode(raw: &str, at: u32, code: &mut String, map: &mut Map) {
    let bytes = raw.as_bytes();
    let mut index = 1;
    let mut piece = true;
    let mut high: Option<u32> = None;
    while index + 1 < bytes.len() {
        if bytes[index] != b'\\' {
            if piece {
                map.pieces.push((code.len() as u32, at + index as u32));
                piece = false;
            }
            let Some(character) = raw.get(index..).and_then(|rest| rest.chars().next()) else { return };
            code.push(character);
            index += character.len_utf8();
            continue;
        }
        map.pieces.push((code.len() as u32, at + index as u32));
        piece = true;
        let escape = bytes.get(index + 1).copied().unwrap_or(b'\\');
        index += 2;
        let character = match escape {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'u' => {
                let unit = raw
                    .get(index..index + 4)
                    .and_then(|hex| u32::from_str_radix(hex, 16).ok())
                    .unwrap_or(0xFFFD);
                index += 4;
                if (0xD800..0xDC00).contains(&unit) {
                    high = Some(unit);
                    continue;
                }
                let point = match high.take() {
                    Some(high) if (0xDC00..0xE000).contains(&unit) => {
                        0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00)
                    }
                    _ => unit,
                };
                char::from_u32(point).unwrap_or('\u{FFFD}')
            }
            other => char::from(other),
        };
        code.push(character);
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
            assert_eq!(file.of(&text), word);
        }
        let quoted = at("\"a\"");
        assert_eq!(
            found.to_file(Span::new(quoted, quoted + 1)).map(|span| span.start),
            Some(text.find("\\\"a").unwrap() as u32)
        );
        let lines = LineIndex::new(&text);
        let place = found.locate(at("print"), &text, &lines);
        assert_eq!((place.cell, place.line, place.column), (Some(4), 2, 1));
        assert_eq!(found.encode("a\"\n", Span::at(0)), "a\\\"\\n");
    }

    #[test]
    fn what_is_no_notebook_is_refused() {
        assert!(snippets(&"{".into()).is_err());
        assert!(snippets(&"[]".into()).is_err());
        assert!(snippets(&"{}".into()).unwrap().is_none());
    }
}
