//! Replaces hand-written attention with `scaled_dot_product_attention`, which does not materialise the score
//! matrix.

use memfit_source::{Edit, Expression, ExpressionKind as Kind, Operator, Span, Statement, StatementKind};

use super::{Edits, operand};
use crate::Why;
use crate::code::{Path, Scene, Script, Site};

/// Number of statements of hand-written attention: product, softmax, weighted sum.
const ATTENTION_STATEMENTS: usize = 3;

/// Matches `scores = q @ k.transpose(-2, -1) * scale`, `weights = scores.softmax(-1)`, `out = weights @ v` in
/// consecutive statements.
pub(super) fn change(scene: &Scene<'_>, site: &Site) -> Result<Option<Edits>, Why> {
    let script = &*scene.script;
    let Some(path) = script.statement_at_line(site.line) else { return Ok(None) };
    let (suite, index) = path.suite();
    let firsts = index.saturating_sub(ATTENTION_STATEMENTS - 1)..=index;
    let mut refusal = None;
    for first in firsts {
        let Some([product, softmax, sum]) = suite.get(first..first + ATTENTION_STATEMENTS) else { continue };
        match rewritten(script, &path, [product, softmax, sum]) {
            Ok(Some(text)) => {
                let mut edits = Edits::default();
                edits.push(Edit::replace(Span::new(product.span.start, sum.span.end), text));
                edits.import(script, "torch");
                return Ok(Some(edits));
            }
            Ok(None) => {}
            Err(why) => refusal = Some(why),
        }
    }
    refusal.map_or(Ok(None), Err)
}

/// Statement that replaces the three; `None` if they are not attention.
fn rewritten(script: &Script, path: &Path<'_>, three: [&Statement; 3]) -> Result<Option<String>, Why> {
    let [product, softmax, sum] = three;
    let (Some((scores, product)), Some((weights, softmax)), Some((out, sum))) =
        (assigned(product), assigned(softmax), assigned(sum))
    else {
        return Ok(None);
    };
    let Some((query, key, scale)) = scaled_product(script, product) else { return Ok(None) };
    if !is_softmax_of(script, softmax, scores) {
        return Ok(None);
    }
    let Some((left, value)) = matrix_product(script, sum) else { return Ok(None) };
    if left.name() != Some(weights) {
        return Ok(None);
    }
    let whole = Span::new(three[0].span.start, three[2].span.end);
    if let Some(name) = [scores, weights].into_iter().find(|name| is_used_elsewhere(path, whole, name, out)) {
        return Err(format!("`{name}` is used again, so the full attention matrix is needed"));
    }
    if script.slice(whole).contains('#') {
        return Err("there are comments between its statements".to_owned());
    }
    let scale = match scale {
        // Without an explicit scale, PyTorch divides by the square root of the last dimension.
        None => "1.0".to_owned(),
        Some((divides, scale)) => {
            if !is_number(script, path, scale) {
                let text = script.slice(scale.span);
                return Err(format!(
                    "the scale `{text}` may be a tensor, which `scaled_dot_product_attention` does not accept"
                ));
            }
            let text = operand(script, scale);
            if divides { format!("1 / {text}") } else { script.slice(scale.span).to_owned() }
        }
    };
    let text = |of: &Expression| script.slice(of.span);
    Ok(Some(format!(
        "{out} = torch.nn.functional.scaled_dot_product_attention({}, {}, {}, scale={scale})",
        text(query),
        text(key),
        text(value)
    )))
}

/// Matches `name = value`.
fn assigned(statement: &Statement) -> Option<(&str, &Expression)> {
    let ([target], [value]) = (&statement.targets[..], &statement.values[..]) else { return None };
    (statement.kind == StatementKind::Assign).then_some(())?;
    Some((target.name()?, value))
}

type Scaled<'e> = (&'e Expression, &'e Expression, Option<(bool, &'e Expression)>);

/// Matches `q @ k.transpose(-2, -1) / scale`: query, key, scale, and whether it divides.
fn scaled_product<'e>(script: &Script, of: &'e Expression) -> Option<Scaled<'e>> {
    let plain = |of: &'e Expression| {
        let (query, key) = matrix_product(script, of)?;
        Some((query, transposed(script, key)?))
    };
    if let Some((query, key)) = plain(of) {
        return Some((query, key, None));
    }
    let Kind::Binary { left, operator, right } = &of.kind else { return None };
    match operator {
        Operator::Divide => plain(left).map(|(query, key)| (query, key, Some((true, &**right)))),
        Operator::Multiply => plain(left)
            .map(|(query, key)| (query, key, Some((false, &**right))))
            .or_else(|| plain(right).map(|(query, key)| (query, key, Some((false, &**left))))),
        _ => None,
    }
}

/// Matches `a @ b` or `torch.matmul(a, b)`.
fn matrix_product<'e>(script: &Script, of: &'e Expression) -> Option<(&'e Expression, &'e Expression)> {
    match &of.kind {
        Kind::Binary { left, operator: Operator::MatrixMultiply, right } => Some((left, right)),
        Kind::Call { arguments, .. } => {
            let named = matches!(script.called(of.span), Some("torch.matmul" | "torch.bmm"));
            let [left, right] = &arguments[..] else { return None };
            let plain = [left, right].iter().all(|each| each.name.is_none() && !each.starred);
            (named && plain).then_some((&left.value, &right.value))
        }
        _ => None,
    }
}

