//! Values that steps leave behind: collected values are detached and moved to the host, running sums are
//! detached, and `retain_graph=True` is removed where one backward pass suffices.

use std::collections::BTreeMap;

use memfit_source::{
    Edit, Expression, ExpressionKind as Kind, Op, OpKind, Operator, Span, Statement, StatementKind,
};
use memfit_vocabulary::Lever;

use super::flow::{Hazard, METADATA, Origin, Uses, body_of, is_number, uses};
use super::results::is_number_of_function;
use super::{Change, Edits, Refusal, RemedyRequest};
use crate::Why;
use crate::code::{Code, Path, Scene, Script, Site};

/// Methods that return a value on the host.
pub(super) const HOST_METHODS: &[&str] = &["item", "cpu", "tolist", "numpy"];
/// Methods that return a value without a graph.
const GRAPHLESS_METHODS: &[&str] = &["item", "detach", "tolist", "numpy"];
/// Container methods that store their argument.
pub(super) const STORING_METHODS: &[&str] = &["append", "appendleft", "add"];
/// Functions that create a new object.
const CONSTRUCTORS: &[&str] = &[
    "list",
    "dict",
    "set",
    "deque",
    "defaultdict",
    "OrderedDict",
    "Counter",
    "float",
    "int",
    "zeros",
    "ones",
    "tensor",
    "empty",
    "full",
    "scalar_tensor",
    "zeros_like",
];

/// Functions that only collect their arguments.
const COLLECTING_FUNCTIONS: &[&str] = &["dict", "list", "tuple", "set"];

/// Statement that stores values across steps.
pub(super) struct Store<'s> {
    pub(super) path: Path<'s>,
    /// Target.
    target: &'s Expression,
    /// Stored values.
    values: Vec<&'s Expression>,
    /// `true` for a sum, `false` for a collection.
    pub(super) adds: bool,
}

/// Edits the statements that store the values computed by these lines.
pub(super) fn change(
    code: &Code<'_>,
    wanted: &RemedyRequest<'_>,
    backwards: &[Site],
) -> Result<Change, Refusal> {
    let off_the_card = wanted.lever == Lever::KeepOnCpu;
    let mut made: Vec<(&str, Result<Vec<Edit>, Why>)> = Vec::new();
    let mut seen: Vec<&Site> = Vec::new();
    for site in wanted.sites {
        let Some(scene) = code.scene(&site.file).filter(|_| !seen.contains(&site)) else { continue };
        seen.push(site);
        if let Err(why) = scene.is_current(site) {
            made.push((&site.file, Err(why)));
            continue;
        }
        let kept = stores_from(&scene.script, site.line, off_the_card);
        made.extend(kept.iter().map(|kept| (site.file.as_str(), cut(&scene, kept, off_the_card))));
    }
    for site in backwards {
        let scene = code.scene(&site.file).filter(|scene| scene.is_current(site).is_ok());
        let Some(scene) = scene else { continue };
        made.extend(released(&scene, site).map(|released| (site.file.as_str(), released)));
    }
    // A change concerns one file: the first one in the recording.
    let file = made.iter().find_map(|(file, made)| made.is_ok().then_some(*file));
    let Some(scene) = file.and_then(|file| code.scene(file)) else {
        let refusal = made.into_iter().find_map(|(_, made)| made.err());
        return Err(refusal.map_or(Refusal::NotHere, Refusal::Unproven));
    };
    let mut edits = Edits::default();
    for edit in
        made.into_iter().filter(|(file, _)| *file == scene.file).filter_map(|(_, made)| made.ok()).flatten()
    {
        edits.push(edit);
    }
    edits.change(&scene).map_err(Refusal::Unproven)
}

/// Functions that copy all of their tensors into a new one.
const CONCATENATIONS: &[&str] = &["cat", "concat", "concatenate", "hstack", "vstack", "row_stack"];

