//! Statement tree of a text with the names that each statement binds, for source edits.

use ruff_python_ast::{ExceptHandler, Expr, Stmt};
use ruff_python_parser::parse_unchecked;

use crate::expression::{Expression, ExpressionKind, Operator, expression, expressions_of, span_of};
use crate::limits::{TooMuch, measure};
use crate::parse::{Dialect, options};
use crate::position::Span;

/// Statement.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// Span of the statement.
    pub span: Span,
    /// Kind, as far as edits need it.
    pub kind: StatementKind,
    /// Name that a function or class definition binds.
    pub name: Option<String>,
    /// Targets that it binds: of an assignment, a loop, `with … as`, a function's parameters.
    pub targets: Vec<Expression>,
    /// Its other expressions: the value of an assignment, a condition, decorators.
    pub values: Vec<Expression>,
    /// Names that `import module` binds.
    pub modules: Vec<String>,
    /// Statements of its body.
    pub body: Vec<Statement>,
    /// Statements of its other clauses: `else`, `except`, `case`.
    pub others: Vec<Vec<Statement>>,
}

/// Kinds of statements.
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
    /// A docstring or another string statement.
    Text,
    /// `a = b`
    Assign,
    /// `a += b`
    Augment(Operator),
    /// `with`
    With,
    /// `return`
    Return,
    /// `del`
    Delete,
    /// `global`, `nonlocal`
    Global,
    /// `break`, `continue`, `raise`
    Exit,
    /// An expression statement.
    Expression,
    /// Any other.
    Other,
}

