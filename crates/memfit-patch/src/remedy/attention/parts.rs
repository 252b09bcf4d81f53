//! The expressions that attention is written with.

use memfit_source::{Expression, ExpressionKind as Kind, Operator};

use crate::code::Script;
use crate::remedy::operand;

/// Product of queries and keys.
pub(super) struct Product<'e> {
    pub(super) left: &'e Expression,
    pub(super) right: &'e Expression,
    pub(super) operands: Operands<'e>,
    pub(super) scale: Option<Factor<'e>>,
    /// Number of dimensions, if the code shows it.
    pub(super) dimensions: Option<u8>,
}

/// The operand of a product that is transposed.
#[derive(Clone, Copy)]
pub(super) enum Operands<'e> {
    /// `q @ k.mT`: the keys.
    TransposedKey(&'e Expression),
    /// `q.mT @ k`, of features in (batch, channels, places).
    TransposedQuery,
}

/// Number that scores are multiplied with, or divided by.
#[derive(Clone, Copy)]
pub(super) struct Factor<'e> {
    pub(super) of: &'e Expression,
    pub(super) divides: bool,
}

/// Matches `q @ k.transpose(-2, -1) / scale`.
pub(super) fn scaled_product<'e>(script: &Script, of: &'e Expression) -> Option<Product<'e>> {
    if let Some(product) = product(script, of) {
        return Some(product);
    }
    let (inner, scale) = factors(of).into_iter().find(|(inner, _)| product(script, inner).is_some())?;
    Some(Product { scale: Some(scale), ..product(script, inner)? })
}

fn product<'e>(script: &Script, of: &'e Expression) -> Option<Product<'e>> {
    let (left, right, batched) = matrix_product(script, of)?;
    let (operands, dimensions) = match (transposed(script, right), transposed(script, left)) {
        (Some((key, dimensions)), _) => (Operands::TransposedKey(key), dimensions),
        (None, Some((_, dimensions))) => (Operands::TransposedQuery, dimensions),
        (None, None) => return None,
    };
    let dimensions = if batched { Some(3) } else { dimensions };
    Some(Product { left, right, operands, scale: None, dimensions })
}

/// `scores * scale`, `scale * scores` or `scores / scale` as scores and factor.
fn factors(of: &Expression) -> Vec<(&Expression, Factor<'_>)> {
    let Kind::Binary { left, operator, right } = &of.kind else { return Vec::new() };
    match operator {
        Operator::Divide => vec![(&**left, Factor { of: right, divides: true })],
        Operator::Multiply => vec![
            (&**left, Factor { of: right, divides: false }),
            (&**right, Factor { of: left, divides: false }),
        ],
        _ => Vec::new(),
    }
}

/// Matches `name * scale`, and returns the factor.
pub(super) fn factor<'e>(of: &'e Expression, name: &str) -> Option<Factor<'e>> {
    factors(of).into_iter().find(|(inner, _)| inner.name() == Some(name)).map(|(_, factor)| factor)
}

/// Matches `a @ b`, `torch.matmul(a, b)` or `torch.bmm(a, b)`, and returns `true` for the last, which takes
/// three dimensions.
pub(super) fn matrix_product<'e>(
    script: &Script,
    of: &'e Expression,
) -> Option<(&'e Expression, &'e Expression, bool)> {
    match &of.kind {
        Kind::Binary { left, operator: Operator::MatrixMultiply, right } => Some((left, right, false)),
        Kind::Call { arguments, .. } => {
            let called = script.called(of.span);
            let named = matches!(called, Some("torch.matmul" | "torch.bmm"));
            let [left, right] = &arguments[..] else { return None };
            let plain = [left, right].iter().all(|each| each.name.is_none() && !each.starred);
            (named && plain).then_some((&left.value, &right.value, called == Some("torch.bmm")))
        }
        _ => None,
    }
}

/// Matches `k.transpose(-2, -1)`, `k.permute(0, 2, 1)` or `k.mT`, and returns `k`, and the number of
/// dimensions if the call shows it.
pub(super) fn transposed<'e>(script: &Script, of: &'e Expression) -> Option<(&'e Expression, Option<u8>)> {
    if let Kind::Attribute { of, name } = &of.kind {
        return (name == "mT").then_some((&**of, None));
    }
    let (callee, arguments) = of.call()?;
    let Kind::Attribute { of, name } = &callee.kind else { return None };
    let numbers: Vec<&str> = arguments.iter().map(|each| script.slice(each.value.span)).collect();
    let dimensions = match (name.as_str(), numbers.as_slice()) {
        ("transpose" | "swapaxes" | "swapdims", ["-2", "-1"] | ["-1", "-2"]) => None,
        ("transpose", ["1", "2"] | ["2", "1"]) | ("permute", ["0", "2", "1"]) => Some(3),
        ("transpose", ["2", "3"] | ["3", "2"]) | ("permute", ["0", "1", "3", "2"]) => Some(4),
        _ => return None,
    };
    Some((of, dimensions))
}

/// Matches a softmax over the last dimension, and returns the scores.
pub(super) fn softmax_of<'e>(script: &Script, of: &'e Expression) -> Option<&'e Expression> {
    let (callee, arguments) = of.call()?;
    let function = matches!(script.called(of.span), Some("torch.softmax" | "torch.nn.functional.softmax"));
    let (scores, rest) = match (&callee.kind, arguments) {
        (_, [first, rest @ ..]) if function => (&first.value, rest),
        (Kind::Attribute { of, name }, rest) if name == "softmax" => (&**of, rest),
        _ => return None,
    };
    let [size] = rest else { return None };
    let last = script.slice(size.value.span) == "-1";
    (last && size.name.as_deref().is_none_or(|name| name == "dim")).then_some(scores)
}

/// Matches `name.masked_fill(mask, -inf)`, and returns the expression that is true for the pairs that count.
pub(super) fn kept_pairs(script: &Script, of: &Expression, name: &str) -> Option<String> {
    let (callee, arguments) = of.call()?;
    let Kind::Attribute { of, name: method } = &callee.kind else { return None };
    let [mask, fill] = arguments else { return None };
    let infinity: String = script.slice(fill.value.span).split_whitespace().collect();
    let is_infinity = matches!(
        infinity.as_str(),
        "float(\"-inf\")"
            | "float('-inf')"
            | "-float(\"inf\")"
            | "-float('inf')"
            | "-torch.inf"
            | "-math.inf"
            | "-np.inf"
            | "-inf"
    );
    if method != "masked_fill" || of.name() != Some(name) || !is_infinity || mask.name.is_some() {
        return None;
    }
    let text = script.slice(mask.value.span);
    Some(match text.strip_suffix("== 0") {
        Some(counted) if !counted.contains(['=', '<', '>', '|', '&']) => format!("{counted}!= 0"),
        _ => match text.strip_prefix('~').filter(|inverted| is_one_operand(inverted)) {
            Some(counted) => counted.to_owned(),
            None => format!("~{}", operand(script, &mask.value)),
        },
    })
}

/// Returns `true` if a text is a name, with attributes, calls and indices, or something in brackets: an
/// operator before it applies to all of it.
fn is_one_operand(text: &str) -> bool {
    let mut depth = 0_u32;
    !text.is_empty()
        && text.chars().all(|letter| {
            match letter {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => return depth > 0 || letter.is_alphanumeric() || matches!(letter, '_' | '.'),
            }
            true
        })
}
