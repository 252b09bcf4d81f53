//! Limits on source texts: a syntax tree deeper than the stack is refused.

/// Reason why a text is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TooMuch {
    /// The text is too long.
    #[error("it has {size} bytes, but memfit reads files of at most {most}")]
    Long {
        /// Size of the text in bytes.
        size: usize,
        /// Maximum size in bytes.
        most: usize,
    },
    /// The text is nested too deeply.
    #[error(
        "line {line} is nested too deeply: its expressions and blocks may be more than {most} levels deep"
    )]
    Deep {
        /// Line, from 1.
        line: usize,
        /// Maximum depth.
        most: usize,
    },
}

/// Maximum size of a text in bytes.
const MAX_BYTES: usize = 32 * 1024 * 1024;

/// Maximum depth of a tree. Trees are dropped by recursion, a few hundred bytes of stack a level; parsing
/// runs on a stack of [`STACK`] bytes.
const MAX_DEPTH: usize = 20_000;

/// Stack size in bytes that parsing needs.
pub const STACK: usize = 64 * 1024 * 1024;

/// Size in bytes below which no tree can be too deep.
const ALWAYS_SAFE_BYTES: usize = MAX_DEPTH;

/// Quick check: returns `true` if the text has too few nesting characters for a deep tree, even if all were
/// in one expression.
fn is_flat(bytes: &[u8]) -> bool {
    // A `u8` can count this many bytes, which lets the compiler vectorise the loop.
    const CHUNK_BYTES: usize = 128;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || (byte == b'_');
    let mut levels = usize::from(bytes.first().is_some_and(|first| is_word(*first)));
    for part in bytes.chunks(CHUNK_BYTES) {
        levels += usize::from(part.iter().map(|byte| u8::from(byte.is_ascii_punctuation())).sum::<u8>());
    }
    let next = bytes.get(1..).unwrap_or_default();
    for (part, next) in bytes.chunks(CHUNK_BYTES).zip(next.chunks(CHUNK_BYTES)) {
        let begins = |(before, byte): (&u8, &u8)| u8::from(!is_word(*before) & is_word(*byte));
        levels += usize::from(part.iter().zip(next).map(begins).sum::<u8>());
    }
    // Indentation bounds the depth of nested statements.
    let mut longest = 0;
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', bytes).chain([bytes.len()]) {
        longest = longest.max(end - start);
        start = end + 1;
    }
    levels + longest <= MAX_DEPTH
}

/// Characters of names and numbers.
const IS_WORD_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric() || byte == b'_' as usize;
        byte += 1;
    }
    table
};

/// Computes an upper bound of the tree's depth from the characters alone, and checks it.
///
/// An operator, an opening bracket, a dot or a keyword adds at most one level, until a comma or the end of a
/// statement; the levels inside brackets add to those outside.
pub(crate) fn measure(text: &str) -> Result<(), TooMuch> {
    if text.len() > MAX_BYTES {
        return Err(TooMuch::Long { size: text.len(), most: MAX_BYTES });
    }
    if text.len() <= ALWAYS_SAFE_BYTES {
        return Ok(());
    }
    if is_flat(text.as_bytes()) { Ok(()) } else { check_depth(text) }
}

