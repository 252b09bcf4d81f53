//! Replaces attention that is written out with `scaled_dot_product_attention`, which does not materialise the
//! matrix of scores.

mod numbers;
mod parts;

use memfit_source::{Edit, Expression, Span, Statement, StatementKind};

use self::parts::{
    Factor, Operands, Product, factor, kept_pairs, matrix_product, scaled_product, softmax_of,
};
use super::{Edits, operand};
use crate::Why;
use crate::code::{Path, Scene, Script, Site};

/// Maximum number of statements from the product of queries and keys to that with the values.
const MAX_STATEMENTS: usize = 10;

/// Finds attention that the statement at a line belongs to: a product of queries and keys, scaled, masked, a
/// softmax, and a product with the values, in consecutive statements or within one.
pub(super) fn change(scene: &Scene<'_>, site: &Site) -> Result<Option<Edits>, Why> {
    let script = &*scene.script;
    let Some(path) = script.statement_at_line(site.line) else { return Ok(None) };
    let (suite, index) = path.suite();
    let mut refusal = None;
    for first in (index.saturating_sub(MAX_STATEMENTS - 1)..=index).rev() {
        let Some(attention) = Attention::read(script, &suite[first..]) else { continue };
        if first + attention.statements <= index {
            continue;
        }
        let statements = &suite[first..first + attention.statements];
        match attention.rewritten(script, &path, statements) {
            Ok(edits) => return Ok(Some(edits)),
            Err(why) => refusal = Some(why),
        }
    }
    refusal.map_or(Ok(None), Err)
}

/// Attention in consecutive statements.
struct Attention<'e> {
    product: Product<'e>,
    /// The scale, if it is not part of the first product.
    scale: Option<Factor<'e>>,
    /// Expression that is true for the pairs that count.
    keep: Option<String>,
    value: &'e Expression,
    /// `true` if the values are multiplied with transposed weights, as in convolutional networks.
    turned: bool,
    /// The product with the values.
    sum: Span,
    /// The names of scores and weights.
    names: Vec<&'e str>,
    /// Number of statements.
    statements: usize,
    /// Reason why it cannot be one call.
    problem: Option<Why>,
}

/// Names of scores or weights on the way to the product with the values.
#[derive(Clone, Copy)]
struct State<'e> {
    name: &'e str,
    is_weights: bool,
}

impl<'e> Attention<'e> {
    /// Reads attention that begins at the first of these statements.
    fn read(script: &Script, suite: &'e [Statement]) -> Option<Self> {
        let first = suite.first()?;
        if let Some(whole) = Self::within_one(script, first) {
            return Some(whole);
        }
        let (name, value) = assigned(first)?;
        let weights = softmax_of(script, value);
        let product = scaled_product(script, weights.unwrap_or(value))?;
        let mut state = State { name, is_weights: weights.is_some() };
        let mut read = Self::from_product(product);
        read.names.push(name);
        for (count, statement) in suite.iter().enumerate().take(MAX_STATEMENTS).skip(1) {
            if state.is_weights && read.ends_with(script, statement, state.name) {
                read.statements = count + 1;
                return Some(read);
            }
            state = read.follow(script, statement, state)?;
        }
        None
    }

    fn from_product(product: Product<'e>) -> Self {
        Self {
            value: product.right,
            product,
            scale: None,
            keep: None,
            turned: false,
            sum: Span::new(0, 0),
            names: Vec::new(),
            statements: 1,
            problem: None,
        }
    }

    /// Reads `softmax(q @ k.mT * scale, -1) @ v` within one statement.
    fn within_one(script: &Script, statement: &'e Statement) -> Option<Self> {
        let mut found = None;
        for expression in statement.expressions() {
            expression.visit(&mut |each| {
                let Some((left, right, _)) = matrix_product(script, each) else { return };
                let product = softmax_of(script, left).and_then(|scores| scaled_product(script, scores));
                if let Some(product) = product {
                    found = Some(Self { value: right, sum: each.span, ..Self::from_product(product) });
                }
            });
        }
        found
    }

    /// Reads the product with the values in a statement, if it is the only use of the weights there.
    fn ends_with(&mut self, script: &Script, statement: &'e Statement, weights: &str) -> bool {
        let mut uses = 0;
        let mut found = None;
        for expression in statement.expressions() {
            expression.visit(&mut |each| {
                uses += usize::from(each.name() == Some(weights));
                let Some((left, right, _)) = matrix_product(script, each) else { return };
                if left.name() == Some(weights) {
                    found = Some((each.span, right, false));
                } else if parts::transposed(script, right).is_some_and(|(of, _)| of.name() == Some(weights)) {
                    found = Some((each.span, left, true));
                }
            });
        }
        // The target of an assignment may have the same name.
        let targets = statement.targets.iter().filter(|target| target.name() == Some(weights)).count();
        let Some((span, value, turned)) = found.filter(|_| uses <= 1 + targets) else { return false };
        (self.sum, self.value, self.turned) = (span, value, turned);
        true
    }

