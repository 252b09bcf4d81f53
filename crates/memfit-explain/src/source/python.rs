//! What single lines of Python say: enough to place a remedy, and to leave alone what is not understood.

use super::Source;

/// The blanks at a line's beginning.
pub(crate) fn indent_of(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

const fn is_word_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// The names in a text, with the places where they begin. What follows a dot is no name of its own.
pub(crate) fn words(text: &str) -> Vec<(usize, &str)> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut index = 0;
    let mut quote: Option<u8> = None;
    while index < bytes.len() {
        let byte = bytes[index];
        if let Some(mark) = quote {
            if byte == b'\\' {
                index += 1;
            } else if byte == mark {
                quote = None;
            }
            index += 1;
        } else if byte == b'#' {
            break;
        } else if byte == b'"' || byte == b'\'' {
            quote = Some(byte);
            index += 1;
        } else if is_word_part(byte) {
            let start = index;
            while index < bytes.len() && is_word_part(bytes[index]) {
                index += 1;
            }
            let attribute = start > 0 && bytes[start - 1] == b'.';
            if !attribute && !byte.is_ascii_digit() {
                found.push((start, &text[start..index]));
            }
        } else {
            index += 1;
        }
    }
    found
}

/// Whether a name stands in a text.
pub(crate) fn is_word(text: &str, name: &str) -> bool {
    words(text).iter().any(|(_, word)| *word == name)
}

/// The text with a name replaced wherever it stands for itself: not where it is a keyword's name.
pub(crate) fn replace_word(text: &str, name: &str, by: &str) -> String {
    let mut out = String::new();
    let mut last = 0;
    for (start, word) in words(text) {
        let end = start + word.len();
        let rest = text[end..].trim_start();
        let keyword = rest.starts_with('=') && !rest.starts_with("==");
        if word == name && !keyword {
            out.push_str(&text[last..start]);
            out.push_str(by);
            last = end;
        }
    }
    out.push_str(&text[last..]);
    out
}

/// Where the `=` of an assignment stands: not within brackets, and no comparison.
fn equals_sign(line: &str) -> Option<(usize, bool)> {
    let bytes = line.as_bytes();
    let mut depth = 0_i32;
    let mut quote: Option<u8> = None;
    for (index, byte) in bytes.iter().copied().enumerate() {
        match (quote, byte) {
            (Some(mark), _) => quote = (byte != mark).then_some(mark),
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'#') => return None,
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') => depth -= 1,
            (None, b'=') if depth == 0 => {
                let before = index.checked_sub(1).map_or(b' ', |before| bytes[before]);
                if bytes.get(index + 1) == Some(&b'=') || matches!(before, b'=' | b'!' | b'<' | b'>' | b':') {
                    return None;
                }
                let augmented = matches!(before, b'+' | b'-' | b'*' | b'/');
                return Some((index, augmented));
            }
            _ => {}
        }
    }
    None
}

/// The plain names that a line assigns to, and what it assigns: `a, b = f(x)` gives `[a, b]` and `f(x)`.
/// Nothing for what is no plain assignment.
pub(crate) fn assigned(line: &str) -> Option<(Vec<&str>, &str)> {
    let (place, augmented) = equals_sign(line)?;
    if augmented {
        return None;
    }
    let targets = line[..place].trim().trim_matches(|c| c == '(' || c == ')');
    let names: Vec<&str> =
        targets.split(',').map(|name| name.split(':').next().unwrap_or(name).trim()).collect();
    let plain = |name: &&str| !name.is_empty() && name.bytes().all(is_word_part);
    names.iter().all(plain).then(|| (names, line[place + 1..].trim()))
}

/// `callee` and `arguments` of a text that is one call and nothing else.
pub(crate) fn call_in(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let open = text.find('(')?;
    let callee = &text[..open];
    let name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '[' | ']');
    if callee.is_empty() || !callee.chars().all(name) || !text.ends_with(')') {
        return None;
    }
    // The bracket that closes is the last character.
    let mut depth = 0;
    for (index, character) in text.char_indices().skip(open) {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (index + 1 == text.len()).then(|| (callee, &text[open + 1..index]));
        }
    }
    None
}

