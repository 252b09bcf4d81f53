//! Rewrites of loops.

use ruff_python_ast::{Expr, Stmt, StmtFor};

use crate::source::{Edits, Program, bound, expressions, indented, read, repeat, span, statements, targets};

/// Loops over a loader or another sequence of batches, innermost last.
fn batch_loops(program: &Program) -> Vec<(&Stmt, &StmtFor)> {
    statements(program.body())
        .into_iter()
        .filter_map(|stmt| stmt.as_for_stmt().map(|node| (stmt, node)))
        .filter(|(_, node)| !node.is_async && node.orelse.is_empty() && is_sequence(&node.iter))
        .collect()
}

/// An iterable that has a name, or that a call of something else than a counter makes.
fn is_sequence(iter: &Expr) -> bool {
    match iter {
        Expr::Name(_) | Expr::Attribute(_) => true,
        Expr::Call(call) => call.func.as_name_expr().is_some_and(|name| {
            !["range", "enumerate", "zip", "tqdm", "trange", "reversed", "list"].contains(&name.id.as_str())
        }),
        _ => false,
    }
}

fn is_new(program: &Program, name: &str) -> bool {
    !bound(program.body()).contains(name)
        && !read(program.body()).contains(name)
        && !program.text.contains(&format!(" {name} "))
}

/// The loop takes its batches with `next`.
pub(crate) fn as_while(program: &Program) -> Option<String> {
    if !program.has_plain_lines() {
        return None;
    }
    let loops = batch_loops(program);
    let (stmt, node) = loops.last()?;
    let indent = program.indent(stmt)?;
    if !is_new(program, "batches") {
        return None;
    }
    let mut edits = Edits::default();
    let start = span(*stmt).start;
    let head = program.line_end(span(&*node.iter).end);
    let comment = program.text[span(&*node.iter).end..head].trim_start_matches(':').trim_end().to_owned();
    let (target, iter) = (program.of(&*node.target), program.of(&*node.iter));
    edits.replace(
        start..head,
        format!(
            "batches = iter({iter})\n{indent}while True:{comment}\n{indent}    try:\n{indent}        {target} = next(batches)\n{indent}    except StopIteration:\n{indent}        break\n"
        ),
    );
    edits.apply(&program.text)
}

/// The loop counts its batches.
pub(crate) fn enumerated(program: &Program) -> Option<String> {
    if !is_new(program, "batch_idx") {
        return None;
    }
    let mut edits = Edits::default();
    let loops = batch_loops(program);
    let (_, node) = loops.last()?;
    let target = program.of(&*node.target);
    let target = match &*node.target {
        Expr::Tuple(tuple) if !tuple.parenthesized => format!("({target})"),
        _ => target.to_owned(),
    };
    edits.replace_node(&*node.target, format!("batch_idx, {target}"));
    edits.replace_node(&*node.iter, format!("enumerate({})", program.of(&*node.iter)));
    edits.apply(&program.text)
}

/// The loop shows its progress.
pub(crate) fn with_progress_bar(program: &Program) -> Option<String> {
    let mut edits = Edits::default();
    edits.insert(0, "from tqdm import tqdm\n");
    let loops = batch_loops(program);
    let (_, node) = loops.last()?;
    edits
        .replace_node(&*node.iter, format!("tqdm({}, desc=\"train\", leave=False)", program.of(&*node.iter)));
    edits.apply(&program.text)
}

/// The progress bar has a name, and is enumerated.
pub(crate) fn with_named_progress_bar(program: &Program) -> Option<String> {
    if !is_new(program, "pbar") || !is_new(program, "it") {
        return None;
    }
    let loops = batch_loops(program);
    let (stmt, node) = loops.last()?;
    let indent = program.indent(stmt)?;
    let target = match &*node.target {
        Expr::Tuple(tuple) if !tuple.parenthesized => format!("({})", program.of(tuple)),
        other => program.of(other).to_owned(),
    };
    let mut edits = Edits::default();
    edits.insert(0, "from tqdm import tqdm\n");
    let iter = program.of(&*node.iter);
    edits.insert(span(*stmt).start, format!("pbar = tqdm(enumerate({iter}), total=len({iter}))\n{indent}"));
    edits.replace_node(&*node.target, format!("it, {target}"));
    edits.replace_node(&*node.iter, "pbar");
    edits.apply(&program.text)
}

/// A loop over epochs goes around the loop in which the training is.
pub(crate) fn in_epochs(program: &Program) -> Option<String> {
    if !program.has_plain_lines() || program.text.contains("epoch") {
        return None;
    }
    let loops = batch_loops(program);
    let (stmt, _) = loops.iter().find(|(stmt, _)| program.of(*stmt).contains("backward("))?;
    let indent = program.indent(stmt)?;
    let lines = program.lines(std::slice::from_ref(stmt))?;
    let inner = indented(&program.text[lines.clone()], "    ");
    let mut edits = Edits::default();
    edits.replace(lines, format!("{indent}for epoch in range(args.epochs):\n{inner}"));
    edits.apply(&program.text)
}

/// A batch that cannot be used is left out.
pub(crate) fn with_early_continue(program: &Program) -> Option<String> {
    let loops = batch_loops(program);
    let (_, node) = loops.last()?;
    let first = node.body.first()?;
    let indent = program.indent(first)?;
    let name = targets(&node.target).into_iter().next()?;
    let mut edits = Edits::default();
    edits.insert(
        program.line_start(span(first).start),
        format!("{indent}if {name} is None:\n{indent}    continue\n"),
    );
    edits.apply(&program.text)
}

/// What a loop keeps, it keeps every few steps.
pub(crate) fn now_and_then(program: &Program) -> Option<String> {
    if !is_new(program, "batch_idx") {
        return None;
    }
    let counted = Program::read(enumerated(program)?)?;
    let rewritten = repeat(&counted, |program| {
        for (_, node) in
            statements(program.body()).into_iter().filter_map(|stmt| stmt.as_for_stmt().map(|n| (stmt, n)))
        {
            if !targets(&node.target).contains("batch_idx") {
                continue;
            }
            for stmt in &node.body {
                if !keeps(program, stmt) {
                    continue;
                }
                let indent = program.indent(stmt)?;
                let lines = program.lines(std::slice::from_ref(stmt))?;
                let inner = indented(&program.text[lines.clone()], "    ");
                let mut edits = Edits::default();
                edits.replace(lines, format!("{indent}if batch_idx % args.log_interval == 0:\n{inner}"));
                return edits.apply(&program.text);
            }
        }
        None
    })?;
    Some(rewritten)
}

/// A statement that stores a value for later: `xs.append(x)`, `total += x`.
fn keeps(program: &Program, stmt: &Stmt) -> bool {
    match stmt {
        Stmt::AugAssign(node) => {
            !expressions(std::slice::from_ref(stmt)).iter().any(|expr| expr.is_literal_expr())
                && !program.of(&*node.value).contains("backward(")
        }
        Stmt::Expr(node) => node.value.as_call_expr().is_some_and(|call| {
            call.func.as_attribute_expr().is_some_and(|attribute| {
                ["append", "extend", "update", "add"].contains(&attribute.attr.as_str())
            })
        }),
        _ => false,
    }
}