impl Code<'_> {
    /// Returns `true` if a line replaces a tensor with its concatenation with others:
    /// `self.keys = torch.cat([self.keys, new])`.
    pub fn is_concatenated(&self, site: &Site) -> bool {
        let Some(scene) = self.scene(&site.file).filter(|scene| scene.is_current(site).is_ok()) else {
            return false;
        };
        let Some(path) = scene.script.statement_at_line(site.line) else { return false };
        let statement = path.statement();
        let targets: Vec<String> = statement.targets.iter().filter_map(Expression::path).collect();
        let concatenates = |part: &Expression| {
            part.call().is_some_and(|(callee, arguments)| {
                let is_one = callee.last_name().is_some_and(|name| CONCATENATIONS.contains(&name));
                let of_itself = |part: &Expression| part.path().is_some_and(|path| targets.contains(&path));
                is_one && arguments.iter().any(|argument| argument.value.any(&of_itself))
            })
        };
        statement.kind == StatementKind::Assign
            && statement.values.iter().any(|value| value.any(&concatenates))
    }
}

/// Stores of the values that a line computes.
pub(super) fn stores_from(script: &Script, line: u32, off_the_card: bool) -> Vec<Store<'_>> {
    let Some(path) = script.statement_at_line(line) else { return Vec::new() };
    let statement = path.statement();
    let done = if off_the_card { HOST_METHODS } else { GRAPHLESS_METHODS };
    if let Some((target, value, adds)) = store(statement) {
        let mut values = Vec::new();
        cut_points(value, &|part| is_made_here(part, done), &mut values);
        if !values.is_empty() {
            return vec![Store { path, target, values, adds }];
        }
        if adds || statement.kind != StatementKind::Assign {
            return Vec::new();
        }
    }
    if statement.kind != StatementKind::Assign {
        return Vec::new();
    }
    let mut names = Vec::new();
    for target in &statement.targets {
        target.visit(&mut |part| names.extend(part.name()));
    }
    // The bound name may be stored later in the same loop.
    let looped = path.loops().next();
    let body = looped.map_or(path.scope(), |looped| &looped.body);
    if !off_the_card {
        // A result of a value keeps its graph.
        derive(body, statement.span.end, &mut names);
    }
    let mut found = Vec::new();
    for each in body {
        each.visit(&mut |each| {
            if each.span.start < statement.span.end {
                return;
            }
            let Some((target, value, adds)) = store(each).or_else(|| running_mean(each)) else { return };
            let done = if adds { GRAPHLESS_METHODS } else { done };
            let mut values = Vec::new();
            cut_points(value, &|part| holds(part, &names, done), &mut values);
            if values.is_empty() {
                return;
            }
            if let Some(path) = script.statement_around(each.span) {
                found.push(Store { path, target, values, adds });
            }
        });
    }
    found
}

/// Adds the names that later statements bind to values computed from these names.
fn derive<'s>(body: &'s [Statement], from: u32, names: &mut Vec<&'s str>) {
    for statement in body {
        statement.visit(&mut |each| {
            let carries = || each.values.iter().any(|value| holds(value, names, GRAPHLESS_METHODS));
            if each.span.start >= from && each.kind == StatementKind::Assign && carries() {
                names.extend(each.targets.iter().filter_map(Expression::name));
            }
        });
    }
}

/// Matches a running mean: `a = 0.9 * a + 0.1 * v`.
fn running_mean(statement: &Statement) -> Option<(&Expression, &Expression, bool)> {
    let ([target], [value]) = (&statement.targets[..], &statement.values[..]) else { return None };
    let own = target.path()?;
    let is_mean = statement.kind == StatementKind::Assign
        && matches!(value.kind, Kind::Binary { .. })
        && value.any(&|part| part.path().as_ref() == Some(&own));
    is_mean.then_some((target, value, true))
}

/// Matches a store: `a.append(v)`, `a[k] = v`, `a += v`, `a = a + v`.
pub(super) fn store(statement: &Statement) -> Option<(&Expression, &Expression, bool)> {
    let value = statement.values.first()?;
    match statement.kind {
        StatementKind::Expression => {
            let (callee, arguments) = value.call()?;
            let Kind::Attribute { of, name } = &callee.kind else { return None };
            let [argument] = arguments else { return None };
            (STORING_METHODS.contains(&name.as_str()) && !argument.starred).then_some((
                &**of,
                &argument.value,
                false,
            ))
        }
        StatementKind::Augment(Operator::Add) => Some((statement.targets.first()?, value, !is_list(value))),
        StatementKind::Assign => {
            let [target] = &statement.targets[..] else { return None };
            if let Kind::Item { of, .. } = &target.kind {
                return Some((&**of, value, false));
            }
            let Kind::Binary { left, operator: Operator::Add, right } = &value.kind else { return None };
            let same = left.path().is_some() && left.path() == target.path();
            same.then_some((target, &**right, !is_list(right)))
        }
        _ => None,
    }
}

