//! Source files that ran, known by hashes of their lines.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Source file of the user, as it was when it ran. Hashes of its lines tell later which of them an edit has
/// changed; the text itself is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// File name in call stacks.
    pub file: String,
    /// Absolute path without symbolic links.
    pub path: PathBuf,
    /// Hash of each line, from [`line_hash`].
    pub lines: Vec<u32>,
}

impl SourceFile {
    /// Takes the hashes of a text.
    pub fn new(file: String, path: PathBuf, text: &str) -> Self {
        Self { file, path, lines: text.lines().map(line_hash).collect() }
    }
}

/// Hash of a line: FNV-1a. Space at its end does not count, space at its start does, since a line that moved
/// into another block does something else.
pub fn line_hash(line: &str) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    line.trim_end().as_bytes().iter().fold(0x811c_9dc5, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indentation_counts_and_space_at_the_end_does_not() {
        // The published test vector of FNV-1a, 32 bits.
        assert_eq!(line_hash("foobar"), 0xbf9c_f968);
        assert_eq!(line_hash("x = 1  \r"), line_hash("x = 1"));
        assert_ne!(line_hash("  x = 1"), line_hash("x = 1"));
        let source = SourceFile::new("a.py".into(), "/a.py".into(), "x\n\ny");
        assert_eq!(source.lines, [line_hash("x"), line_hash(""), line_hash("y")]);
    }
}
