//! What stands in the text beside the program: comments, imports, and what could not be read.

use super::Place;
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

/// A search for a text in an exception's message.
#[derive(Clone, Debug)]
pub struct MessageSearch {
    /// The whole test.
    pub span: Span,
    /// What is looked for.
    pub text: String,
    /// The name of the exception.
    pub exception: Option<String>,
    /// Where.
    pub place: Place,
}