/// Adding a list to a list is a collection.
const fn is_list(of: &Expression) -> bool {
    matches!(of.kind, Kind::Several(_) | Kind::Comprehension { .. })
}

/// Parts of a stored value to be detached: the whole if it is computed there, or each element of a list.
fn cut_points<'e>(
    of: &'e Expression,
    is_live: &dyn Fn(&Expression) -> bool,
    found: &mut Vec<&'e Expression>,
) {
    let gathers =
        |callee: &Expression| callee.name().is_some_and(|name| COLLECTING_FUNCTIONS.contains(&name));
    match &of.kind {
        Kind::Call { callee, .. } if !gathers(callee) => found.extend(is_live(of).then_some(of)),
        Kind::Name(_) | Kind::Attribute { .. } | Kind::Item { .. } | Kind::Binary { .. } => {
            found.extend(is_live(of).then_some(of));
        }
        _ => {
            for part in of.parts() {
                cut_points(part, is_live, found);
            }
        }
    }
}

/// Returns `true` if an expression computes a value that is not detached already.
fn is_made_here(of: &Expression, done: &[&str]) -> bool {
    let is_call = |part: &Expression| part.call().is_some();
    let is_cut = |part: &Expression| {
        part.call().and_then(|(callee, _)| callee.last_name()).is_some_and(|name| done.contains(&name))
    };
    of.any(&is_call) && !of.any(&is_cut)
}

/// Returns `true` if one of these names occurs in an expression with its graph, or on the GPU.
pub(super) fn holds(of: &Expression, names: &[&str], done: &[&str]) -> bool {
    match &of.kind {
        Kind::Name(name) => names.contains(&name.as_str()),
        Kind::Attribute { name, .. } if METADATA.contains(&name.as_str()) => false,
        Kind::Call { callee, arguments } => {
            let given = || arguments.iter().any(|argument| holds(&argument.value, names, done));
            match &callee.kind {
                Kind::Attribute { name, .. } if done.contains(&name.as_str()) || is_number_of(name) => false,
                Kind::Attribute { of, .. } => holds(of, names, done) || given(),
                Kind::Name(name) if is_number_function(name) => false,
                _ => given(),
            }
        }
        Kind::Formatted(_) => false,
        _ => of.parts().into_iter().any(|part| holds(part, names, done)),
    }
}

fn is_number_of(method: &str) -> bool {
    matches!(method, "size" | "numel" | "dim" | "nelement")
}

fn is_number_function(name: &str) -> bool {
    matches!(name, "len" | "float" | "int" | "str" | "repr" | "bool")
}

/// Edits that detach the stored values and move them to the host.
fn cut(scene: &Scene<'_>, kept: &Store<'_>, off_the_card: bool) -> Result<Vec<Edit>, Why> {
    let script = &*scene.script;
    let text = script.slice(kept.target.span);
    if !scene.was_reached(&kept.path) {
        let line = script.line_of(kept.path.statement().span.start);
        return Err(format!("the recording does not show that line {line} ran"));
    }
    if let Some(object) = kept.values.iter().find(|value| is_object(script, kept.path.scope(), value)) {
        let object = script.slice(object.span);
        return Err(format!("`{object}` is an object that holds tensors, not a tensor"));
    }
    if let Some(number) =
        kept.values.iter().find(|value| is_number_of_function(script, kept.path.scope(), value))
    {
        let number = script.slice(number.span);
        return Err(format!("`{number}` may be a number, not a tensor"));
    }
    let uses = prove(scene, kept)?;
    if off_the_card && !kept.adds && uses.is_mixed {
        return Err(format!("`{text}` is computed with later, where it has to be on the GPU"));
    }
    let to_host = off_the_card && !kept.adds;
    let edits = kept.values.iter().flat_map(|value| {
        let is_cut = value.call().and_then(|(callee, _)| callee.last_name()) == Some("detach");
        let suffix = match (is_cut, to_host) {
            (true, _) => ".cpu()",
            (false, true) => ".detach().cpu()",
            (false, false) => ".detach()",
        };
        match value.kind {
            Kind::Binary { .. } => {
                vec![Edit::insert(value.span.start, "("), Edit::insert(value.span.end, format!("){suffix}"))]
            }
            _ => vec![Edit::insert(value.span.end, suffix)],
        }
    });
    Ok(edits.collect())
}

