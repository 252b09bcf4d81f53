//! Python expressions, reduced to the details that source edits need.

use ruff_python_ast::visitor::source_order::{self, SourceOrderVisitor};
use ruff_python_ast::{Comprehension, Expr, Number, Operator as Op, Stmt};
use ruff_text_size::Ranged;

use crate::position::Span;

/// Expression. Its span excludes enclosing parentheses.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    /// Span of the expression.
    pub span: Span,
    /// Kind of expression.
    pub kind: ExpressionKind,
}

/// Kinds of expressions.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpressionKind {
    /// `name`
    Name(String),
    /// `of.name`
    Attribute {
        /// The object.
        of: Box<Expression>,
        /// The attribute.
        name: String,
    },
    /// `callee(arguments)`
    Call {
        /// The function.
        callee: Box<Expression>,
        /// Positional arguments and keywords, in order.
        arguments: Vec<CallArgument>,
    },
    /// `of[index]`
    Item {
        /// The container.
        of: Box<Expression>,
        /// The index or key.
        index: Box<Expression>,
    },
    /// `left operator right`
    Binary {
        /// The left side.
        left: Box<Expression>,
        /// The operator.
        operator: Operator,
        /// The right side.
        right: Box<Expression>,
    },
    /// Number literal.
    Number,
    /// String literal, possibly of several implicitly concatenated parts.
    Text(String),
    /// `True`, `False`, or `None`.
    Constant(Option<bool>),
    /// List, tuple or set display.
    Several(Vec<Expression>),
    /// f-string, with its interpolated expressions.
    Formatted(Vec<Expression>),
    /// Comprehension or generator expression.
    Comprehension {
        /// Element, or key and value.
        elements: Vec<Expression>,
        /// Loop variables.
        targets: Vec<Expression>,
        /// The iterables.
        iterables: Vec<Expression>,
        /// The conditions.
        conditions: Vec<Expression>,
    },
    /// `(target := value)`
    Named {
        /// The name that it binds.
        target: Box<Expression>,
        /// The value.
        value: Box<Expression>,
    },
    /// Function that runs later.
    Lambda(Vec<Expression>),
    /// `yield` and `yield from`.
    Yield(Vec<Expression>),
    /// Any other, with its subexpressions.
    Other(Vec<Expression>),
}

/// Argument of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallArgument {
    /// Keyword.
    pub name: Option<String>,
    /// `*args` or `**kwargs`
    pub starred: bool,
    /// The value.
    pub value: Expression,
}

/// Binary operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `+`
    Add,
    /// `*`
    Multiply,
    /// `@`
    MatrixMultiply,
    /// `/`
    Divide,
    /// `**`
    Power,
    /// Any other.
    Other,
}

impl Expression {
    /// Direct subexpressions.
    pub fn parts(&self) -> Vec<&Self> {
        match &self.kind {
            ExpressionKind::Name(_)
            | ExpressionKind::Number
            | ExpressionKind::Text(_)
            | ExpressionKind::Constant(_) => Vec::new(),
            ExpressionKind::Attribute { of, .. } => vec![of],
            ExpressionKind::Call { callee, arguments } => {
                std::iter::once(&**callee).chain(arguments.iter().map(|argument| &argument.value)).collect()
            }
            ExpressionKind::Item { of, index } => vec![of, index],
            ExpressionKind::Named { target, value } => vec![target, value],
            ExpressionKind::Binary { left, right, .. } => vec![left, right],
            ExpressionKind::Comprehension { elements, targets, iterables, conditions } => {
                elements.iter().chain(targets).chain(iterables).chain(conditions).collect()
            }
            ExpressionKind::Several(parts)
            | ExpressionKind::Formatted(parts)
            | ExpressionKind::Lambda(parts)
            | ExpressionKind::Yield(parts)
            | ExpressionKind::Other(parts) => parts.iter().collect(),
        }
    }

    /// Visits this expression and all its subexpressions, outermost first.
    pub fn visit<'a>(&'a self, see: &mut impl FnMut(&'a Self)) {
        see(self);
        for part in self.parts() {
            part.visit(see);
        }
    }

    /// Returns `true` if `is` holds for this expression or any subexpression.
    pub fn any(&self, is: &impl Fn(&Self) -> bool) -> bool {
        is(self) || self.parts().into_iter().any(|part| part.any(is))
    }

    /// Returns `true` if a name occurs in the expression.
    pub fn mentions(&self, name: &str) -> bool {
        self.any(&|part| part.name() == Some(name))
    }

    /// The identifier, if the expression is a name.
    pub fn name(&self) -> Option<&str> {
        match &self.kind {
            ExpressionKind::Name(name) => Some(name),
            _ => None,
        }
    }

    /// The path `a.b.c`, if the expression consists of names joined by dots.
    pub fn path(&self) -> Option<String> {
        match &self.kind {
            ExpressionKind::Name(name) => Some(name.clone()),
            ExpressionKind::Attribute { of, name } => Some(format!("{}.{name}", of.path()?)),
            _ => None,
        }
    }

