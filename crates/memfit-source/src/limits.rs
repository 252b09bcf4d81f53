//! What is too much to read: a text whose syntax tree would be deeper than a stack.

/// Why a text is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TooMuch {
    /// It is too long.
    #[error("it has {size} bytes, and more than {most} are not read")]
    Long {
        /// Its size.
        size: usize,
        /// The most.
        most: usize,
    },
    /// It is nested too deeply.
    #[error("line {line} is nested too deeply: an expression or a block there may be {depth} levels deep")]
    Deep {
        /// Where, from 1.
        line: usize,
        /// How deep it may be.
        depth: usize,
    },
}

/// The longest text that is read.
const LONGEST: usize = 32 * 1024 * 1024;

/// The deepest tree that is read. Trees are dropped by recursion, a few hundred bytes of stack a level; who
/// reads does so on a stack of [`STACK`] bytes.
const DEEPEST: usize = 20_000;

/// How large a stack reading needs.
pub const STACK: usize = 64 * 1024 * 1024;

/// Below this size no tree can be too deep.
const SMALL: usize = DEEPEST;

/// Whether so little in a text could make a tree deeper that it need not be looked at closely: each of its
/// operators and words would have to stand in one expression.
fn is_flat(bytes: &[u8]) -> bool {
    // Few enough at a time to be counted in bytes, which is many at once for a processor.
    const AT_ONCE: usize = 128;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || (byte == b'_');
    let mut levels = usize::from(bytes.first().is_some_and(|first| is_word(*first)));
    for part in bytes.chunks(AT_ONCE) {
        levels += usize::from(part.iter().map(|byte| u8::from(byte.is_ascii_punctuation())).sum::<u8>());
    }
    let next = bytes.get(1..).unwrap_or_default();
    for (part, next) in bytes.chunks(AT_ONCE).zip(next.chunks(AT_ONCE)) {
        let begins = |(before, byte): (&u8, &u8)| u8::from(!is_word(*before) & is_word(*byte));
        levels += usize::from(part.iter().zip(next).map(begins).sum::<u8>());
    }
    // A line is as deep as it is indented, at most.
    let mut longest = 0;
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', bytes).chain([bytes.len()]) {
        longest = longest.max(end - start);
        start = end + 1;
    }
    levels + longest <= DEEPEST
}

/// What names and numbers consist of.
const IN_A_WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric() || byte == b'_' as usize;
        byte += 1;
    }
    table
};

/// Whether a text can be read: an upper bound of how deep its tree is, from its characters alone.
///
/// An operator, an opening bracket, a dot or a keyword makes a tree one level deeper at most, until a comma
/// or the end of a statement; what is inside of brackets comes on top of what is outside.
pub(crate) fn measure(text: &str) -> Result<(), TooMuch> {
    if text.len() > LONGEST {
        return Err(TooMuch::Long { size: text.len(), most: LONGEST });
    }
    if text.len() <= SMALL {
        return Ok(());
    }
    if is_flat(text.as_bytes()) { Ok(()) } else { follow(text) }
}

/// The same, byte by byte.
fn follow(text: &str) -> Result<(), TooMuch> {
    let bytes = text.as_bytes();
    // For each open bracket: how many levels the expression around it has so far.
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
            b'\\' => at += 1,
            b'"' | b'\'' => {
                let start = at;
                at = string_end(bytes, at);
                line += text.get(start..at.min(bytes.len())).map_or(0, |string| string.matches('\n').count());
                // A template's parts are expressions.
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
                while bytes.get(at).is_some_and(|byte| IN_A_WORD[usize::from(*byte)]) {
                    at += 1;
                }
                // Most words are longer than any that counts.
                let deepens = at - start <= 6
                    && matches!(
                        &bytes[start..at],
                        b"not" | b"if" | b"else" | b"lambda" | b"await" | b"and" | b"or" | b"for" | b"yield"
                    );
                if !deepens {
                    continue;
                }
                here += 1;
                if outside + here + indent > DEEPEST {
                    return Err(TooMuch::Deep { line, depth: outside + here + indent });
                }
                continue;
            }
            _ => {
                at += 1;
                continue;
            }
        }
        if outside + here + indent > DEEPEST {
            return Err(TooMuch::Deep { line, depth: outside + here + indent });
        }
        at += 1;
    }
    Ok(())
}

/// One past the end of the string literal that begins here.
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
        /// What is passed over with a glance is nothing that a close look would refuse.
        #[test]
        fn what_looks_flat_is_flat(
            pieces in prop::collection::vec((r#"[a-z0-9_ \[(.:'"\#=+\n-]{1,12}|not |é\(|f'\{|\t"#, 1usize..6000), 1..12),
        ) {
            let text: String = pieces.iter().map(|(piece, times)| piece.repeat(*times)).collect();
            prop_assert!(!is_flat(text.as_bytes()) || follow(&text).is_ok());
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