/// Returns `true` if a value is not a tensor for certain, but something that may hold tensors: a collection,
/// or an instance of one of the file's classes. A name counts as such if any assignment makes it one.
fn is_object(script: &Script, scope: &[Statement], value: &Expression) -> bool {
    let is_class = |name: &str| {
        let mut found = false;
        for statement in &script.statements {
            statement.visit(&mut |each| {
                found |= each.kind == StatementKind::Class && each.name.as_deref() == Some(name);
            });
        }
        found
    };
    let is_made = |of: &Expression| match &of.kind {
        Kind::Several(_) | Kind::Comprehension { .. } => true,
        Kind::Call { callee, .. } => {
            callee.name().is_some_and(|name| COLLECTING_FUNCTIONS.contains(&name) || is_class(name))
        }
        Kind::Other(_) => script.slice(of.span).starts_with('{'),
        _ => false,
    };
    let Some(name) = value.name() else { return is_made(value) };
    let mut found = false;
    for statement in scope {
        statement.visit(&mut |each| {
            let [target] = &each.targets[..] else { return };
            found |= each.kind == StatementKind::Assign
                && target.name() == Some(name)
                && each.values.first().is_some_and(&is_made);
        });
    }
    found
}

/// Checks that no backward pass goes through the stored values, and that no code outside uses them.
pub(super) fn prove(scene: &Scene<'_>, kept: &Store<'_>) -> Result<Uses, Why> {
    let script = &*scene.script;
    let text = script.slice(kept.target.span);
    let refuse = |hazard: Hazard| {
        let consequence = if hazard.backward {
            "detaching it would change training results"
        } else {
            "it cannot be shown that detaching it is safe"
        };
        format!("`{text}` is not changed: {}; {consequence}", hazard.why)
    };
    let origin = match kept.target.kind {
        Kind::Attribute { ref name, .. } => Origin::Attribute(name.clone()),
        _ => origin(scene, kept)?,
    };
    uses(scene, &origin).map_err(refuse)
}

/// Container's name, which must be created by the function itself or by the module.
fn origin(scene: &Scene<'_>, kept: &Store<'_>) -> Result<Origin, Why> {
    let script = &*scene.script;
    let text = script.slice(kept.target.span);
    let mut target = kept.target;
    while let Kind::Item { of, .. } = &target.kind {
        target = of;
    }
    if let Kind::Attribute { name, .. } = &target.kind {
        return Ok(Origin::Attribute(name.clone()));
    }
    let name = target.name().ok_or_else(|| format!("`{text}` is not a variable that could be followed"))?;
    let function = kept.path.function();
    let is_parameter =
        function.is_some_and(|function| function.targets.iter().any(|each| each.name() == Some(name)));
    if is_parameter {
        return Err(format!("`{text}` comes from the caller, who may backpropagate through it"));
    }
    let own = assignments(kept.path.scope(), name);
    let is_global = function.is_some()
        && (own.is_empty() || kept.path.scope().iter().any(|statement| is_global(statement, name)));
    let made = if is_global { assignments(&script.statements, name) } else { own };
    let fresh = made.iter().all(|value| is_fresh(script, value) || value.mentions(name));
    if made.is_empty() || !fresh {
        return Err(format!("`{text}` may also be another value, which a loss uses"));
    }
    let scope = function.filter(|_| !is_global).and_then(body_of);
    Ok(Origin::Name { name: name.to_owned(), scope })
}

fn is_global(statement: &Statement, name: &str) -> bool {
    let mut found = false;
    statement.visit(&mut |each| {
        found |= each.kind == StatementKind::Global
            && each.targets.iter().any(|target| target.name() == Some(name));
    });
    found
}