/// Whether a line ends the statement that it begins: brackets are closed, and nothing continues it.
pub(crate) fn ends_statement(line: &str) -> bool {
    depth_of(line) == 0 && !line.trim_end().ends_with(['\\', ':'])
}

fn depth_of(line: &str) -> i32 {
    let mut depth = 0;
    let mut quote: Option<char> = None;
    for character in line.chars() {
        match (quote, character) {
            (Some(mark), _) => quote = (character != mark).then_some(mark),
            (None, '"' | '\'') => quote = Some(character),
            (None, '#') => break,
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            _ => {}
        }
    }
    depth
}

/// The last line of the statement that begins at a line.
pub(crate) fn statement_end(source: &Source, first: u32) -> u32 {
    let mut depth = 0;
    for number in first..=source.len() {
        depth += depth_of(source.line(number));
        if depth <= 0 {
            return number;
        }
    }
    first
}

fn is_blank(line: &str) -> bool {
    let text = line.trim_start();
    text.is_empty() || text.starts_with('#')
}

/// The line of the `def` around a line.
pub(crate) fn enclosing_def(source: &Source, line: u32) -> Option<u32> {
    let mut indent = indent_of(source.line(line)).len();
    for (number, text) in source.lines().take(line as usize - 1).collect::<Vec<_>>().into_iter().rev() {
        if is_blank(text) || indent_of(text).len() >= indent {
            continue;
        }
        indent = indent_of(text).len();
        let text = text.trim_start();
        if text.starts_with("def ") || text.starts_with("async def ") {
            return Some(number);
        }
    }
    None
}

/// A statement whole, on one line, from its first on.
pub(crate) fn statement_at(source: &Source, first: u32) -> String {
    let last = statement_end(source, first);
    let lines: Vec<&str> = (first..=last).map(|number| source.line(number).trim()).collect();
    lines.join(" ")
}

/// What a line runs under within its function: the heads of each `with` around it, and the function's
/// decorators.
pub(crate) fn contexts_around(source: &Source, line: u32) -> Vec<String> {
    let lines: Vec<(u32, &str)> = source.lines().take(line as usize).collect();
    let mut indent = indent_of(source.line(line)).len();
    let mut contexts = Vec::new();
    let mut above = lines.iter().rev().skip(1).peekable();
    while let Some((number, text)) = above.next() {
        if is_blank(text) || indent_of(text).len() >= indent {
            continue;
        }
        let head = text.trim_start();
        // The last line of a head that goes over several begins with the bracket that closes it.
        if head.starts_with(')') {
            indent = indent_of(text).len() + 1;
            continue;
        }
        indent = indent_of(text).len();
        if head.starts_with("with ") || head.starts_with("async with ") {
            contexts.push(statement_at(source, *number));
        }
        if head.starts_with("def ") || head.starts_with("async def ") {
            while let Some((_, text)) = above.next_if(|(_, text)| text.trim_start().starts_with('@')) {
                contexts.push(text.trim().to_owned());
            }
            break;
        }
    }
    contexts
}