    /// Reads a statement between the products. Returns `None` if scores or weights do not go on from it.
    fn follow(&mut self, script: &Script, statement: &'e Statement, state: State<'e>) -> Option<State<'e>> {
        let told = |text: &str| format!("`{}` {text}", script.slice(statement.span).trim());
        let Some((target, value)) = assigned(statement) else {
            self.problem.get_or_insert_with(|| told("is between its products"));
            return Some(state);
        };
        if !value.mentions(state.name) {
            self.problem.get_or_insert_with(|| told("is between its products"));
            return (target != state.name).then_some(state);
        }
        self.names.push(target);
        if let Some(scores) = softmax_of(script, value).filter(|_| !state.is_weights) {
            if scores.name() != Some(state.name) {
                self.problem.get_or_insert_with(|| told("changes the scores as well"));
            }
            return Some(State { name: target, is_weights: true });
        }
        if !state.is_weights {
            if let Some(scale) = factor(value, state.name).filter(|_| self.has_no_scale()) {
                self.scale = Some(scale);
                return Some(State { name: target, ..state });
            }
            if let Some(keep) = kept_pairs(script, value, state.name).filter(|_| self.keep.is_none()) {
                self.keep = Some(keep);
                return Some(State { name: target, ..state });
            }
        }
        let text = script.slice(value.span);
        // A softmax over another dimension, or with another type, still makes weights.
        let makes_weights = !state.is_weights && text.contains("softmax");
        self.problem.get_or_insert_with(|| {
            if text.contains("drop") {
                told("has to become `dropout_p=`, and drops other elements there")
            } else {
                told("is no part of that call")
            }
        });
        Some(State { name: target, is_weights: state.is_weights || makes_weights })
    }

    const fn has_no_scale(&self) -> bool {
        self.scale.is_none() && self.product.scale.is_none() && self.keep.is_none()
    }

    /// The edits that make it one call.
    fn rewritten(mut self, script: &Script, path: &Path<'_>, all: &[Statement]) -> Result<Edits, Why> {
        let (Some(first), Some(last)) = (all.first(), all.last()) else {
            return Err("it has no code".into());
        };
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        let whole = Span::new(first.span.start, last.span.end);
        let out = assigned(last).map_or("", |(out, _)| out);
        if let Some(name) = self.names.iter().find(|name| is_used_elsewhere(path, whole, name, out)) {
            return Err(format!("`{name}` is used again, so the full attention matrix is needed"));
        }
        if script.slice(whole).contains('#') {
            return Err("there are comments between its statements".to_owned());
        }
        let call = self.call(script, path)?;
        let mut edits = Edits::default();
        if first.span != last.span {
            edits.push(Edit::replace(Span::new(first.span.start, last.span.start), String::new()));
        }
        edits.push(Edit::replace(self.sum, call));
        edits.import(script, "torch");
        Ok(edits)
    }

    fn call(&self, script: &Script, path: &Path<'_>) -> Result<String, Why> {
        let scale = match self.scale.or(self.product.scale) {
            // Without an explicit scale, PyTorch divides by the square root of the last dimension.
            None => "1.0".to_owned(),
            Some(Factor { of, divides }) => {
                if !numbers::is_number(script, path, of) {
                    let text = script.slice(of.span);
                    return Err(format!(
                        "the scale `{text}` may be a tensor, which `scaled_dot_product_attention` does not accept"
                    ));
                }
                if divides {
                    format!("1 / {}", operand(script, of))
                } else {
                    script.slice(of.span).to_owned()
                }
            }
        };
        // The kernels without a matrix of scores take four dimensions, and rows that are contiguous.
        let is_single = self.product.dimensions == Some(3);
        if is_single && self.keep.is_some() {
            return Err("its mask may have three dimensions, where the call takes four".to_owned());
        }
        let plain = |of: &Expression| {
            if is_single { operand(script, of) } else { script.slice(of.span).to_owned() }
        };
        let turned = |of: &Expression| format!("{}.transpose(-2, -1).contiguous()", operand(script, of));
        let (query, key) = match self.product.operands {
            Operands::TransposedKey(key) => (plain(self.product.left), plain(key)),
            Operands::TransposedQuery => {
                (format!("{}.contiguous()", operand(script, self.product.left)), turned(self.product.right))
            }
        };
        let value = if self.turned { turned(self.value) } else { plain(self.value) };
        let wide = |text: String| if is_single { format!("{text}.unsqueeze(1)") } else { text };
        let keep = self.keep.as_ref().map_or_else(String::new, |keep| format!(", attn_mask={keep}"));
        let mut call = format!(
            "torch.nn.functional.scaled_dot_product_attention({}, {}, {}{keep}, scale={scale})",
            wide(query),
            wide(key),
            wide(value)
        );
        if is_single {
            call += ".squeeze(1)";
        }
        if self.turned {
            call += ".transpose(-2, -1)";
        }
        Ok(call)
    }
}

/// Matches `name = value`.
fn assigned(statement: &Statement) -> Option<(&str, &Expression)> {
    let ([target], [value]) = (&statement.targets[..], &statement.values[..]) else { return None };
    (statement.kind == StatementKind::Assign).then_some(())?;
    Some((target.name()?, value))
}

/// Returns `true` if a name is used elsewhere in the function.
fn is_used_elsewhere(path: &Path<'_>, whole: Span, name: &str, out: &str) -> bool {
    let mut found = false;
    for statement in path.scope() {
        statement.visit(&mut |each| {
            let outside = !whole.contains(each.span);
            found |= outside && each.expressions().any(|expression| expression.mentions(name));
        });
    }
    // A name that is bound again refers to another value from then on.
    found && name != out
}
