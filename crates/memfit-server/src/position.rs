//! Positions in the editor's units: lines from 0, columns in UTF-16 code units.

use memfit_lint::Lines;
use serde_json::{Value, json};

/// Position of an offset.
pub(crate) fn position_at(offset: u32, text: &str, lines: &Lines) -> Value {
    let line = lines.line_of(offset);
    let start = lines.line_start(line, text) as usize;
    let before = text.get(start..offset as usize).unwrap_or_default();
    json!({"line": line, "character": before.encode_utf16().count()})
}

/// Offset of a position; a position after the end of a line is clamped to it.
pub(crate) fn offset_at(position: &Value, text: &str, lines: &Lines) -> u32 {
    let number = |key: &str| position.get(key).and_then(Value::as_u64).unwrap_or_default() as usize;
    let line = number("line");
    let start = lines.line_start(line, text);
    let mut units = number("character");
    let mut at = start;
    for character in lines.line_text(line, text).trim_end_matches(['\n', '\r']).chars() {
        let width = character.len_utf16();
        if units < width {
            break;
        }
        units -= width;
        at += character.len_utf8() as u32;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_round_trip() {
        let text = "a\n𝄞é x\r\n";
        let lines = Lines::new(text);
        for offset in [0, 1, 2, 6, 8, 9, 10] {
            assert_eq!(offset_at(&position_at(offset, text, &lines), text, &lines), offset, "{offset}");
        }
        assert_eq!(offset_at(&json!({"line": 1, "character": 99}), text, &lines), 10);
        assert_eq!(offset_at(&json!({"line": 99, "character": 0}), text, &lines), text.len() as u32);
    }
}
