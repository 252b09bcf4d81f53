//! Rewrites of expressions: temporaries, dictionaries, attributes of outputs, containers.

use ruff_python_ast::{Expr, Stmt};

use crate::source::{
    Edits, Program, blocks, bound, expressions, occurrences, read, repeat, span, statements,
};

/// Nested calls and operands get names of their own.
pub(crate) fn with_temporaries(program: &Program) -> Option<String> {
    if program.text.contains("tmp") {
        return None;
    }
    repeat(program, |program| {
        let number = program.text.matches("tmp_").count();
        let is_free = |number: &usize| !program.text.contains(&format!("tmp_{number}"));
        let free = (number..=2 * number).find(is_free)?;
        for scope in blocks(program.body()) {
            for stmt in scope.block {
                let Some(lifted) = value_of(stmt).and_then(liftable) else { continue };
                let indent = program.indent(stmt)?;
                let name = format!("tmp_{free}");
                let mut edits = Edits::default();
                edits.insert(span(stmt).start, format!("{name} = {}\n{indent}", program.of(lifted)));
                let place = span(lifted);
                let (before, after) = (&program.text[..place.start], &program.text[place.end..]);
                if before.ends_with('(')
                    && after.starts_with(").")
                    && !before[..before.len() - 1]
                        .ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ')')
                {
                    edits.replace(place.start - 1..place.end + 1, name);
                } else {
                    edits.replace_node(lifted, name);
                }
                return edits.apply(&program.text);
            }
        }
        None
    })
}

fn value_of(stmt: &Stmt) -> Option<&Expr> {
    match stmt {
        Stmt::Assign(node) => Some(&node.value),
        Stmt::AnnAssign(node) => node.value.as_deref(),
        Stmt::AugAssign(node) => Some(&node.value),
        Stmt::Expr(node) => Some(&node.value),
        Stmt::Return(node) => node.value.as_deref(),
        _ => None,
    }
}

/// The part of an expression that is evaluated first, if it is a call with arguments.
fn liftable(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Call(call) => {
            if let Expr::Attribute(attribute) = &*call.func {
                if let Expr::Call(inner) = &*attribute.value {
                    return liftable(&attribute.value)
                        .or_else(|| makes_a_value(inner).then_some(&*attribute.value));
                }
                if let Expr::BinOp(_) = &*attribute.value {
                    return Some(&attribute.value);
                }
            }
            if !is_path(&call.func) {
                return None;
            }
            let first = call.arguments.args.first()?;
            match first {
                Expr::Call(inner) => liftable(first).or_else(|| makes_a_value(inner).then_some(first)),
                Expr::BinOp(_) => liftable(first).or(Some(first)),
                _ => None,
            }
        }
        Expr::BinOp(node) => match &*node.left {
            left @ Expr::Call(inner) => liftable(left).or_else(|| makes_a_value(inner).then_some(left)),
            left @ Expr::BinOp(_) => liftable(left),
            _ => None,
        },
        Expr::Attribute(node) => match &*node.value {
            value @ Expr::Call(_) => liftable(value).or(Some(value)),
            _ => None,
        },
        _ => None,
    }
}

/// A call whose result is worth a name: not of a bare constructor, a generator of parameters, or `super`.
fn makes_a_value(call: &ruff_python_ast::ExprCall) -> bool {
    const NOT: &[&str] = &[
        "super",
        "len",
        "range",
        "parameters",
        "named_parameters",
        "list",
        "iter",
        "zip",
        "enumerate",
        "tqdm",
        "filter",
        "map",
        "open",
        "items",
        "values",
        "keys",
        "setdefault",
        "get",
    ];
    let name = match &*call.func {
        Expr::Name(name) => name.id.as_str(),
        Expr::Attribute(attribute) => attribute.attr.as_str(),
        _ => return true,
    };
    // A name in capitals makes an object; its call is `Loss()(a, b)`.
    !NOT.contains(&name) && !name.starts_with(char::is_uppercase)
}

fn is_path(expr: &Expr) -> bool {
    match expr {
        Expr::Name(_) => true,
        Expr::Attribute(node) => is_path(&node.value),
        _ => false,
    }
}

/// A value that a backward pass begins at, where the block that differentiates it also assigns it, once.
struct Loss<'a> {
    name: &'a str,
    assigned: &'a Stmt,
    value: &'a Expr,
    /// Statements after the assignment that use it.
    uses: Vec<&'a Expr>,
}

