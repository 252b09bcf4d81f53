//! Moves resizing of images before their copy to the GPU.

use memfit_source::{Edit, Expression, ExpressionKind as Kind, Statement, StatementKind};

use super::Edits;
use crate::code::{Scene, Script, Site};

/// Maximum distance between the two statements.
const MAX_DISTANCE: usize = 4;
/// Functions that resize images on any device.
const RESIZE_FUNCTIONS: &[&str] = &[
    "torch.nn.functional.interpolate",
    "torchvision.transforms.functional.resize",
    "torchvision.transforms.v2.functional.resize",
];

/// Swaps `x = x.to(device)` and a later `x = F.interpolate(x, ...)`.
pub(super) fn change(scene: &Scene<'_>, site: &Site) -> Option<Edits> {
    let script = &*scene.script;
    let path = script.statement_at_line(site.line)?;
    let (suite, index) = path.suite();
    for first in index.saturating_sub(MAX_DISTANCE)..=index {
        let Some(name) = uploaded(&suite[first]) else { continue };
        let behind = suite.iter().enumerate().skip(first + 1).take(MAX_DISTANCE);
        let next = behind.into_iter().find(|(_, statement)| statement.mentions(name));
        let Some((second, resize)) = next.filter(|(second, _)| *second >= index) else { continue };
        if second > first && is_resize(script, resize, name) {
            let mut edits = Edits::default();
            edits.push(Edit::replace(suite[first].span, script.slice(resize.span)));
            edits.push(Edit::replace(resize.span, script.slice(suite[first].span)));
            return Some(edits);
        }
    }
    None
}

/// Returns `x` for `x = x.to(device)`, if only the device changes.
fn uploaded(statement: &Statement) -> Option<&str> {
    let (name, value) = bound(statement)?;
    let (callee, arguments) = value.call()?;
    let Kind::Attribute { of, name: method } = &callee.kind else { return None };
    let places = arguments.iter().filter(|argument| argument.name.as_deref() != Some("non_blocking"));
    let plain = match method.as_str() {
        "cuda" => true,
        "to" => {
            let mut places = places;
            let place = places.next()?;
            place.name.as_deref().is_none_or(|name| name == "device") && places.next().is_none()
        }
        _ => false,
    };
    (plain && of.name() == Some(name)).then_some(name)
}

/// Matches `x = F.interpolate(x, ...)`.
fn is_resize(script: &Script, statement: &Statement, name: &str) -> bool {
    let Some((target, value)) = bound(statement) else { return false };
    let Some((_, [image, rest @ ..])) = value.call() else { return false };
    target == name
        && script.called(value.span).is_some_and(|path| RESIZE_FUNCTIONS.contains(&path))
        && image.value.name() == Some(name)
        && !rest.iter().any(|argument| argument.starred || argument.value.mentions(name))
}

fn bound(statement: &Statement) -> Option<(&str, &Expression)> {
    let ([target], [value]) = (&statement.targets[..], &statement.values[..]) else { return None };
    (statement.kind == StatementKind::Assign).then_some(())?;
    Some((target.name()?, value))
}
