//! Conditions that count iterations or search messages, and the effects of `except` bodies.

use std::sync::Arc;

use ruff_python_ast::{BoolOp, CmpOp, Expr, Operator, Stmt, UnaryOp};

use super::definitions::{dotted, dotted_item};
use super::statement::literal;
use super::{Walker, span};
use crate::facts::{CounterBinding, CounterTest, GuardTest, MessageSearch, Residue};
use crate::facts::{Kind, Value};

impl<'a> Walker<'a> {
    /// Evaluates a condition and returns its meaning.
    pub(super) fn condition(&mut self, test: &'a Expr) -> Arc<GuardTest> {
        if self.depth > super::MAX_DEPTH {
            return Arc::default();
        }
        self.depth += 1;
        let found = self.condition_inner(test);
        self.depth -= 1;
        found
    }

    fn condition_inner(&mut self, test: &'a Expr) -> Arc<GuardTest> {
        match test {
            Expr::BoolOp(node) => {
                let parts: Vec<_> = node.values.iter().map(|part| self.condition(part)).collect();
                let or = matches!(node.op, BoolOp::Or);
                let mut found = GuardTest::default();
                for part in &parts {
                    if found.counted.is_none() && part.counted.is_some() {
                        found.counted.clone_from(&part.counted);
                        found.alternative |= part.alternative;
                        found.condition |= part.condition;
                        found.negated = part.negated;
                    }
                    if found.message.is_none() {
                        found.message.clone_from(&part.message);
                    }
                    found.training |= !or && part.training;
                }
                if found.counted.is_some() && parts.len() > 1 {
                    // `not a and not b` is `not (a or b)`: the role of the other part depends on the sign.
                    if or == found.negated {
                        found.condition = true;
                    } else {
                        found.alternative = true;
                    }
                }
                Arc::new(found)
            }
            Expr::UnaryOp(node) if matches!(node.op, UnaryOp::Not) => {
                let inner = self.condition(&node.operand);
                if inner.counted.is_none() && inner.message.is_none() {
                    return Arc::default();
                }
                let mut found = (*inner).clone();
                found.negated = !found.negated;
                found.training = false;
                Arc::new(found)
            }
            Expr::BinOp(node) if matches!(node.op, Operator::Mod) => {
                self.eval(test);
                let counted = self.modulo(test, Residue::Zero);
                Arc::new(GuardTest { negated: counted.is_some(), counted, ..GuardTest::default() })
            }
            Expr::Compare(node) if node.ops.len() == 1 => self.comparison(test, node),
            Expr::Named(node) => {
                let found = self.condition(&node.value);
                self.eval(test);
                found
            }
            _ => {
                let value = self.eval(test);
                match value.kind {
                    Kind::Test(found) => found,
                    _ if self.slice(span(test)) == "self.training" => {
                        Arc::new(GuardTest { training: true, ..GuardTest::default() })
                    }
                    _ => Arc::default(),
                }
            }
        }
    }

    fn comparison(&mut self, test: &'a Expr, node: &'a ruff_python_ast::ExprCompare) -> Arc<GuardTest> {
        let (left, right) = (&*node.left, &node.comparators[0]);
        let left_value = self.eval(left);
        let right_value = self.eval(right);
        match node.ops[0] {
            op @ (CmpOp::In | CmpOp::NotIn) => {
                let text = left_value.text().map(str::to_owned);
                let exception = match right_value.kind {
                    Kind::ExceptionText(id) => Some(id),
                    _ => None,
                };
                let (Some(text), Some(handler)) = (text, exception) else { return Arc::default() };
                if self.recording() {
                    self.facts.handlers[handler.index()].reads_message |= is_memory_message(&text);
                }
                // `not in` followed by a raise is not handling of an error.
                if op == CmpOp::NotIn {
                    return Arc::default();
                }
                if self.recording() {
                    let site = self.site();
                    let exception = self.facts.handlers[handler.index()].name.clone();
                    let found = MessageSearch { span: span(test), text: text.clone(), exception, site };
                    self.facts.searches.push(found);
                }
                Arc::new(GuardTest { message: Some(text), ..GuardTest::default() })
            }
            op @ (CmpOp::Eq | CmpOp::NotEq | CmpOp::GtE) => {
                let counted = self.counts(test, left, right, &right_value, op);
                let negated = counted.is_some() && matches!(op, CmpOp::NotEq);
                Arc::new(GuardTest { counted, negated, ..GuardTest::default() })
            }
            _ => Arc::default(),
        }
    }