/// The last line of the innermost loop around a line, and its blanks; nothing where there is no loop.
pub(crate) fn loop_end(source: &Source, line: u32) -> Option<(u32, String)> {
    let mut indent = indent_of(source.line(line)).len();
    let mut body = indent_of(source.line(line)).to_owned();
    for (number, text) in source.lines().take(line as usize - 1).collect::<Vec<_>>().into_iter().rev() {
        if is_blank(text) || indent_of(text).len() >= indent {
            continue;
        }
        let head = text.trim_start();
        if head.starts_with("for ") || head.starts_with("while ") || head.starts_with("async for ") {
            let inside =
                |text: &str| is_blank(text) || indent_of(text).len() > indent_of(source.line(number)).len();
            let last = source
                .lines()
                .skip(number as usize)
                .take_while(|(_, text)| inside(text))
                .filter(|(_, text)| !is_blank(text))
                .last()?;
            return Some((last.0, body));
        }
        if head.starts_with("def ") || head.starts_with("class ") {
            return None;
        }
        indent = indent_of(text).len();
        indent_of(text).clone_into(&mut body);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_are_taken_apart() {
        for (line, expected) in [
            ("    out = model(x)", Some((vec!["out"], "model(x)"))),
            ("a, b = f(x, y=1)", Some((vec!["a", "b"], "f(x, y=1)"))),
            ("(a, b) = f(x)", Some((vec!["a", "b"], "f(x)"))),
            ("loss: Tensor = f()", Some((vec!["loss"], "f()"))),
            ("total += loss", None),
            ("if a == b:", None),
            ("f(x=1)", None),
            ("self.out = f()", None),
            ("# a = b", None),
        ] {
            assert_eq!(assigned(line), expected, "{line}");
        }
    }

    #[test]
    fn names_are_replaced_where_they_stand_for_themselves() {
        for (text, expected) in [
            ("keep.append(out)", "keep.append(N)"),
            ("keep.append(out.out)", "keep.append(N.out)"),
            ("f(out=out)", "f(out=N)"),
            ("'out' + out  # out", "'out' + N  # out"),
            ("outer", "outer"),
        ] {
            assert_eq!(replace_word(text, "out", "N"), expected);
        }
    }

    #[test]
    fn a_call_is_a_call_and_nothing_else() {
        assert_eq!(call_in("layer(x, (1, 2))"), Some(("layer", "x, (1, 2)")));
        assert_eq!(call_in("self.blocks[i](x)"), Some(("self.blocks[i]", "x")));
        assert_eq!(call_in("f(x) + g(y)"), None);
        assert_eq!(call_in("f(x).relu()"), None);
        assert_eq!(call_in("x"), None);
    }

    #[test]
    fn functions_and_loops_are_found_by_their_blanks() {
        let text = "def train():\n    for x in data:\n        if x:\n            y = f(x)\n        # done\n        g(y)\n\n    return y\n";
        let source = Source::new("t.py", text);
        assert_eq!(enclosing_def(&source, 4), Some(1));
        assert_eq!(enclosing_def(&source, 1), None);
        assert_eq!(loop_end(&source, 4), Some((6, "        ".to_owned())));
        assert_eq!(loop_end(&source, 8), None);
    }

    #[test]
    fn statements_end_where_their_brackets_do() {
        let source = Source::new("t.py", "o = AdamW(\n    f(x),\n    lr=1,\n)\nx = 1\n");
        assert_eq!(statement_end(&source, 1), 4);
        assert_eq!(statement_end(&source, 5), 5);
        assert!(ends_statement("x = f(')')") && !ends_statement("x = f(") && !ends_statement("for x in y:"));
    }

    #[test]
    fn a_change_becomes_a_diff_that_can_be_applied() {
        let text = (1..=12).map(|line| format!("line {line}")).collect::<Vec<_>>().join("\n") + "\n";
        let mut source = Source::new("t.py", &text);
        source.replace(2, "LINE 2".to_owned());
        source.insert_before(11, "new".to_owned());
        let Some(crate::Apply::Edit { diff, line, .. }) = source.edit() else { panic!("there is a change") };
        assert_eq!(line, 2);
        let expected = "--- t.py\n+++ t.py\n@@ -1,5 +1,5 @@\n line 1\n-line 2\n+LINE 2\n line 3\n line 4\n line 5\n@@ -8,5 +8,6 @@\n line 8\n line 9\n line 10\n+new\n line 11\n line 12\n";
        // The second hunk has three lines of context behind it, as far as the file goes.
        assert_eq!(diff, expected);
        assert_eq!(Source::new("t.py", &text).edit(), None);
    }

    #[test]
    fn a_module_that_is_imported_among_others_is_there() {
        let imported = |text: &str| {
            let mut source = Source::new("t.py", text);
            source.import("import torch");
            source.edit().is_some()
        };
        assert!(imported("from torch import nn\nx = 1\n"));
        assert!(imported("import torch.nn as nn, numpy\n"));
        assert!(imported("import torch as t\n"));
        assert!(!imported("import torch\n"));
        assert!(!imported("import numpy as np, torch, torch.nn as nn\n"));
    }
}