/// Does the exact check, byte by byte.
fn check_depth(text: &str) -> Result<(), TooMuch> {
    let bytes = text.as_bytes();
    // Levels of the enclosing expression for each open bracket.
    let mut open: Vec<usize> = Vec::new();
    let mut outside = 0_usize;
    let mut here = 0_usize;
    let mut line = 1;
    let mut at = 0;
    let mut indent = 0;
    let mut fresh = true;
    while at < bytes.len() {
        let byte = bytes[at];
        if fresh && open.is_empty() {
            let blank = bytes[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            indent = blank;
            fresh = false;
            at += blank;
            continue;
        }
        match byte {
            b'\n' => {
                line += 1;
                if open.is_empty() {
                    here = 0;
                    fresh = true;
                }
            }
            b'#' => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
                continue;
            }
            // Joins the next line to this one.
            b'\\' => {
                at += 1;
                line += usize::from(bytes.get(at) == Some(&b'\n'));
            }
            b'"' | b'\'' => {
                let start = at;
                at = string_end(bytes, at);
                line += text.get(start..at.min(bytes.len())).map_or(0, |string| string.matches('\n').count());
                // The interpolated parts of a template are expressions.
                if start > 0 && matches!(bytes[start - 1].to_ascii_lowercase(), b'f' | b't' | b'r') {
                    here += 1;
                }
                continue;
            }
            b',' | b';' => here = 0,
            b'(' | b'[' | b'{' => {
                open.push(here + 1);
                outside += here + 1;
                here = 0;
            }
            b')' | b']' | b'}' => {
                if let Some(before) = open.pop() {
                    outside -= before;
                    here = before;
                }
            }
            b'+' | b'-' | b'*' | b'/' | b'%' | b'@' | b'&' | b'|' | b'^' | b'~' | b'<' | b'>' | b'='
            | b'.' | b':' => {
                here += 1;
            }
            byte if byte.is_ascii_alphabetic() => {
                let start = at;
                while bytes.get(at).is_some_and(|byte| IS_WORD_BYTE[usize::from(*byte)]) {
                    at += 1;
                }
                // Most words are longer than any keyword that counts.
                let deepens = at - start <= 6
                    && matches!(
                        &bytes[start..at],
                        b"not" | b"if" | b"else" | b"lambda" | b"await" | b"and" | b"or" | b"for" | b"yield"
                    );
                if !deepens {
                    continue;
                }
                here += 1;
                if outside + here + indent > MAX_DEPTH {
                    return Err(TooMuch::Deep { line, most: MAX_DEPTH });
                }
                continue;
            }
            _ => {
                at += 1;
                continue;
            }
        }
        if outside + here + indent > MAX_DEPTH {
            return Err(TooMuch::Deep { line, most: MAX_DEPTH });
        }
        at += 1;
    }
    Ok(())
}

/// Offset after the string literal that begins at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let quote = bytes[start];
    let triple = bytes.get(start..start + 3) == Some(&[quote; 3]);
    let mut at = start + if triple { 3 } else { 1 };
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'\n' if !triple => return at,
            byte if byte == quote => {
                if !triple {
                    return at + 1;
                }
                if bytes.get(at..at + 3) == Some(&[quote; 3]) {
                    return at + 3;
                }
            }
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A text that the quick check accepts also passes the exact check.
        #[test]
        fn code_that_looks_flat_is_flat(
            pieces in prop::collection::vec((r#"[a-z0-9_ \[(.:'"\#=+\n-]{1,12}|not |é\(|f'\{|\t"#, 1usize..6000), 1..12),
        ) {
            let text: String = pieces.iter().map(|(piece, times)| piece.repeat(*times)).collect();
            prop_assert!(!is_flat(text.as_bytes()) || check_depth(&text).is_ok());
        }
    }

    #[test]
    fn long_tables_are_flat_and_towers_are_deep() {
        let table = format!("x = [{}]\n", "(1, 'a', -2),\n".repeat(100_000));
        assert_eq!(measure(&table), Ok(()));
        let lines = "x = f(a + b)[0].c\n".repeat(100_000);
        assert_eq!(measure(&lines), Ok(()));
        let strings = format!("x = ({})\n", "'a'\n".repeat(100_000));
        assert_eq!(measure(&strings), Ok(()));
        for tower in ["(", "-", "not ", "x.", "x + ", "lambda: ", "f(", "[x for x in "] {
            let text = format!("a = 1\ny = {}", tower.repeat(50_000));
            assert!(matches!(measure(&text), Err(TooMuch::Deep { line: 2, .. })), "{tower}");
            let joined = format!("a = \\\n1\ny = {}", tower.repeat(50_000));
            assert!(matches!(measure(&joined), Err(TooMuch::Deep { line: 3, .. })), "{tower}");
        }
        let blocks: Vec<String> = (0..1000)
            .map(|depth| {
                format!(
                    "{}if x:
",
                    " ".repeat(depth)
                )
            })
            .collect();
        assert_eq!(measure(&blocks.concat()), Ok(()));
    }
}