    fn counts(
        &mut self,
        test: &'a Expr,
        left: &'a Expr,
        right: &'a Expr,
        right_value: &Value,
        op: CmpOp,
    ) -> Option<CounterTest> {
        if let Expr::BinOp(modulo) = left
            && matches!(modulo.op, Operator::Mod)
            && !matches!(op, CmpOp::GtE)
        {
            let period = self.slice(span(&*modulo.right));
            let minus_one = match right {
                Expr::BinOp(node) if matches!(node.op, Operator::Sub) => {
                    self.slice(span(&*node.left)) == period && literal(&node.right) == Some(1)
                }
                other => literal(other).is_some() && literal(other) == literal(&modulo.right).map(|k| k - 1),
            };
            let residue = match right_value.int() {
                Some(0) => Residue::Zero,
                _ if minus_one => Residue::Last,
                _ => Residue::Other,
            };
            let mut counted = self.modulo(left, residue)?;
            counted.span = span(test);
            return Some(counted);
        }
        // `count == k` with a counter that is reset; the reset is checked later.
        let counter = dotted(left, self.text)?;
        let period = dotted(right, self.text).is_some() || literal(right).is_some_and(|number| number > 1);
        if !period || matches!(op, CmpOp::NotEq) {
            return None;
        }
        let (_, bound) = self.lookup(counter);
        Some(CounterTest {
            span: span(test),
            counter: counter.to_owned(),
            counter_span: span(left),
            dividend: span(left),
            bound,
            offset: 0,
            scaled: false,
            period: span(right),
            rounds: right_value.int(),
            residue: Residue::Reached,
        })
    }

    /// Parses `(counter // n + c) % period`.
    fn modulo(&mut self, expression: &'a Expr, residue: Residue) -> Option<CounterTest> {
        let Expr::BinOp(node) = expression else { return None };
        let mut inner = &*node.left;
        let (mut offset, mut scaled) = (0, false);
        let counter = loop {
            match inner {
                Expr::BinOp(part) => match part.op {
                    Operator::Add | Operator::Sub => {
                        let sign = if matches!(part.op, Operator::Add) { 1 } else { -1 };
                        if let Some(number) = literal(&part.right) {
                            offset += sign * number;
                            inner = &part.left;
                        } else if let Some(number) = literal(&part.left) {
                            offset += number;
                            inner = &part.right;
                        } else {
                            return None;
                        }
                    }
                    Operator::FloorDiv => {
                        scaled = true;
                        inner = &part.left;
                    }
                    _ => return None,
                },
                other => break dotted_item(other, self.text)?,
            }
        };
        let (_, bound) = self.lookup(counter);
        let rounds = self.eval(&node.right).int();
        Some(CounterTest {
            span: span(expression),
            counter: counter.to_owned(),
            counter_span: span(inner),
            dividend: span(&*node.left),
            bound: if counter.contains(['.', '[']) { CounterBinding::Elsewhere } else { bound },
            offset,
            scaled,
            period: span(&*node.right),
            rounds,
            residue,
        })
    }
}

/// Returns `true` for texts that identify an out-of-memory error.
pub(super) fn is_memory_message(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower.contains("out of memory") || lower.contains("alloc_failed")
}

/// Effects of an `except` body.
#[derive(Debug, Default)]
pub(super) struct HandlerEffects {
    pub(super) leaves: bool,
    pub(super) raises: bool,
    tells: bool,
    does: bool,
}

impl HandlerEffects {
    /// Returns `true` if it only prints, logs, or has no effect.
    pub(super) const fn only_reports(&self) -> bool {
        !self.does && !self.raises
    }

    pub(super) fn read(&mut self, body: &[Stmt], depth: usize) {
        if depth > 20 {
            self.does = true;
            return;
        }
        for statement in body {
            match statement {
                Stmt::Raise(_) => {
                    self.raises = true;
                    self.leaves = true;
                }
                Stmt::Assert(_) => self.raises = true,
                Stmt::Return(node) => {
                    self.leaves = true;
                    // Returning a value informs the caller.
                    self.does |= node.value.is_some();
                }
                Stmt::Break(_) => {
                    self.leaves = true;
                    self.does = true;
                }
                Stmt::Continue(_) | Stmt::Pass(_) => {}
                Stmt::Expr(node) => match &*node.value {
                    Expr::Call(call) if is_reporting(&call.func) => self.tells = true,
                    Expr::StringLiteral(_) | Expr::EllipsisLiteral(_) => {}
                    Expr::Call(call) if is_exit(&call.func) => {
                        self.raises = true;
                        self.leaves = true;
                    }
                    _ => self.does = true,
                },
                Stmt::If(node) => {
                    self.read(&node.body, depth + 1);
                    for clause in &node.elif_else_clauses {
                        self.read(&clause.body, depth + 1);
                    }
                }
                _ => self.does = true,
            }
        }
    }
}

fn is_exit(function: &Expr) -> bool {
    match function {
        Expr::Name(name) => ["exit", "quit"].contains(&name.id.as_str()),
        Expr::Attribute(attribute) => {
            ["exit", "_exit", "abort", "fail"].contains(&attribute.attr.id.as_str())
        }
        _ => false,
    }
}

/// Returns `true` for printing, logging and the like; emptying the cache does not handle the error either.
fn is_reporting(function: &Expr) -> bool {
    match function {
        Expr::Name(name) => ["print", "pprint", "rprint"].contains(&name.id.as_str()),
        Expr::Attribute(attribute) => [
            "debug",
            "info",
            "warning",
            "warn",
            "error",
            "exception",
            "critical",
            "log",
            "print",
            "write",
            "print_exc",
            "empty_cache",
            "collect",
            "memory_summary",
        ]
        .contains(&attribute.attr.id.as_str()),
        _ => false,
    }
}
