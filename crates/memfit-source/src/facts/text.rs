//! What stands in the text beside the program: comments, imports, and what could not be read.

use crate::position::Span;

/// A comment.
#[derive(Clone, Copy, Debug)]
pub struct Comment {
    /// From the `#` to the end of the line.
    pub span: Span,
    /// Nothing stands before it on its line.
    pub own_line: bool,
}

/// An import of names from a module.
#[derive(Clone, Debug)]
pub struct ImportFrom {
    /// The statement.
    pub span: Span,
    /// The module's name alone.
    pub module_span: Span,
    /// The module.
    pub module: String,
    /// The names, and what they are called here.
    pub names: Vec<(String, String)>,
}

/// Something that the parser could not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub span: Span,
    /// What, as a sentence without its end.
    pub message: String,
}
