//! Positions as editors count them: lines from 0, columns in units of UTF-16.

use memfit_lint::Lines;
use serde_json::{Value, json};

/// The position of a byte.
pub(crate) fn of_byte(offset: u32, text: &str, lines: &Lines) -> Value {
    let line = lines.line_of(offset);
    let start = lines.line_start(line, text) as usize;
    let before = text.get(start..offset as usize).unwrap_or_default();
    json!({"line": line, "character": before.encode_utf16().count()})
}

/// The byte of a position; positions beyond a line's end are its end.
pub(crate) fn to_byte(position: &Value, text: &str, lines: &Lines) -> u32 {
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
    fn positions_go_there_and_back() {
        let text = "a\n𝄞é x\r\n";
        let lines = Lines::new(text);
        for offset in [0, 1, 2, 6, 8, 9, 10] {
            assert_eq!(to_byte(&of_byte(offset, text, &lines), text, &lines), offset, "{offset}");
        }
        assert_eq!(to_byte(&json!({"line": 1, "character": 99}), text, &lines), 10);
        assert_eq!(to_byte(&json!({"line": 99, "character": 0}), text, &lines), text.len() as u32);
    }
}
