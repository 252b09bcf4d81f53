//! Rewrites that move statements: into `main`, into a class, out of a loop.

use std::fmt::Write as _;

use ruff_python_ast::{Expr, Stmt};

use crate::source::{
    Edits, Names, Program, blocks, bound, bound_inside, expressions, free, indented, known, occurrences,
    read, span, statements, targets,
};

fn is_definition(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::FunctionDef(_) | Stmt::ClassDef(_))
}

fn is_import(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Import(_) | Stmt::ImportFrom(_))
}

/// Statements of a script that are neither imports nor definitions.
fn actions(program: &Program) -> Vec<&Stmt> {
    program.body().iter().filter(|stmt| !is_definition(stmt) && !is_import(stmt)).collect()
}

/// Names that the actions of a script bind.
fn bound_by_actions(program: &Program) -> Names {
    actions(program).into_iter().flat_map(|stmt| bound(std::slice::from_ref(stmt))).collect()
}

/// Everything but imports moves into `main`; definitions only where they read what has moved.
pub(crate) fn into_main(program: &Program) -> Option<String> {
    if !program.has_plain_lines() || actions(program).is_empty() {
        return None;
    }
    let mut moved = bound_by_actions(program);
    // A definition that moves takes those with it that call it.
    loop {
        let more: Names = program
            .body()
            .iter()
            .filter(|stmt| is_definition(stmt) && !free(stmt).is_disjoint(&moved))
            .flat_map(|stmt| bound(std::slice::from_ref(stmt)))
            .collect();
        if more.is_subset(&moved) {
            break;
        }
        moved.extend(more);
    }
    // Classes are hardly ever in a function.
    let is_class =
        |stmt: &&Stmt| matches!(stmt, Stmt::ClassDef(class) if moved.contains(class.name.as_str()));
    if program.body().iter().any(|stmt| is_class(&stmt)) {
        return None;
    }
    let (mut stays, mut goes) = (String::new(), String::new());
    for (stmt, text) in program.segments() {
        let stands =
            is_import(stmt) || is_definition(stmt) && bound(std::slice::from_ref(stmt)).is_disjoint(&moved);
        if stands { &mut stays } else { &mut goes }.push_str(text);
    }
    Some(format!(
        "{stays}\n\ndef main():\n{}\n\nif __name__ == \"__main__\":\n    main()\n",
        indented(&goes, "    ")
    ))
}

/// The script becomes a class: what stands before its first loop is its constructor, the rest a method, and
/// what the method uses is an attribute. Free names become parameters of the constructor.
pub(crate) fn into_class(program: &Program) -> Option<String> {
    let moved = bound_by_actions(program);
    let definitions: Vec<Stmt> = program.body().iter().filter(|stmt| is_definition(stmt)).cloned().collect();
    let acts: Vec<Stmt> = actions(program).into_iter().cloned().collect();
    if !program.has_plain_lines() || definitions.iter().any(|stmt| !free(stmt).is_disjoint(&moved)) {
        return None;
    }
    let first =
        acts.iter().position(|stmt| !matches!(stmt, Stmt::Assign(_) | Stmt::AnnAssign(_) | Stmt::Expr(_)))?;
    let known = known(program.body());
    let free: Names =
        read(&acts).into_iter().filter(|name| !moved.contains(name) && !known.contains(name)).collect();
    let inside = bound_inside(&acts);
    let free: Names = free.difference(&inside).cloned().collect();
    let mut attributes: Names = bound(&acts[..first]);
    attributes.extend(free.iter().cloned());
    if attributes.is_empty() || !attributes.is_disjoint(&inside) {
        return None;
    }
    let mut edits = Edits::default();
    for expr in expressions(program.body()) {
        let Expr::Name(name) = expr else { continue };
        let in_definition = program
            .body()
            .iter()
            .any(|stmt| (is_definition(stmt) || is_import(stmt)) && stmt_contains(stmt, expr));
        if attributes.contains(name.id.as_str()) && !in_definition {
            edits.replace_node(expr, format!("self.{}", name.id));
        }
    }
    let changed = Program::read(edits.apply(&program.text)?)?;
    let (mut stays, mut setup, mut rest) = (String::new(), String::new(), String::new());
    let mut seen = 0;
    for (stmt, text) in changed.segments() {
        if is_definition(stmt) || is_import(stmt) {
            stays.push_str(text);
            continue;
        }
        if seen < first { &mut setup } else { &mut rest }.push_str(text);
        seen += 1;
    }
    let mut out = format!("{stays}\n\nclass Trainer:\n    def __init__(self");
    for name in &free {
        let _ = write!(out, ", {name}");
    }
    out.push_str("):\n");
    for name in &free {
        let _ = writeln!(out, "        self.{name} = {name}");
    }
    out.push_str(&indented(&setup, "        "));
    let _ = write!(out, "\n    def train(self):\n{}", indented(&rest, "        "));
    Some(out)
}

fn stmt_contains(stmt: &Stmt, expr: &Expr) -> bool {
    let (outer, inner) = (span(stmt), span(expr));
    outer.start <= inner.start && inner.end <= outer.end
}