    /// Last component of a path: `c` for `a.b.c`.
    pub fn last_name(&self) -> Option<&str> {
        match &self.kind {
            ExpressionKind::Name(name) | ExpressionKind::Attribute { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Name at the root of a chain of attributes, items and calls.
    pub fn root(&self) -> Option<&str> {
        match &self.kind {
            ExpressionKind::Name(name) => Some(name),
            ExpressionKind::Attribute { of, .. } | ExpressionKind::Item { of, .. } => of.root(),
            _ => None,
        }
    }

    /// Callee and arguments, if the expression is a call.
    pub fn call(&self) -> Option<(&Self, &[CallArgument])> {
        match &self.kind {
            ExpressionKind::Call { callee, arguments } => Some((callee, arguments)),
            _ => None,
        }
    }

    /// Depth of the expression tree.
    pub(crate) fn depth(&self) -> usize {
        1 + self.parts().into_iter().map(Self::depth).max().unwrap_or(0)
    }
}

pub(crate) fn span_of(node: &impl Ranged) -> Span {
    let range = node.range();
    Span::new(range.start().to_u32(), range.end().to_u32())
}

pub(crate) fn expression(of: &Expr) -> Expression {
    let boxed = |of: &Expr| Box::new(expression(of));
    let all = |of: &[Expr]| of.iter().map(expression).collect::<Vec<_>>();
    let kind = match of {
        Expr::Name(name) => ExpressionKind::Name(name.id.to_string()),
        Expr::Attribute(attribute) => {
            ExpressionKind::Attribute { of: boxed(&attribute.value), name: attribute.attr.to_string() }
        }
        Expr::Call(call) => {
            let positional = call.arguments.args.iter().map(|value| match value {
                Expr::Starred(starred) => {
                    CallArgument { name: None, starred: true, value: expression(&starred.value) }
                }
                value => CallArgument { name: None, starred: false, value: expression(value) },
            });
            let keywords = call.arguments.keywords.iter().map(|keyword| CallArgument {
                name: keyword.arg.as_ref().map(ToString::to_string),
                starred: keyword.arg.is_none(),
                value: expression(&keyword.value),
            });
            ExpressionKind::Call {
                callee: boxed(&call.func),
                arguments: positional.chain(keywords).collect(),
            }
        }
        Expr::Subscript(item) => ExpressionKind::Item { of: boxed(&item.value), index: boxed(&item.slice) },
        Expr::BinOp(binary) => ExpressionKind::Binary {
            left: boxed(&binary.left),
            operator: operator(binary.op),
            right: boxed(&binary.right),
        },
        Expr::NumberLiteral(number) if !matches!(number.value, Number::Complex { .. }) => {
            ExpressionKind::Number
        }
        Expr::StringLiteral(text) => ExpressionKind::Text(text.value.to_str().to_owned()),
        Expr::NoneLiteral(_) => ExpressionKind::Constant(None),
        Expr::BooleanLiteral(truth) => ExpressionKind::Constant(Some(truth.value)),
        Expr::List(list) => ExpressionKind::Several(all(&list.elts)),
        Expr::Tuple(tuple) => ExpressionKind::Several(all(&tuple.elts)),
        Expr::Set(set) => ExpressionKind::Several(all(&set.elts)),
        Expr::ListComp(made) => comprehension(&[&*made.elt], &made.generators),
        Expr::SetComp(made) => comprehension(&[&*made.elt], &made.generators),
        Expr::Generator(made) => comprehension(&[&*made.elt], &made.generators),
        Expr::DictComp(made) => {
            let elements: Vec<&Expr> = made.key.as_deref().into_iter().chain([&*made.value]).collect();
            comprehension(&elements, &made.generators)
        }
        Expr::Named(named) => {
            ExpressionKind::Named { target: boxed(&named.target), value: boxed(&named.value) }
        }
        Expr::FString(_) | Expr::TString(_) => ExpressionKind::Formatted(children(of)),
        Expr::Lambda(_) => ExpressionKind::Lambda(children(of)),
        Expr::Yield(_) | Expr::YieldFrom(_) => ExpressionKind::Yield(children(of)),
        _ => ExpressionKind::Other(children(of)),
    };
    Expression { span: span_of(of), kind }
}

fn comprehension(elements: &[&Expr], generators: &[Comprehension]) -> ExpressionKind {
    ExpressionKind::Comprehension {
        elements: elements.iter().map(|element| expression(element)).collect(),
        targets: generators.iter().map(|each| expression(&each.target)).collect(),
        iterables: generators.iter().map(|each| expression(&each.iter)).collect(),
        conditions: generators.iter().flat_map(|each| each.ifs.iter().map(expression)).collect(),
    }
}

pub(crate) const fn operator(of: Op) -> Operator {
    match of {
        Op::Add => Operator::Add,
        Op::Mult => Operator::Multiply,
        Op::MatMult => Operator::MatrixMultiply,
        Op::Div => Operator::Divide,
        Op::Pow => Operator::Power,
        _ => Operator::Other,
    }
}

/// Collects the outermost expressions and skips nested statements.
#[derive(Default)]
struct Outermost(Vec<Expression>);

impl<'a> SourceOrderVisitor<'a> for Outermost {
    fn visit_expr(&mut self, found: &'a Expr) {
        self.0.push(expression(found));
    }

    fn visit_annotation(&mut self, _: &'a Expr) {}

    fn visit_stmt(&mut self, _: &'a Stmt) {}

    fn visit_body(&mut self, _: &'a [Stmt]) {}
}

fn children(of: &Expr) -> Vec<Expression> {
    let mut found = Outermost::default();
    source_order::walk_expr(&mut found, of);
    found.0
}

/// Expressions of the statement itself, without those of nested statements.
pub(crate) fn expressions_of(of: &Stmt) -> Vec<Expression> {
    let mut found = Outermost::default();
    source_order::walk_stmt(&mut found, of);
    found.0
}
