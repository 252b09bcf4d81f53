//! Statement tree of a text, for rules about the form of statements.

use memfit_source::{Dialect, Expression, Statement, statements};

use crate::rule::Context;

/// Statements of the text.
pub(crate) fn tree(context: &Context<'_>) -> Vec<Statement> {
    // The parser of facts accepted the text; the syntax of notebooks contains that of files.
    statements(&context.facts.text, Dialect::IPython).unwrap_or_default()
}

/// Names that a target binds, in order.
pub(crate) fn bound_names(target: &Expression) -> Vec<&str> {
    let mut found = Vec::new();
    target.visit(&mut |part| found.extend(part.name()));
    found
}

/// Statements after the statement at `index` of a suite and after those that it is in, within a body.
pub(crate) fn follows<'a>(body: &'a [Statement], of: &Statement) -> Vec<&'a Statement> {
    let mut after = Vec::new();
    for (index, statement) in body.iter().enumerate() {
        if statement.span.start <= of.span.start && of.span.end <= statement.span.end {
            if statement.span != of.span {
                for suite in statement.suites() {
                    after.extend(follows(suite, of));
                }
            }
            after.extend(&body[index + 1..]);
            break;
        }
    }
    after
}
