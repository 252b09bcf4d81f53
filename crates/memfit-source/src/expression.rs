//! Expressions, as far as a change of the source has to know them.

use ruff_python_ast::visitor::source_order::{self, SourceOrderVisitor};
use ruff_python_ast::{Comprehension, Expr, Number, Operator as Op, Stmt};
use ruff_text_size::Ranged;

use crate::position::Span;

/// One expression. Its span leaves out parentheses around it.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    /// The whole of it.
    pub span: Span,
    /// What it is.
    pub kind: ExpressionKind,
}

/// What an expression is.
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
        arguments: Vec<Passed>,
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
    /// A literal number.
    Number,
    /// A literal text, in one piece or in several.
    Text(String),
    /// `True`, `False`, or `None`.
    Constant(Option<bool>),
    /// A list, tuple or set written out.
    Several(Vec<Expression>),
    /// An f-string: its values become text.
    Formatted(Vec<Expression>),
    /// A comprehension.
    Comprehension {
        /// The elements that it makes.
        elements: Vec<Expression>,
        /// The names of each round.
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
    /// `lambda`: it runs later.
    Lambda(Vec<Expression>),
    /// `yield` and `yield from`.
    Yield(Vec<Expression>),
    /// Any other, with the expressions in it.
    Other(Vec<Expression>),
}

/// An argument of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Passed {
    /// Its keyword.
    pub name: Option<String>,
    /// `*args` or `**kwargs`
    pub starred: bool,
    /// The value.
    pub value: Expression,
}

/// An operator between two values.
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
    /// The expressions directly in it.
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

    /// Visits this expression and all in it, from the outside in.
    pub fn visit<'a>(&'a self, see: &mut impl FnMut(&'a Self)) {
        see(self);
        for part in self.parts() {
            part.visit(see);
        }
    }

    /// Whether this or any expression in it is such a one.
    pub fn any(&self, is: &impl Fn(&Self) -> bool) -> bool {
        is(self) || self.parts().into_iter().any(|part| part.any(is))
    }

    /// Whether a name stands in it.
    pub fn mentions(&self, name: &str) -> bool {
        self.any(&|part| part.name() == Some(name))
    }

    /// Its name, where it is one.
    pub fn name(&self) -> Option<&str> {
        match &self.kind {
            ExpressionKind::Name(name) => Some(name),
            _ => None,
        }
    }

    /// `a.b.c`, where it is names joined by dots.
    pub fn path(&self) -> Option<String> {
        match &self.kind {
            ExpressionKind::Name(name) => Some(name.clone()),
            ExpressionKind::Attribute { of, name } => Some(format!("{}.{name}", of.path()?)),
            _ => None,
        }
    }

    /// The last name of a path: of `a.b.c`, it is `c`.
    pub fn last_name(&self) -> Option<&str> {
        match &self.kind {
            ExpressionKind::Name(name) | ExpressionKind::Attribute { name, .. } => Some(name),
            _ => None,
        }
    }

    /// The name that a path of attributes, items and calls begins with.
    pub fn root(&self) -> Option<&str> {
        match &self.kind {
            ExpressionKind::Name(name) => Some(name),
            ExpressionKind::Attribute { of, .. } | ExpressionKind::Item { of, .. } => of.root(),
            _ => None,
        }
    }

    /// What is called, and with what.
    pub fn call(&self) -> Option<(&Self, &[Passed])> {
        match &self.kind {
            ExpressionKind::Call { callee, arguments } => Some((callee, arguments)),
            _ => None,
        }
    }

    /// How deep the tree under it is.
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
                    Passed { name: None, starred: true, value: expression(&starred.value) }
                }
                value => Passed { name: None, starred: false, value: expression(value) },
            });
            let keywords = call.arguments.keywords.iter().map(|keyword| Passed {
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

/// Collects the outermost expressions, without those of statements within.
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

/// The expressions of a statement itself, and not of the statements in it.
pub(crate) fn expressions_of(of: &Stmt) -> Vec<Expression> {
    let mut found = Outermost::default();
    source_order::walk_stmt(&mut found, of);
    found.0
}