fn loss_of(program: &Program) -> Option<Loss<'_>> {
    blocks(program.body()).into_iter().find_map(|scope| {
        scope.block.iter().enumerate().find_map(|(index, stmt)| {
            let Stmt::Assign(node) = stmt else { return None };
            let [Expr::Name(target)] = &node.targets[..] else { return None };
            let name = target.id.as_str();
            let rest = &scope.block[index + 1..];
            let differentiated = expressions(rest).into_iter().any(|expr| {
                expr.as_call_expr().is_some_and(|call| {
                    call.func.as_attribute_expr().is_some_and(|attribute| {
                        attribute.attr.as_str() == "backward"
                            && attribute.value.as_name_expr().is_some_and(|value| value.id.as_str() == name)
                    })
                })
            });
            let uses = occurrences(rest, name);
            let stores = statements(rest).into_iter().any(|stmt| match stmt {
                Stmt::AugAssign(_) | Stmt::Assign(_) | Stmt::For(_) | Stmt::With(_) => {
                    bound(std::slice::from_ref(stmt)).contains(name)
                }
                _ => false,
            });
            // It may have no other uses, and be a value of a call: a sum of parts has another shape.
            let everywhere = occurrences(program.body(), name).len();
            (differentiated && !stores && everywhere == uses.len() + 1).then_some(Loss {
                name,
                assigned: stmt,
                value: &node.value,
                uses,
            })
        })
    })
}

fn replaced(program: &Program, loss: &Loss<'_>, assignment: String, by: &str) -> Option<String> {
    let mut edits = Edits::default();
    edits.replace_node(loss.assigned, assignment);
    for each in &loss.uses {
        edits.replace_node(*each, by);
    }
    edits.apply(&program.text)
}

fn has_name(program: &Program, name: &str) -> bool {
    bound(program.body()).contains(name) || !occurrences(program.body(), name).is_empty()
}

/// The loss is an entry of a dictionary.
pub(crate) fn loss_in_dictionary(program: &Program) -> Option<String> {
    let loss = loss_of(program)?;
    if has_name(program, "losses") || loss.name == "losses" {
        return None;
    }
    let value = program.of(loss.value);
    replaced(program, &loss, format!("losses = {{\"loss\": {value}}}"), "losses[\"loss\"]")
}

/// The model computes the loss: `outputs.loss`.
pub(crate) fn loss_of_outputs(program: &Program) -> Option<String> {
    let loss = loss_of(program)?;
    let criterion = loss.value.as_call_expr()?;
    let forward = criterion.arguments.args.first()?.as_call_expr()?;
    let label = criterion.arguments.args.get(1)?;
    if has_name(program, "outputs")
        || !criterion.arguments.keywords.is_empty()
        || criterion.arguments.args.len() != 2
    {
        return None;
    }
    let (model, label) = (program.of(&*forward.func), program.of(label));
    let input = forward.arguments.args.first().map(|input| program.of(input))?;
    replaced(program, &loss, format!("outputs = {model}({input}, labels={label})"), "outputs.loss")
}

/// The model computes the loss and returns it in a dictionary.
pub(crate) fn loss_key_of_outputs(program: &Program) -> Option<String> {
    let text = loss_of_outputs(program)?;
    Some(text.replace("outputs.loss", "outputs[\"loss\"]"))
}

/// The model returns the loss with its logits.
pub(crate) fn loss_in_tuple(program: &Program) -> Option<String> {
    let loss = loss_of(program)?;
    let criterion = loss.value.as_call_expr()?;
    let forward = criterion.arguments.args.first()?.as_call_expr()?;
    let label = criterion.arguments.args.get(1)?;
    if has_name(program, "logits")
        || !criterion.arguments.keywords.is_empty()
        || criterion.arguments.args.len() != 2
    {
        return None;
    }
    let (model, label) = (program.of(&*forward.func), program.of(label));
    let input = forward.arguments.args.first().map(|input| program.of(input))?;
    replaced(
        program,
        &loss,
        format!("{name}, logits = {model}({input}, {label})", name = loss.name),
        loss.name,
    )
}

