//! Where the statements of a text stand, and which stand in which: for those who change it.

use ruff_python_ast::{ExceptHandler, Stmt};
use ruff_python_parser::parse_unchecked;
use ruff_text_size::Ranged as _;

use crate::limits::{TooMuch, measure};
use crate::parse::{Dialect, options};
use crate::position::Span;

/// One statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The whole of it.
    pub span: Span,
    /// What it is, as far as a change has to know.
    pub kind: StatementKind,
    /// The statements of its body, where it has one.
    pub body: Vec<Statement>,
    /// Those of its other parts: `else`, `except`, `case`.
    pub others: Vec<Vec<Statement>>,
}

/// What a statement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatementKind {
    /// `for`, `while`
    Loop,
    /// `def`
    Function,
    /// `class`
    Class,
    /// `import`, `from … import`
    Import,
    /// A string that stands alone: documentation.
    Text,
    /// Any other.
    Other,
}

impl Statement {
    /// The lists of statements in it.
    pub fn suites(&self) -> impl Iterator<Item = &[Self]> {
        std::iter::once(self.body.as_slice()).chain(self.others.iter().map(Vec::as_slice))
    }
}

/// The statements of a module, with those in them.
pub fn statements(text: &str, dialect: Dialect) -> Result<Vec<Statement>, TooMuch> {
    measure(text)?;
    let parsed = parse_unchecked(text, options(dialect));
    Ok(parsed.try_into_module().map_or_else(Vec::new, |module| suite(&module.into_syntax().body)))
}

fn suite(body: &[Stmt]) -> Vec<Statement> {
    body.iter().map(statement).collect()
}

fn statement(of: &Stmt) -> Statement {
    let range = of.range();
    let span = Span::new(range.start().to_u32(), range.end().to_u32());
    let (kind, body, others): (_, &[Stmt], Vec<Vec<Statement>>) = match of {
        Stmt::FunctionDef(def) => (StatementKind::Function, &def.body, Vec::new()),
        Stmt::ClassDef(class) => (StatementKind::Class, &class.body, Vec::new()),
        Stmt::For(each) => (StatementKind::Loop, &each.body, vec![suite(&each.orelse)]),
        Stmt::While(each) => (StatementKind::Loop, &each.body, vec![suite(&each.orelse)]),
        Stmt::If(test) => {
            let others = test.elif_else_clauses.iter().map(|clause| suite(&clause.body)).collect();
            (StatementKind::Other, &test.body, others)
        }
        Stmt::With(with) => (StatementKind::Other, &with.body, Vec::new()),
        Stmt::Match(found) => {
            let others = found.cases.iter().map(|case| suite(&case.body)).collect();
            (StatementKind::Other, &[], others)
        }
        Stmt::Try(tried) => {
            let mut others: Vec<_> = tried
                .handlers
                .iter()
                .map(|ExceptHandler::ExceptHandler(handler)| suite(&handler.body))
                .collect();
            others.extend([suite(&tried.orelse), suite(&tried.finalbody)]);
            (StatementKind::Other, &tried.body, others)
        }
        Stmt::Import(_) | Stmt::ImportFrom(_) => (StatementKind::Import, &[], Vec::new()),
        Stmt::Expr(alone) if alone.value.is_string_literal_expr() => (StatementKind::Text, &[], Vec::new()),
        _ => (StatementKind::Other, &[], Vec::new()),
    };
    Statement {
        span,
        kind,
        body: suite(body),
        others: others.into_iter().filter(|o| !o.is_empty()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_stand_in_statements() {
        let text = "\"\"\"Doc.\"\"\"\nimport torch\nfor x in y:\n    if x:\n        a = 1\n    else:\n        b = 2\n    c()\n";
        let found = statements(text, Dialect::Python).unwrap();
        let kinds: Vec<StatementKind> = found.iter().map(|statement| statement.kind).collect();
        assert_eq!(kinds, [StatementKind::Text, StatementKind::Import, StatementKind::Loop]);
        let body: Vec<&str> = found[2].body.iter().map(|statement| statement.span.of(text)).collect();
        assert_eq!(body, ["if x:\n        a = 1\n    else:\n        b = 2", "c()"]);
        let inner: Vec<&str> =
            found[2].body[0].suites().flatten().map(|statement| statement.span.of(text)).collect();
        assert_eq!(inner, ["a = 1", "b = 2"]);
    }

    #[test]
    fn what_cannot_be_read_has_what_can_be() {
        assert_eq!(statements("a = 1\nb = = 2\nc = 3\n", Dialect::Python).unwrap()[0].span, Span::new(0, 5));
        assert_eq!(statements("", Dialect::Python).unwrap(), []);
    }
}
