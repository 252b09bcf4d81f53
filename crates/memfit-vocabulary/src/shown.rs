//! Text of others (names of files, functions and modules, messages) made fit to be shown to people.
//!
//! A recording may have come from anybody, and a file may be called anything. What reaches a terminal or a
//! spreadsheet is text: nothing in it moves the cursor, ends a line, rings, or turns the direction of reading
//! around. JSON escapes by itself and keeps every character.

use std::borrow::Cow;
use std::fmt::Write as _;

/// `true` for characters that act instead of being seen: controls, and marks that change the text
/// direction around them.
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

/// A text as one line of what can be seen: whatever acts is written as its escape, as `\n` or `\u{1b}`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| 0)
}

/// A text of several lines as it may reach a terminal: lines and tabs stay, and so do memfit's own colours.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |rest| match rest.as_bytes() {
        [b'\n' | b'\t', ..] => 1,
        _ => colour(rest),
    })
}

/// The length of the colour or weight that a text begins with: `ESC [`, numbers, `m`. Text that is hidden or
/// blinks (8 and 5) is none.
fn colour(text: &str) -> usize {
    let Some((numbers, _)) = text.strip_prefix("\u{1b}[").and_then(|rest| rest.split_once('m')) else {
        return 0;
    };
    let shows =
        |number: &str| matches!(number.parse(), Ok(0..=4 | 22..=24 | 30..=37 | 39..=47 | 49 | 90..=97));
    let all = numbers.len() <= 16 && (numbers.is_empty() || numbers.split(';').all(shows));
    if all { numbers.len() + 3 } else { 0 }
}

/// A text with everything that acts escaped, but for what `keep` says stays of the rest from there on.
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
    fn what_acts_is_escaped_and_what_can_be_seen_stays() {
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
