//! Other processes of the script: loader workers that are not started, and child processes that are waited
//! for.

use memfit_source::{Call, Edit, Expression, ExpressionKind as Kind, Statement, StatementKind};

use super::{Change, Edits, Refusal};
use crate::Why;
use crate::code::{Code, Scene};

/// Loader options that require workers.
const WORKER_OPTIONS: &[&str] =
    &["persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout"];

/// Sets `num_workers=0` on the loader.
pub(super) fn workers(code: &Code<'_>) -> Result<Change, Refusal> {
    let mut refusal = Refusal::NotHere;
    for scene in code.scenes() {
        match no_workers(&scene) {
            Ok(Some(edits)) => return edits.change(&scene).map_err(Refusal::Unproven),
            Ok(None) => {}
            Err(why) => refusal = Refusal::Unproven(why),
        }
    }
    Err(refusal)
}

fn no_workers(scene: &Scene<'_>) -> Result<Option<Edits>, Why> {
    let script = &*scene.script;
    let starts = |call: &&Call| {
        let workers = call.keyword("num_workers");
        call.path.as_deref().is_some_and(|path| path.ends_with("DataLoader"))
            && workers.is_some_and(|workers| workers.value.int() != Some(0))
            && script.statement_around(call.span).is_some_and(|path| scene.was_reached(&path))
    };
    let mut found: Vec<&Call> = script.facts.calls.iter().filter(starts).collect();
    found.sort_by_key(|call| call.span);
    found.dedup_by_key(|call| call.span);
    let call =
        match &found[..] {
            [] => return Ok(None),
            [call] => *call,
            _ => return Err(
                "several loaders have workers, and the recording does not show to which loader they belong"
                    .to_owned(),
            ),
        };
    let Some(workers) = call.keyword("num_workers") else { return Ok(None) };
    let mut edits = Edits::default();
    edits.push(Edit::replace(workers.value_span, "0"));
    for name in WORKER_OPTIONS {
        if let Some(option) = call.keyword(name) {
            edits.push(script.facts.remove_argument(call, option.span));
        }
    }
    Ok(Some(edits))
}

/// Makes the script wait for a child process.
pub(super) fn wait(code: &Code<'_>) -> Result<Change, Refusal> {
    let mut refusal = Refusal::NotHere;
    for scene in code.scenes() {
        match waits(&scene) {
            Ok(Some(edits)) => return edits.change(&scene).map_err(Refusal::Unproven),
            Ok(None) => {}
            Err(why) => refusal = Refusal::Unproven(why),
        }
    }
    Err(refusal)
}

fn waits(scene: &Scene<'_>) -> Result<Option<Edits>, Why> {
    let script = &*scene.script;
    let mut children: Vec<(&Statement, String, &Expression)> = Vec::new();
    for statement in &script.statements {
        statement.visit(&mut |each| {
            if let Some((name, call)) = child(each) {
                children.push((each, name, call));
            }
        });
    }
    let Some((statement, name, call)) = children.into_iter().next() else { return Ok(None) };
    let path = script
        .statement_around(statement.span)
        .ok_or("the process is not created in a statement of its own")?;
    if !scene.was_reached(&path) {
        return Err("the recording does not show that the line that starts the process ran".to_owned());
    }
    let (callee, arguments) = call.call().ok_or("the process is not created by a call")?;
    let is_popen = callee.last_name() == Some("Popen");
    // Methods that interact with the child: of a `Popen` in particular, and of a `Process`.
    let spoken_with =
        arguments.iter().skip(usize::from(is_popen)).any(|argument| match argument.name.as_deref() {
            Some("target" | "daemon" | "name" | "cwd" | "env" | "shell") => false,
            Some("args" | "kwargs") => argument.value.any(&|part| part.name().is_some()),
            _ => true,
        });
    if spoken_with {
        return Err(format!(
            "the script may communicate with `{name}` while it runs, and waiting for its end could then deadlock"
        ));
    }
    let used = uses_of(path.scope(), &name);
    let (suite, index) = path.suite();
    let started = if is_popen { Some(index) } else { position_of_call(suite, index, &name, "start") };
    let started = started.ok_or_else(|| format!("the line that starts `{name}` was not found"))?;
    let end = if is_popen { "wait" } else { "join" };
    if !used.iter().all(|method| ["start", end].contains(&method.as_str()))
        || !used.iter().any(|method| method == end)
    {
        return Err(format!("it is not certain that `{name}` ends by itself: the script never waits for it"));
    }
    let mut edits = Edits::default();
    edits.line_behind(script, suite[started].span, &format!("{name}.{end}()"));
    Ok(Some(edits))
}

/// Matches `name = Popen(...)` and `name = Process(...)`.
fn child(statement: &Statement) -> Option<(String, &Expression)> {
    let ([target], [value]) = (&statement.targets[..], &statement.values[..]) else { return None };
    let (callee, _) = value.call()?;
    let starts = matches!(callee.last_name(), Some("Popen" | "Process"));
    (statement.kind == StatementKind::Assign && starts).then_some(())?;
    Some((target.path()?, value))
}

/// Methods called on a name; any other use is an empty string.
fn uses_of(body: &[Statement], name: &str) -> Vec<String> {
    let mut used = Vec::new();
    for statement in body {
        statement.visit(&mut |each| {
            for value in &each.values {
                value.visit(&mut |part| match &part.kind {
                    Kind::Attribute { of, name: method } if of.path().as_deref() == Some(name) => {
                        used.push(method.clone());
                    }
                    _ => {}
                });
            }
        });
    }
    used
}

fn position_of_call(suite: &[Statement], from: usize, name: &str, method: &str) -> Option<usize> {
    let wanted = format!("{name}.{method}");
    (from + 1..suite.len()).find(|index| {
        let value = suite[*index].values.first();
        value.and_then(Expression::call).is_some_and(|(callee, _)| callee.path().as_deref() == Some(&wanted))
    })
}
