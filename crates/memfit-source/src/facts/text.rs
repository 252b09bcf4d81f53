//! Parts of the text besides the program: comments, imports, syntax errors.

use super::Site;
use crate::position::Span;

/// A comment.
#[derive(Clone, Copy, Debug)]
pub struct Comment {
    /// Span from the `#` to the end of the line.
    pub span: Span,
    /// `true` if the line contains nothing else.
    pub own_line: bool,
}

/// `from module import names`.
#[derive(Clone, Debug)]
pub struct ImportFrom {
    /// Span of the statement.
    pub span: Span,
    /// Span of the module's name.
    pub module_span: Span,
    /// Name of the module.
    pub module: String,
    /// Imported names with their local names.
    pub names: Vec<(String, String)>,
}

/// Syntax error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Span of the error.
    pub span: Span,
    /// Description without a final full stop.
    pub message: String,
}

/// Search for a text in an exception's message.
#[derive(Clone, Debug)]
pub struct MessageSearch {
    /// Span of the test.
    pub span: Span,
    /// Text that is searched for.
    pub text: String,
    /// Name that the exception is bound to.
    pub exception: Option<String>,
    /// Site of the test.
    pub site: Site,
}
