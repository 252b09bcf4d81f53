//! Expressions that are plain numbers, and not tensors.

use memfit_source::{Expression, ExpressionKind as Kind, Statement, StatementKind};

use crate::code::{Path, Script};

/// Returns `true` if an expression is a plain number, not a tensor.
pub(super) fn is_number(script: &Script, path: &Path<'_>, of: &Expression) -> bool {
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
