//! The contexts that a line runs under, by what the source says around it.

use memfit_source::{Expression, ExpressionKind as Kind, StatementKind};

use crate::code::{Code, Script};

impl Code<'_> {
    /// Whether a line runs under autocast by what stands around it: written out, or under a name.
    pub fn is_under_autocast(&self, file: &str, line: u32) -> bool {
        self.scene(file).is_some_and(|scene| enters(&scene.script, line, &is_autocast))
    }

    /// Whether a line runs without gradients by what stands around it.
    pub fn is_without_grad(&self, file: &str, line: u32) -> bool {
        self.scene(file).is_some_and(|scene| enters(&scene.script, line, &is_no_grad))
    }
}

/// Whether a `with` around a line, or a decorator of its function, enters such a context.
pub(super) fn enters(script: &Script, line: u32, is: &impl Fn(&Expression) -> bool) -> bool {
    let Some(path) = script.at_line(line) else { return false };
    for statement in path.above() {
        let contexts = match statement.kind {
            // Defaults of parameters are no contexts, and none of these.
            StatementKind::With | StatementKind::Function => &statement.values[..],
            _ => &[],
        };
        if contexts.iter().any(|context| is(context) || context.any(&|part| stands_for(script, part, is))) {
            return true;
        }
        if statement.kind == StatementKind::Function {
            break;
        }
    }
    false
}

/// Whether a name or an attribute stands for such a context somewhere in the file: assigned, or a function
/// that makes it.
fn stands_for(script: &Script, part: &Expression, is: &impl Fn(&Expression) -> bool) -> bool {
    let Some(name) = part.last_name() else { return false };
    let mut found = false;
    for statement in &script.statements {
        statement.visit(&mut |each| match each.kind {
            StatementKind::Assign if each.targets.iter().any(|target| target.last_name() == Some(name)) => {
                found |= each.values.iter().any(|value| value.any(is));
            }
            StatementKind::Function if each.name.as_deref() == Some(name) => {
                each.visit(&mut |inner| {
                    let returned = inner.kind == StatementKind::Return;
                    found |= returned && inner.values.iter().any(|value| value.any(is));
                });
            }
            _ => {}
        });
    }
    found
}

/// Whether an expression turns autocast on for certain: what a flag decides is not known.
pub(super) fn is_autocast(of: &Expression) -> bool {
    of.any(&|part| {
        let Some((callee, arguments)) = part.call() else { return false };
        let by_flag = arguments.iter().filter(|argument| argument.name.as_deref() == Some("enabled"));
        callee.last_name() == Some("autocast")
            && by_flag.into_iter().all(|argument| argument.value.kind == Kind::Constant(Some(true)))
    })
}

/// Whether an expression keeps no graph.
fn is_no_grad(of: &Expression) -> bool {
    of.any(&|part| {
        let called = part.call().and_then(|(callee, _)| callee.last_name());
        matches!(called.or_else(|| part.last_name()), Some("no_grad" | "inference_mode"))
    })
}

#[cfg(test)]
mod tests;