/// A list or a sum that begins empty, and where it stands.
fn accumulator(program: &Program, is_empty: impl Fn(&Expr) -> bool) -> Option<(&str, &Stmt, &Expr)> {
    statements(program.body()).into_iter().find_map(|stmt| {
        let Stmt::Assign(node) = stmt else { return None };
        let [Expr::Name(target)] = &node.targets[..] else { return None };
        let name = target.id.as_str();
        let times = statements(program.body())
            .into_iter()
            .filter(|other| matches!(other, Stmt::Assign(_) | Stmt::For(_)))
            .filter(|other| bound(std::slice::from_ref(*other)).contains(name))
            .filter(|other| matches!(other, Stmt::Assign(_)))
            .count();
        let is_parameter =
            read(program.body()).contains(name) && program.text.contains(&format!("global {name}"));
        (is_empty(&node.value) && times == 1 && !is_parameter).then_some((name, stmt, &*node.value))
    })
}

fn is_empty_list(expr: &Expr) -> bool {
    expr.as_list_expr().is_some_and(|list| list.elts.is_empty())
}

fn is_zero(expr: &Expr) -> bool {
    expr.as_number_literal_expr().is_some_and(|number| match &number.value {
        ruff_python_ast::Number::Int(value) => value.as_i64() == Some(0),
        ruff_python_ast::Number::Float(value) => *value == 0.0,
        ruff_python_ast::Number::Complex { .. } => false,
    })
}

fn in_container(
    program: &Program,
    is_empty: impl Fn(&Expr) -> bool,
    make: impl Fn(&str, &str) -> String,
) -> Option<String> {
    if has_name(program, "history") {
        return None;
    }
    let (name, stmt, value) = accumulator(program, is_empty)?;
    let mut edits = Edits::default();
    edits.replace_node(stmt, make(name, program.of(value)));
    for each in occurrences(program.body(), name) {
        if !(span(stmt).start <= span(each).start && span(each).end <= span(stmt).end) {
            edits.replace_node(each, format!("history[\"{name}\"]"));
        }
    }
    edits.apply(&program.text)
}

/// The list is one of a dictionary.
pub(crate) fn list_in_dictionary(program: &Program) -> Option<String> {
    in_container(program, is_empty_list, |name, value| {
        format!("history = {{\"{name}\": {value}, \"other\": []}}")
    })
}

/// The list is one of a `defaultdict`.
pub(crate) fn list_in_defaultdict(program: &Program) -> Option<String> {
    let text = in_container(program, is_empty_list, |_, _| "history = defaultdict(list)".to_owned())?;
    Some(format!("from collections import defaultdict\n{text}"))
}

/// The sum is one of a dictionary.
pub(crate) fn sum_in_dictionary(program: &Program) -> Option<String> {
    in_container(program, is_zero, |name, value| format!("history = {{\"{name}\": {value}}}"))
}

/// The sum is one of a `defaultdict`.
pub(crate) fn sum_in_defaultdict(program: &Program) -> Option<String> {
    let text = in_container(program, is_zero, |_, _| "history = collections.defaultdict(float)".to_owned())?;
    Some(format!("import collections\n{text}"))
}

/// `list()` in place of `[]`, and `+=` in place of `append`.
pub(crate) fn list_by_addition(program: &Program) -> Option<String> {
    let mut edits = Edits::default();
    for stmt in statements(program.body()) {
        let Stmt::Expr(node) = stmt else { continue };
        let Some(call) = node.value.as_call_expr() else { continue };
        let Some(attribute) = call.func.as_attribute_expr() else { continue };
        if attribute.attr.as_str() == "append" && call.arguments.args.len() == 1 && is_path(&attribute.value)
        {
            let value = program.of(&call.arguments.args[0]);
            edits.replace_node(stmt, format!("{} += [{value}]", program.of(&*attribute.value)));
        }
    }
    edits.apply(&program.text)
}

/// Each value that is kept is a tuple with a number.
pub(crate) fn in_tuples(program: &Program) -> Option<String> {
    let mut edits = Edits::default();
    for stmt in statements(program.body()) {
        let Stmt::Expr(node) = stmt else { continue };
        let Some(call) = node.value.as_call_expr() else { continue };
        let Some(attribute) = call.func.as_attribute_expr() else { continue };
        let [value] = &call.arguments.args[..] else { continue };
        if attribute.attr.as_str() == "append" && !matches!(value, Expr::Dict(_) | Expr::Starred(_)) {
            edits.replace_node(value, format!("(time.time(), {})", program.of(value)));
        }
    }
    // What is joined has to stay as it is.
    if ["cat(", "stack(", "tensor(", "sum("].iter().any(|way| program.text.contains(way)) {
        return None;
    }
    edits.insert(0, "import time\n");
    edits.apply(&program.text).filter(|text| text.contains("(time.time(), "))
}
