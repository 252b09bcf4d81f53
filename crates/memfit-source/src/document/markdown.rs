//! Fenced Python blocks of Markdown, each of which is a separate snippet.

use std::sync::Arc;

use super::{Map, Snippet};
use crate::parse::Dialect;

/// Opening fence: its character, length and indentation.
#[derive(Clone, Copy)]
pub(super) struct Fence {
    mark: u8,
    length: usize,
    indent: usize,
    ipython: bool,
}

/// Parses a line that opens a fenced Python block.
pub(super) fn opens(line: &str) -> Option<Fence> {
    let (fence, info) = fence(line)?;
    let word: String = info
        .trim_start_matches(['{', ' ', '.'])
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || *c == '-' || *c == '+')
        .collect();
    let ipython = word == "ipython" || word == "ipython3";
    let is_python =
        matches!(word.to_ascii_lowercase().as_str(), "python" | "py" | "python3" | "py3" | "torch")
            || ipython;
    is_python.then_some(Fence { ipython, ..fence })
}

fn fence(line: &str) -> Option<(Fence, &str)> {
    let line = line.trim_end_matches(['\n', '\r']);
    let rest = line.trim_start_matches([' ', '\t', '>']);
    let indent = line.len() - rest.len();
    let mark = *rest.as_bytes().first().filter(|mark| matches!(mark, b'`' | b'~'))?;
    let length = rest.bytes().take_while(|byte| *byte == mark).count();
    (length >= 3).then(|| (Fence { mark, length, indent, ipython: false }, rest[length..].trim()))
}

/// Text of a block so far, and the positions of its lines.
type Block = (String, Vec<(u32, u32)>);

pub(super) fn snippets(text: &Arc<str>) -> Vec<Snippet> {
    let mut found = Vec::new();
    let mut at = 0_usize;
    // The open block: its fence, and the text and lines so far if it is Python.
    let mut open: Option<(Fence, Option<Block>)> = None;
    for line in text.split_inclusive('\n') {
        let begin = at;
        at += line.len();
        match &mut open {
            None => {
                if let Some(python) = opens(line) {
                    open = Some((python, Some((String::new(), Vec::new()))));
                } else if let Some((other, _)) = fence(line) {
                    open = Some((other, None));
                }
            }
            Some((opened, block)) => {
                let closes = fence(line).is_some_and(|(closing, info)| {
                    closing.mark == opened.mark && closing.length >= opened.length && info.is_empty()
                });
                if closes {
                    let dialect = if opened.ipython { Dialect::IPython } else { Dialect::Python };
                    if let Some((text, lines)) = block.take() {
                        found.extend(snippet(text, lines, dialect));
                    }
                    open = None;
                } else if let Some((text, lines)) = block {
                    let margin = margin(line, opened.indent);
                    lines.push((text.len() as u32, (begin + margin) as u32));
                    text.push_str(&line[margin..]);
                }
            }
        }
    }
    if let Some((fence, Some((text, lines)))) = open {
        found.extend(snippet(text, lines, if fence.ipython { Dialect::IPython } else { Dialect::Python }));
    }
    found
}

/// Bytes of leading whitespace that belong to the block's indentation.
fn margin(line: &str, indent: usize) -> usize {
    line.bytes().take(indent).take_while(|byte| matches!(byte, b' ' | b'\t' | b'>')).count()
}

fn snippet(text: String, lines: Vec<(u32, u32)>, dialect: Dialect) -> Option<Snippet> {
    (!lines.is_empty()).then(|| Snippet {
        text: text.into(),
        dialect,
        is_whole: false,
        map: Map::Lines(lines),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Span;

    #[test]
    fn blocks_keep_their_place() {
        let text: Arc<str> =
            "# t\n```python\nx = 1\n```\n\n- item\n  ```py title=a\n  for a in b:\n      c\n  ```\n```sh\nls\n```\n~~~python\ny\n"
                .into();
        let found = snippets(&text);
        let texts: Vec<&str> = found.iter().map(|snippet| &*snippet.text).collect();
        assert_eq!(texts, ["x = 1\n", "for a in b:\n    c\n", "y\n"]);
        for (snippet, word) in found.iter().zip(["x", "c", "y"]) {
            let at = snippet.text.rfind(word).unwrap() as u32;
            let file = snippet.to_file(Span::new(at, at + 1)).unwrap();
            assert_eq!(file.slice(&text), word);
        }
        assert_eq!(found[1].indented("a\nb", Span::empty(0)), "a\n  b");
    }

    #[test]
    fn a_fence_in_another_block_opens_nothing() {
        let text: Arc<str> = "````md\n```python\nx\n```\n````\n".into();
        assert!(snippets(&text).is_empty());
    }
}