impl Statement {
    /// Returns `true` for an import that binds a module under its own name. `import torch.nn` also binds
    /// `torch`; a submodule must be imported itself.
    pub fn imports(&self, module: &str) -> bool {
        self.modules.iter().any(|name| {
            name == module
                || !module.contains('.')
                    && name.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// Lists of statements in it.
    pub fn suites(&self) -> impl Iterator<Item = &[Self]> {
        std::iter::once(self.body.as_slice()).chain(self.others.iter().map(Vec::as_slice))
    }

    /// Visits this statement and all nested ones, in the order of the text.
    pub fn visit<'a>(&'a self, see: &mut impl FnMut(&'a Self)) {
        see(self);
        for suite in self.suites() {
            for statement in suite {
                statement.visit(see);
            }
        }
    }

    /// Expressions.
    pub fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.targets.iter().chain(&self.values)
    }

    /// Returns `true` if a name occurs in this statement or in a nested one.
    pub fn mentions(&self, name: &str) -> bool {
        self.expressions().any(|expression| expression.mentions(name))
            || self.suites().flatten().any(|statement| statement.mentions(name))
    }

    fn depth(&self) -> usize {
        let own = self.expressions().map(Expression::depth).max().unwrap_or(0);
        1 + own.max(self.suites().flatten().map(Self::depth).max().unwrap_or(0))
    }
}

/// Maximum depth of a tree that is edited: far more than in hand-written code, and safe on any stack.
const MAX_EDIT_DEPTH: usize = 400;

/// Returns `true` if statements are nested so deeply that walking them needs a larger stack.
pub fn is_deep(statements: &[Statement]) -> bool {
    statements.iter().any(|statement| statement.depth() > MAX_EDIT_DEPTH)
}

/// Parses a module's statements, including nested ones.
pub fn statements(text: &str, dialect: Dialect) -> Result<Vec<Statement>, TooMuch> {
    measure(text)?;
    let parsed = parse_unchecked(text, options(dialect));
    Ok(parsed.try_into_module().map_or_else(Vec::new, |module| suite(&module.into_syntax().body)))
}

fn suite(body: &[Stmt]) -> Vec<Statement> {
    body.iter().map(statement).collect()
}

fn statement(of: &Stmt) -> Statement {
    let (kind, body, others): (_, &[Stmt], Vec<Vec<Statement>>) = match of {
        Stmt::FunctionDef(def) => (StatementKind::Function, &def.body, Vec::new()),
        Stmt::ClassDef(class) => (StatementKind::Class, &class.body, Vec::new()),
        Stmt::For(each) => (StatementKind::Loop, &each.body, vec![suite(&each.orelse)]),
        Stmt::While(each) => (StatementKind::Loop, &each.body, vec![suite(&each.orelse)]),
        Stmt::If(test) => {
            let others = test.elif_else_clauses.iter().map(|clause| suite(&clause.body)).collect();
            (StatementKind::Other, &test.body, others)
        }
        Stmt::With(with) => (StatementKind::With, &with.body, Vec::new()),
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
        Stmt::Expr(_) => (StatementKind::Expression, &[], Vec::new()),
        Stmt::Assign(_) | Stmt::AnnAssign(_) => (StatementKind::Assign, &[], Vec::new()),
        Stmt::AugAssign(assign) => {
            (StatementKind::Augment(crate::expression::operator(assign.op)), &[], Vec::new())
        }
        Stmt::Return(_) => (StatementKind::Return, &[], Vec::new()),
        Stmt::Delete(_) => (StatementKind::Delete, &[], Vec::new()),
        Stmt::Global(_) | Stmt::Nonlocal(_) => (StatementKind::Global, &[], Vec::new()),
        Stmt::Break(_) | Stmt::Continue(_) | Stmt::Raise(_) => (StatementKind::Exit, &[], Vec::new()),
        _ => (StatementKind::Other, &[], Vec::new()),
    };
    let (targets, values) = expressions(of);
    Statement {
        span: span_of(of),
        kind,
        name: match of {
            Stmt::FunctionDef(def) => Some(def.name.to_string()),
            Stmt::ClassDef(class) => Some(class.name.to_string()),
            _ => None,
        },
        targets,
        values,
        modules: match of {
            Stmt::Import(import) => {
                let own = import.names.iter().filter(|alias| alias.asname.is_none());
                own.map(|alias| alias.name.to_string()).collect()
            }
            _ => Vec::new(),
        },
        body: suite(body),
        others: others.into_iter().filter(|o| !o.is_empty()).collect(),
    }
}

/// Targets of a statement, and its other expressions.
fn expressions(of: &Stmt) -> (Vec<Expression>, Vec<Expression>) {
    let all = |of: &[Expr]| of.iter().map(expression).collect::<Vec<_>>();
    let named = |name: &ruff_python_ast::Identifier| Expression {
        span: span_of(name),
        kind: ExpressionKind::Name(name.to_string()),
    };
    match of {
        Stmt::Assign(assign) => (all(&assign.targets), vec![expression(&assign.value)]),
        Stmt::AnnAssign(assign) => {
            (vec![expression(&assign.target)], assign.value.iter().map(|value| expression(value)).collect())
        }
        Stmt::AugAssign(assign) => (vec![expression(&assign.target)], vec![expression(&assign.value)]),
        Stmt::For(each) => (vec![expression(&each.target)], vec![expression(&each.iter)]),
        Stmt::With(with) => {
            let targets = with.items.iter().filter_map(|item| item.optional_vars.as_deref());
            let values = with.items.iter().map(|item| expression(&item.context_expr)).collect();
            (targets.map(expression).collect(), values)
        }
        Stmt::Delete(delete) => (all(&delete.targets), Vec::new()),
        Stmt::Global(global) => (global.names.iter().map(named).collect(), Vec::new()),
        Stmt::Nonlocal(outer) => (outer.names.iter().map(named).collect(), Vec::new()),
        Stmt::FunctionDef(def) => {
            let parameters = def.parameters.iter().map(|parameter| named(parameter.name())).collect();
            (parameters, expressions_of(of))
        }
        _ => (Vec::new(), expressions_of(of)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_statements_are_found() {
        let text = "\"\"\"Doc.\"\"\"\nimport torch\nfor x in y:\n    if x:\n        a = 1\n    else:\n        b = 2\n    c()\n";
        let found = statements(text, Dialect::Python).unwrap();
        let kinds: Vec<StatementKind> = found.iter().map(|statement| statement.kind).collect();
        assert_eq!(kinds, [StatementKind::Text, StatementKind::Import, StatementKind::Loop]);
        let body: Vec<&str> = found[2].body.iter().map(|statement| statement.span.slice(text)).collect();
        assert_eq!(body, ["if x:\n        a = 1\n    else:\n        b = 2", "c()"]);
        let inner: Vec<&str> =
            found[2].body[0].suites().flatten().map(|statement| statement.span.slice(text)).collect();
        assert_eq!(inner, ["a = 1", "b = 2"]);
    }

    #[test]
    fn a_statement_has_what_it_binds_and_its_other_expressions() {
        let text = "@f(1)\ndef g(a, b=c, *d):\n    x, y.z = h(a)[0] + 1\n    with m() as n:\n        return [k for k in n]\n";
        let found = statements(text, Dialect::Python).unwrap();
        let of = |expressions: &[Expression]| -> Vec<String> {
            expressions.iter().map(|each| each.span.slice(text).to_owned()).collect()
        };
        assert_eq!(found[0].name.as_deref(), Some("g"));
        assert_eq!(
            (of(&found[0].targets), of(&found[0].values)),
            (vec!["a".into(), "b".into(), "d".into()], vec!["f(1)".into(), "c".into()])
        );
        let [assign, with] = &found[0].body[..] else { panic!("{found:?}") };
        assert_eq!(
            (assign.kind, of(&assign.targets), of(&assign.values)),
            (StatementKind::Assign, vec!["x, y.z".into()], vec!["h(a)[0] + 1".into()])
        );
        assert_eq!(
            (with.kind, of(&with.targets), of(&with.values)),
            (StatementKind::With, vec!["n".into()], vec!["m()".into()])
        );
        assert!(with.mentions("k") && !with.mentions("h"));
        assert_eq!(with.body[0].kind, StatementKind::Return);
    }

    #[test]
    fn unreadable_code_keeps_its_readable_statements() {
        assert_eq!(statements("a = 1\nb = = 2\nc = 3\n", Dialect::Python).unwrap()[0].span, Span::new(0, 5));
        assert_eq!(statements("", Dialect::Python).unwrap(), []);
    }
}