/// Matches `k.transpose(-2, -1)` or `k.mT`, and returns `k`.
fn transposed<'e>(script: &Script, of: &'e Expression) -> Option<&'e Expression> {
    if let Kind::Attribute { of, name } = &of.kind {
        return (name == "mT").then_some(of);
    }
    let (callee, arguments) = of.call()?;
    let Kind::Attribute { of, name } = &callee.kind else { return None };
    let [one, other] = arguments else { return None };
    let sizes = [script.slice(one.value.span), script.slice(other.value.span)];
    (name == "transpose" && matches!(sizes, ["-2", "-1"] | ["-1", "-2"])).then_some(of)
}

/// Returns `true` if an expression is the softmax of a name over the last dimension, and nothing else.
fn is_softmax_of(script: &Script, of: &Expression, name: &str) -> bool {
    let Some((callee, arguments)) = of.call() else { return false };
    let function = matches!(script.called(of.span), Some("torch.softmax" | "torch.nn.functional.softmax"));
    let method = matches!(&callee.kind, Kind::Attribute { of, name: method }
        if method == "softmax" && of.name() == Some(name));
    let rest = match (function, arguments) {
        (true, [first, rest @ ..]) if first.value.name() == Some(name) => rest,
        (false, rest) if method => rest,
        _ => return false,
    };
    let [size] = rest else { return false };
    size.name.as_deref().is_none_or(|name| name == "dim") && script.slice(size.value.span) == "-1"
}

/// Returns `true` if a name of the three statements is used elsewhere in the function.
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

/// Returns `true` if an expression is a plain number, not a tensor.
fn is_number(script: &Script, path: &Path<'_>, of: &Expression) -> bool {
    match &of.kind {
        Kind::Number => true,
        Kind::Call { callee, .. } => {
            let known = script.called(of.span).unwrap_or_default();
            matches!(known, "math.sqrt" | "math.pow" | "numpy.sqrt")
                || matches!(callee.name(), Some("len" | "float" | "int"))
                || matches!(&callee.kind, Kind::Attribute { name, .. } if name == "size")
        }
        Kind::Item { of, .. } => is_shape(of),
        Kind::Binary { left, right, .. } => is_number(script, path, left) && is_number(script, path, right),
        Kind::Other(parts) => !parts.is_empty() && parts.iter().all(|part| is_number(script, path, part)),
        Kind::Name(name) => {
            let bound = bound_in(path.scope(), &|target| target.name() == Some(name));
            !is_parameter(path, name) && all_numbers(script, path, &bound)
        }
        Kind::Attribute { name, .. } => {
            let same = |target: &Expression| matches!(&target.kind, Kind::Attribute { name: other, .. } if other == name);
            all_numbers(script, path, &bound_in(&script.statements, &same))
        }
        _ => false,
    }
}

fn is_shape(of: &Expression) -> bool {
    matches!(&of.kind, Kind::Attribute { name, .. } if name == "shape")
}

fn is_parameter(path: &Path<'_>, name: &str) -> bool {
    path.function().is_some_and(|function| function.targets.iter().any(|each| each.name() == Some(name)))
}

/// Binding of a name: statement, value, and `true` if the value is unpacked.
type Binding<'s> = (&'s Statement, &'s Expression, bool);

fn all_numbers(script: &Script, path: &Path<'_>, bound: &[Binding<'_>]) -> bool {
    !bound.is_empty()
        && bound.iter().all(|(statement, value, unpacked)| {
            // For `batch, length, width = x.shape`. Names bound by each other would recurse endlessly.
            let numbers = if *unpacked { is_shape(value) } else { is_root(script, path, value) };
            numbers && statement.kind == StatementKind::Assign
        })
}

/// Returns `true` for `x.shape[-1] ** -0.5`, `1 / math.sqrt(d)` and similar arithmetic on numbers.
fn is_root(script: &Script, path: &Path<'_>, of: &Expression) -> bool {
    match &of.kind {
        Kind::Binary { left, right, .. } => is_root(script, path, left) && is_root(script, path, right),
        Kind::Other(parts) => !parts.is_empty() && parts.iter().all(|part| is_root(script, path, part)),
        Kind::Name(_) | Kind::Attribute { .. } => false,
        _ => is_number(script, path, of),
    }
}

fn bound_in<'s>(body: &'s [Statement], is: &impl Fn(&Expression) -> bool) -> Vec<Binding<'s>> {
    let mut found = Vec::new();
    for statement in body {
        statement.visit(&mut |each| {
            let value = each.values.first();
            for target in &each.targets {
                let unpacked = matches!(target.kind, Kind::Several(_)) && target.parts().into_iter().any(is);
                if let Some(value) = value.filter(|_| is(target) || unpacked) {
                    found.push((each, value, unpacked));
                }
            }
        });
    }
    found
}