/// Returns `true` if a statement leaves the function or the loop around it, or binds what it does not own.
fn leaves(stmt: &Stmt) -> bool {
    statements(std::slice::from_ref(stmt)).iter().any(|stmt| {
        matches!(
            stmt,
            Stmt::Return(_)
                | Stmt::Break(_)
                | Stmt::Continue(_)
                | Stmt::Global(_)
                | Stmt::Nonlocal(_)
                | Stmt::FunctionDef(_)
        )
    }) || expressions(std::slice::from_ref(stmt))
        .iter()
        .any(|expr| matches!(expr, Expr::Yield(_) | Expr::YieldFrom(_) | Expr::Named(_) | Expr::Await(_)))
}

/// The first statements of a loop's body, up to its last step, move to a function that returns the one value
/// that the rest of the body uses.
pub(crate) fn step_function(program: &Program) -> Option<String> {
    out_of_loop(program, true)
}

/// As [`step_function`], but only the statements before the backward pass.
pub(crate) fn loss_function(program: &Program) -> Option<String> {
    out_of_loop(program, false)
}

fn out_of_loop(program: &Program, with_step: bool) -> Option<String> {
    if !program.has_plain_lines() {
        return None;
    }
    let scopes = blocks(program.body());
    scopes.iter().find_map(|scope| {
        scope.block.iter().find_map(|stmt| {
            let Stmt::For(node) = stmt else { return None };
            let text = |stmt: &Stmt| program.of(stmt).to_owned();
            let end = if with_step {
                node.body
                    .iter()
                    .rposition(|stmt| text(stmt).contains(".backward(") || text(stmt).contains(".step("))?
                    + 1
            } else {
                node.body.iter().position(|stmt| text(stmt).contains("backward("))?
            };
            let (prefix, rest) = node.body.split_at(end);
            if prefix.is_empty() || rest.is_empty() || prefix.iter().any(leaves) {
                return None;
            }
            let own = bound(prefix);
            // A variable of the loop may only be one of the rest of the body.
            let outside =
                |name: &str| occurrences(program.body(), name).len() - occurrences(prefix, name).len();
            let used: Vec<&String> = own.iter().filter(|name| outside(name) > 0).collect();
            let [result] = used[..] else { return None };
            if outside(result) != occurrences(rest, result).len() {
                return None;
            }
            let known = known(program.body());
            let inside = bound_inside(prefix);
            let arguments: Vec<String> = read(prefix)
                .into_iter()
                .filter(|name| !own.contains(name) && !known.contains(name) && !inside.contains(name))
                .collect();
            if updates_a_parameter(prefix) || reads_before_binding(prefix, &own) {
                return None;
            }
            let host = match scope.function {
                Some(function) => function,
                None => program.body().iter().find(|top| {
                    let (outer, inner) = (span(*top), span(stmt));
                    outer.start <= inner.start && inner.end <= outer.end
                })?,
            };
            let indent = program.indent(host)?;
            let own_lines = program.lines(prefix)?;
            let old = program.indent(&prefix[0])?;
            let name = if with_step { "train_step" } else { "compute_loss" };
            let list = arguments.join(", ");
            let (head, call) = if scope.is_method {
                let list = if list.is_empty() { list } else { format!(", {list}") };
                let given = list.trim_start_matches(", ").to_owned();
                (format!("{indent}def {name}(self{list}):\n"), format!("self.{name}({given})"))
            } else {
                (format!("{indent}def {name}({list}):\n"), format!("{name}({list})"))
            };
            let mut moved = String::new();
            for line in program.text[own_lines.clone()].lines() {
                let _ = writeln!(moved, "{indent}    {}", line.strip_prefix(&old).unwrap_or(line));
            }
            let mut edits = Edits::default();
            edits.insert(
                program.line_start(span(host).start),
                format!("{head}{moved}{indent}    return {result}\n\n"),
            );
            edits.replace(own_lines, format!("{old}{result} = {call}\n"));
            edits.apply(&program.text)
        })
    })
}

/// Returns `true` if a name is updated that the statements have not bound before: its new value would not be
/// seen outside a function.
fn updates_a_parameter(body: &[Stmt]) -> bool {
    let mut own = Names::new();
    statements(body).into_iter().any(|stmt| match stmt {
        Stmt::AugAssign(node) => {
            node.target.as_name_expr().is_some_and(|name| !own.contains(name.id.as_str()))
        }
        Stmt::Assign(_) | Stmt::AnnAssign(_) | Stmt::For(_) | Stmt::With(_) => {
            own.append(&mut bound(std::slice::from_ref(stmt)));
            false
        }
        _ => false,
    })
}

/// Returns `true` if statements read a name of their own before they bind it: in a function, it would be
/// unbound.
fn reads_before_binding(body: &[Stmt], own: &Names) -> bool {
    let mut done = Names::new();
    statements(body).into_iter().any(|stmt| {
        let this = std::slice::from_ref(stmt);
        match stmt {
            Stmt::For(_) | Stmt::With(_) | Stmt::If(_) | Stmt::While(_) | Stmt::Try(_) => {
                if let Stmt::For(node) = stmt {
                    done.append(&mut targets(&node.target));
                }
                false
            }
            _ => {
                let early = read(this).iter().any(|name| own.contains(name) && !done.contains(name));
                done.append(&mut bound(this));
                early
            }
        }
    })
}