/// Values assigned to a name in these statements, without nested functions.
fn assignments<'s>(body: &'s [Statement], name: &str) -> Vec<&'s Expression> {
    let mut found = Vec::new();
    for statement in body {
        if matches!(statement.kind, StatementKind::Function | StatementKind::Class) {
            continue;
        }
        let binds = statement.targets.iter().any(|target| match &target.kind {
            Kind::Item { .. } | Kind::Attribute { .. } => false,
            _ => target.mentions(name),
        });
        let kinds =
            matches!(statement.kind, StatementKind::Assign | StatementKind::Loop | StatementKind::With);
        if binds && kinds {
            found.extend(&statement.values);
        }
        for suite in statement.suites() {
            found.extend(assignments(suite, name));
        }
    }
    found
}

/// Returns `true` if a value is a new object without other references.
fn is_fresh(script: &Script, of: &Expression) -> bool {
    match &of.kind {
        Kind::Number | Kind::Constant(_) | Kind::Several(_) | Kind::Comprehension { .. } => true,
        Kind::Call { callee, .. } => callee.last_name().is_some_and(|name| CONSTRUCTORS.contains(&name)),
        Kind::Binary { left, .. } => is_fresh(script, left),
        Kind::Other(_) => script.slice(of.span).starts_with('{') || script.slice(of.span).starts_with('-'),
        _ => false,
    }
}

/// Removes `retain_graph=True` from the backward pass of a line; `None` if it is not present.
fn released(scene: &Scene<'_>, site: &Site) -> Option<Result<Vec<Edit>, Why>> {
    let script = &*scene.script;
    let facts = &script.facts;
    let backward = |op: &Op| match &op.kind {
        OpKind::Backward(backward) if op.via.is_none() => Some(backward.clone()),
        _ => None,
    };
    let (op, own) = facts
        .ops
        .iter()
        .filter(|op| script.is_on(op.span, site.line))
        .find_map(|op| Some((op, backward(op)?)))?;
    let retain = own.retain?;
    let call = facts.calls.iter().find(|call| call.span == op.span)?;
    let retain = call.arguments.iter().find(|argument| argument.span.contains(retain))?;
    let looped = op.site.looped?;
    let keep = |why: &str| Some(Err(format!("`retain_graph=True` is left in line {}: {why}", site.line)));
    if own.create.is_some() {
        return keep("it creates a graph of the gradients, which needs it");
    }
    let again = facts.ops_in(looped).any(|other| match &other.kind {
        OpKind::Backward(second) => {
            second.loss_span != own.loss_span && second.loss.graph.may_share(&own.loss.graph)
        }
        OpKind::AutogradGrad => true,
        _ => false,
    });
    if again {
        return keep("another backward pass of the loop may go through the same graph");
    }
    if let Some(name) = carried(scene, op.span) {
        return keep(&format!(
            "`{name}` is carried from step to step, and the next backward pass goes through it again"
        ));
    }
    Some(Ok(vec![facts.remove_argument(call, retain.span)]))
}

/// Name that the loop carries from iteration to iteration and that a backward pass may go through.
fn carried(scene: &Scene<'_>, at: Span) -> Option<String> {
    let script = &*scene.script;
    let path = script.statement_around(at)?;
    let looped = path.loops().next()?;
    // For each name: `true` if it is bound before it is read, to something other than a number.
    let mut first: BTreeMap<String, bool> = BTreeMap::new();
    let mut bound: Vec<&Expression> = Vec::new();
    for statement in &looped.body {
        statement.visit(&mut |each| {
            for value in &each.values {
                value.visit(&mut |part| {
                    if let Some(name) = part.path() {
                        first.entry(name).or_insert(false);
                    }
                });
            }
            let binds = !matches!(each.kind, StatementKind::Augment(_));
            for target in &each.targets {
                let parts = if target.path().is_some() { vec![target] } else { target.parts() };
                for (part, name) in parts.into_iter().filter_map(|part| Some((part, part.path()?))) {
                    first.entry(name).or_insert(binds);
                    if !each.values.iter().all(is_number) {
                        bound.push(part);
                    }
                }
            }
        });
    }
    let scope = path.function().and_then(body_of);
    bound.into_iter().find_map(|part| {
        let name = part.path().filter(|name| first.get(name) == Some(&false))?;
        let origin = match &part.kind {
            Kind::Attribute { name, .. } => Origin::Attribute(name.clone()),
            _ => Origin::Name { name: name.clone(), scope },
        };
        uses(scene, &origin).is_err().then_some(name)
    })
}
