//! Rewrites that move a function of a program to a file of its own.

use ruff_python_ast::Stmt;

use crate::moves;
use crate::source::{Names, Program, bound, free};

/// Name of the module with what has moved.
pub(crate) const MODULE: &str = "steps";

/// Text of the program, and that of the module.
pub(crate) type Files = (String, String);

/// The step of a loop moves to another file.
pub(crate) fn step_elsewhere(program: &Program) -> Option<Files> {
    moved(moves::step_function(program)?, "train_step")
}

/// The statements before a backward pass move to another file.
pub(crate) fn loss_elsewhere(program: &Program) -> Option<Files> {
    moved(moves::loss_function(program)?, "compute_loss")
}

fn is_import(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Import(_) | Stmt::ImportFrom(_))
}

fn is_definition(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::FunctionDef(_) | Stmt::ClassDef(_))
}

/// Moves a function of the top level, and the definitions that it uses. `None` if it uses more.
fn moved(text: String, name: &str) -> Option<Files> {
    let program = Program::read(text)?;
    let of = |stmt: &Stmt| bound(std::slice::from_ref(stmt));
    let defined: Names = program.body().iter().filter(|stmt| is_definition(stmt)).flat_map(of).collect();
    let acted: Names =
        program.body().iter().filter(|stmt| !is_definition(stmt) && !is_import(stmt)).flat_map(of).collect();
    let mut moving: Names = std::iter::once(name.to_owned()).filter(|name| defined.contains(name)).collect();
    loop {
        let moves = |stmt: &&Stmt| is_definition(stmt) && !of(stmt).is_disjoint(&moving);
        let used: Names = program.body().iter().filter(moves).flat_map(free).collect();
        if !used.is_disjoint(&acted) {
            return None;
        }
        let more: Names =
            used.intersection(&defined).filter(|name| !moving.contains(*name)).cloned().collect();
        if more.is_empty() {
            break;
        }
        moving.extend(more);
    }
    if moving.is_empty() {
        return None;
    }
    let (mut imports, mut stays, mut goes) = (String::new(), String::new(), String::new());
    for (stmt, text) in program.segments() {
        let place = match stmt {
            _ if is_import(stmt) => &mut imports,
            _ if is_definition(stmt) && !of(stmt).is_disjoint(&moving) => &mut goes,
            _ => &mut stays,
        };
        place.push_str(text);
    }
    let names: Vec<&str> = moving.iter().map(String::as_str).collect();
    let names = names.join(", ");
    Some((format!("{imports}from {MODULE} import {names}\n{stays}"), format!("{imports}{goes}")))
}
