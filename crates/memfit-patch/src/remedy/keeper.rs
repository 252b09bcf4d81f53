//! Line that keeps a value from step to step, also where the value is handed on under other names, to
//! functions of the program, or by a hook of a module.

use memfit_source::{CallArgument, Expression, ExpressionKind as Kind, Statement, StatementKind};

use super::kept::{HOST_METHODS, holds, prove, store, stores_from};
use crate::code::{Code, Scene, Script, Site};

/// Maximum number of functions that a value is followed through.
const MAX_CALLS: usize = 4;
/// Methods of modules that register a hook.
const REGISTERING_METHODS: &[&str] =
    &["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"];

impl Code<'_> {
    /// Line that stores the value computed by one of these lines, whether or not it can be changed.
    pub fn keeper(&self, sites: &[Site]) -> Option<Site> {
        let stored = sites.iter().find_map(|site| {
            let scene = self.current(site)?;
            let kept = stores_from(&scene.script, site.line, true).into_iter();
            let mut kept = kept.filter(|kept| scene.was_reached(&kept.path));
            // A sum that is part of the training computation keeps nothing across steps.
            let kept = kept.find(|kept| !kept.adds || prove(&scene, kept).is_ok())?;
            let line = scene.script.line_of(kept.path.statement().span.start);
            Some(Site { line, ..site.clone() })
        });
        stored.or_else(|| sites.iter().find_map(|site| self.handed_on(site)))
    }

    /// Line of the first hook that stores what modules give it.
    pub fn storing_hook(&self) -> Option<Site> {
        self.scenes().find_map(|scene| {
            let script = &*scene.script;
            script.facts.calls.iter().find_map(|call| {
                let method = call.method.as_deref().unwrap_or_default();
                let hook = call.arguments.first().filter(|_| REGISTERING_METHODS.contains(&method))?;
                let (name, function) = hook_function(script, script.slice(hook.value_span))?;
                let names: Vec<&str> = parameters(function).collect();
                let line = stored_in(&scene, &function.body, &names)?;
                Some(Site { file: scene.file.to_owned(), line, function: name.to_owned() })
            })
        })
    }

    fn current<'c>(&'c self, site: &'c Site) -> Option<Scene<'c>> {
        self.scene(&site.file).filter(|scene| scene.is_current(site).is_ok())
    }

    /// Line that stores what a line binds, under another name or in a function that gets it.
    fn handed_on(&self, site: &Site) -> Option<Site> {
        let scene = self.current(site)?;
        let path = scene.script.statement_at_line(site.line)?;
        let statement = path.statement();
        if statement.kind != StatementKind::Assign || !scene.was_reached(&path) {
            return None;
        }
        let mut names = Vec::new();
        for target in &statement.targets {
            target.visit(&mut |part| names.extend(part.name()));
        }
        self.follow(&scene, path.scope(), names, &site.function, MAX_CALLS)
    }

    /// Follows names through a function, and through the functions that get them.
    fn follow<'s>(
        &self,
        scene: &Scene<'_>,
        body: &'s [Statement],
        mut names: Vec<&'s str>,
        function: &str,
        calls: usize,
    ) -> Option<Site> {
        loop {
            let known = names.len();
            visit(body, &mut |each| {
                let renamed = each.kind == StatementKind::Assign
                    && each.values.iter().any(|value| value.name().is_some_and(|name| names.contains(&name)));
                let targets = each.targets.iter().filter(|_| renamed).filter_map(Expression::name);
                let new: Vec<&str> = targets.filter(|name| !names.contains(name)).collect();
                names.extend(new);
            });
            if names.len() == known {
                break;
            }
        }
        if let Some(line) = stored_in(scene, body, &names) {
            return Some(Site { file: scene.file.to_owned(), line, function: function.to_owned() });
        }
        let mut found = None;
        visit(body, &mut |each| {
            for value in &each.values {
                value.visit(&mut |part| {
                    let Some((callee, arguments)) = part.call().filter(|_| found.is_none() && calls > 0)
                    else {
                        return;
                    };
                    found = self.taken_by(callee, arguments, &names, calls - 1);
                });
            }
        });
        found
    }

    /// Line of a called function of the program that stores one of the given values.
    fn taken_by(
        &self,
        callee: &Expression,
        arguments: &[CallArgument],
        names: &[&str],
        calls: usize,
    ) -> Option<Site> {
        let name = callee.last_name()?;
        let scene = self.scenes().find(|scene| function_named(&scene.script.statements, name).is_some())?;
        let function = function_named(&scene.script.statements, name)?;
        let own = usize::from(matches!(callee.kind, Kind::Attribute { .. }));
        let positions: Vec<&str> = parameters(function).skip(own).collect();
        let given = arguments
            .iter()
            .enumerate()
            .filter(|(_, argument)| !argument.starred && holds(&argument.value, names, HOST_METHODS));
        let taken = given.filter_map(|(index, argument)| {
            let by_name = argument.name.as_deref();
            positions.iter().copied().enumerate().find_map(|(position, parameter)| {
                (by_name == Some(parameter) || by_name.is_none() && position == index).then_some(parameter)
            })
        });
        let taken: Vec<&str> = taken.collect();
        if taken.is_empty() {
            return None;
        }
        self.follow(&scene, &function.body, taken, name, calls)
    }
}

/// Line that puts one of these values into a collection.
fn stored_in(scene: &Scene<'_>, body: &[Statement], names: &[&str]) -> Option<u32> {
    let mut found = None;
    visit(body, &mut |each| {
        let stores = store(each).is_some_and(|(_, value, adds)| !adds && holds(value, names, HOST_METHODS));
        if stores && found.is_none() {
            found = Some(scene.script.line_of(each.span.start));
        }
    });
    found
}

/// Function that a hook is, with its name: itself, the first argument of `partial(…)`, or the function that a
/// call makes (`make_hook(name)`).
fn hook_function<'s>(script: &'s Script, hook: &'s str) -> Option<(&'s str, &'s Statement)> {
    let last_name = |path: &'s str| path.trim().rsplit('.').next();
    let Some((callee, arguments)) = hook.split_once('(') else {
        let name = last_name(hook)?;
        return Some((name, function_named(&script.statements, name)?));
    };
    let callee = last_name(callee)?;
    if callee == "partial" {
        let name = last_name(arguments.split([',', ')']).next()?)?;
        return Some((name, function_named(&script.statements, name)?));
    }
    let body = &function_named(&script.statements, callee)?.body;
    let returned = body.iter().find(|each| each.kind == StatementKind::Return)?.values.first()?.name()?;
    let is_made =
        |each: &&Statement| each.kind == StatementKind::Function && each.name.as_deref() == Some(returned);
    Some((returned, body.iter().find(is_made)?))
}

/// The only function or method of a name.
pub(super) fn function_named<'s>(statements: &'s [Statement], name: &str) -> Option<&'s Statement> {
    let mut found: Vec<&Statement> = Vec::new();
    visit(statements, &mut |each| {
        if each.kind == StatementKind::Function && each.name.as_deref() == Some(name) {
            found.push(each);
        }
    });
    match found[..] {
        [only] => Some(only),
        _ => None,
    }
}

/// Names of a function's parameters.
fn parameters(function: &Statement) -> impl Iterator<Item = &str> {
    function.targets.iter().filter_map(Expression::name)
}

/// Visits statements and those inside them.
pub(super) fn visit<'s>(statements: &'s [Statement], see: &mut impl FnMut(&'s Statement)) {
    for statement in statements {
        statement.visit(see);
    }
}
