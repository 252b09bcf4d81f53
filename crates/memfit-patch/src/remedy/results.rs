//! What the functions of a file return.

use memfit_source::{Expression, Statement, StatementKind};

use super::keeper::{function_named, visit};
use super::kept::STORING_METHODS;
use crate::code::Script;

/// Methods and functions that return a Python number, or a list of them.
const NUMBERS: &[&str] = &["item", "tolist", "float", "int", "len"];

/// Returns `true` if a value is what a function of the file returns, or a variable of the scope that may be
/// that, and the source shows that it is a number: it is computed with `.item()` or `float(…)`, or from a
/// variable that such numbers go into.
pub(super) fn is_number_of_function(script: &Script, scope: &[Statement], value: &Expression) -> bool {
    let Some(variable) = value.name() else { return returns_number(script, value) };
    let mut found = false;
    visit(scope, &mut |each| {
        let is_bound = each.targets.iter().any(|target| target.name() == Some(variable));
        found |= each.kind == StatementKind::Assign
            && is_bound
            && each.values.iter().any(|value| returns_number(script, value));
    });
    found
}

fn returns_number(script: &Script, value: &Expression) -> bool {
    let name = value.call().and_then(|(callee, _)| callee.last_name());
    let Some(function) = name.and_then(|name| function_named(&script.statements, name)) else { return false };
    let mut returned: Vec<&Expression> = Vec::new();
    visit(&function.body, &mut |each| {
        if each.kind == StatementKind::Return {
            returned.extend(&each.values);
        }
    });
    returned.into_iter().any(|value| {
        if value.any(&is_number) {
            return true;
        }
        let mut names: Vec<&str> = Vec::new();
        value.visit(&mut |part| names.extend(part.name()));
        let mut found = false;
        visit(&function.body, &mut |each| found |= stores_number(each, &names));
        found
    })
}

/// Returns `true` if an expression makes a number.
fn is_number(part: &Expression) -> bool {
    part.call().and_then(|(callee, _)| callee.last_name()).is_some_and(|name| NUMBERS.contains(&name))
}

/// Returns `true` if a statement puts a number into one of these variables.
fn stores_number(statement: &Statement, names: &[&str]) -> bool {
    let is_named = |of: &Expression| of.name().is_some_and(|name| names.contains(&name));
    let assigns = matches!(statement.kind, StatementKind::Assign | StatementKind::Augment(_))
        && statement.targets.iter().any(is_named)
        && statement.values.iter().any(|value| value.any(&is_number));
    let appends = |part: &Expression| {
        part.call().is_some_and(|(callee, arguments)| {
            callee.last_name().is_some_and(|name| STORING_METHODS.contains(&name))
                && callee.any(&is_named)
                && arguments.iter().any(|argument| argument.value.any(&is_number))
        })
    };
    assigns || statement.values.iter().any(|value| value.any(&appends))
}
