//! Contexts of a line (autocast, `no_grad`), as the source shows them.

use memfit_source::{Expression, ExpressionKind as Kind, StatementKind};

use crate::code::{Code, Script};

impl Code<'_> {
    /// Returns `true` if the source shows that a line runs under autocast, directly or through a name.
    pub fn is_under_autocast(&self, file: &str, line: u32) -> bool {
        self.scene(file).is_some_and(|scene| enters(&scene.script, line, &is_autocast))
    }

    /// Returns `true` if the source shows that a line runs without gradients.
    pub fn is_without_grad(&self, file: &str, line: u32) -> bool {
        self.scene(file).is_some_and(|scene| enters(&scene.script, line, &is_no_grad))
    }
}

/// Returns `true` if a `with` statement around a line, or a decorator of its function, enters such a context.
pub(super) fn enters(script: &Script, line: u32, is: &impl Fn(&Expression) -> bool) -> bool {
    let Some(path) = script.statement_at_line(line) else { return false };
    for statement in path.above() {
        let contexts = match statement.kind {
            // Parameter defaults are not contexts, and never match.
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

/// Returns `true` if a name or attribute is bound to such a context in the file, or is a function that
/// returns one.
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

/// Returns `true` if an expression certainly enables autocast; one that depends on a flag does not count.
pub(super) fn is_autocast(of: &Expression) -> bool {
    of.any(&|part| {
        let Some((callee, arguments)) = part.call() else { return false };
        let by_flag = arguments.iter().filter(|argument| argument.name.as_deref() == Some("enabled"));
        callee.last_name() == Some("autocast")
            && by_flag.into_iter().all(|argument| argument.value.kind == Kind::Constant(Some(true)))
    })
}

/// Returns `true` if an expression disables gradients.
fn is_no_grad(of: &Expression) -> bool {
    of.any(&|part| {
        let called = part.call().and_then(|(callee, _)| callee.last_name());
        matches!(called.or_else(|| part.last_name()), Some("no_grad" | "inference_mode"))
    })
}

#[cfg(test)]
mod tests;
