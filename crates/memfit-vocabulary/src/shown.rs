//! Makes foreign text (names of files, functions and modules, messages) safe for display.
//!
//! A recording may come from anyone, and files may have any name. Text for a terminal or a spreadsheet must
//! not move the cursor, end a line, ring the bell, or change the text direction. JSON has its own escaping
//! and keeps every character.

use std::borrow::Cow;
use std::fmt::Write as _;

/// `true` for characters that act instead of being displayed: control characters, and marks that change the
/// direction of surrounding text.
pub fn acts(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
        )
}

/// A text as one printable line: control characters are escaped, as `\n` or `\u{1b}`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| 0)
}

/// A text of several lines that is safe for a terminal: line breaks, tabs and memfit's own colours are kept.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |rest| match rest.as_bytes() {
        [b'\n' | b'\t', ..] => 1,
        _ => colour(rest),
    })
}

/// The length of a colour or weight sequence at the beginning of a text: `ESC [`, numbers, `m`. Hidden and
/// blinking text (8 and 5) do not count.
fn colour(text: &str) -> usize {
    let Some((numbers, _)) = text.strip_prefix("\u{1b}[").and_then(|rest| rest.split_once('m')) else {
        return 0;
    };
    let shows =
        |number: &str| matches!(number.parse(), Ok(0..=4 | 22..=24 | 30..=37 | 39..=47 | 49 | 90..=97));
    let all = numbers.len() <= 16 && (numbers.is_empty() || numbers.split(';').all(shows));
    if all { numbers.len() + 3 } else { 0 }
}

/// A text with control characters escaped. `keep` returns how many bytes of the rest are kept unchanged.
fn escaped(text: &str, keep: impl Fn(&str) -> usize) -> Cow<'_, str> {
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(at) = rest.find(acts) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let kept = keep(rest);
        if kept > 0 {
            out.push_str(&rest[..kept]);
            rest = &rest[kept..];
        } else if let Some(character) = rest.chars().next() {
            let _ = write!(out, "{}", character.escape_default());
            rest = &rest[character.len_utf8()..];
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_visible_ones_stay() {
        for (text, line, several) in [
            ("train.py", "train.py", "train.py"),
            ("Müller/火.py", "Müller/火.py", "Müller/火.py"),
            ("a\r\nFITS", "a\\r\\nFITS", "a\\r\nFITS"),
            ("bell\u{7}", "bell\\u{7}", "bell\\u{7}"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("\u{1b}[2J", "\\u{1b}[2J", "\\u{1b}[2J"),
            ("\u{9b}2J", "\\u{9b}2J", "\\u{9b}2J"),
            (
                "\u{1b}[1m\u{1b}[31mred\u{1b}[0m",
                "\\u{1b}[1m\\u{1b}[31mred\\u{1b}[0m",
                "\u{1b}[1m\u{1b}[31mred\u{1b}[0m",
            ),
            ("\u{1b}[8mhidden", "\\u{1b}[8mhidden", "\\u{1b}[8mhidden"),
            ("\u{1b}[1;8m\u{1b}[", "\\u{1b}[1;8m\\u{1b}[", "\\u{1b}[1;8m\\u{1b}["),
            ("\u{202e}yp.niart", "\\u{202e}yp.niart", "\\u{202e}yp.niart"),
            ("\u{2066}a\u{2069}\u{200f}", "\\u{2066}a\\u{2069}\\u{200f}", "\\u{2066}a\\u{2069}\\u{200f}"),
        ] {
            assert_eq!(one_line(text), line, "{text:?}");
            assert_eq!(printable(text), several, "{text:?}");
        }
    }
}
