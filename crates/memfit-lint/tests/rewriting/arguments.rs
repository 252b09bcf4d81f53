//! Rewrites of arguments: by keyword, and from a configuration.

use ruff_python_ast::{Expr, Operator};

use crate::source::{Edits, Program, expressions, read};

/// Names of the positional parameters of calls, by the last part of the callee's name.
const PARAMETERS: &[(&str, &[&str])] = &[
    ("Adam", &["params"]),
    ("AdamW", &["params"]),
    ("BatchNorm1d", &["num_features"]),
    ("BatchNorm2d", &["num_features"]),
    ("Conv2d", &["in_channels", "out_channels", "kernel_size"]),
    ("DataLoader", &["dataset", "batch_size"]),
    ("DataParallel", &["module"]),
    ("DistributedDataParallel", &["module"]),
    ("Dropout", &["p"]),
    ("Linear", &["in_features", "out_features"]),
    ("SGD", &["params", "lr"]),
    ("autocast", &["device_type", "dtype"]),
    ("binary_cross_entropy_with_logits", &["input", "target"]),
    ("cat", &["tensors", "dim"]),
    ("clip_grad_norm_", &["parameters", "max_norm"]),
    ("clip_grad_value_", &["parameters", "clip_value"]),
    ("compile", &["model"]),
    ("criterion", &["input", "target"]),
    ("cross_entropy", &["input", "target"]),
    ("deepcopy", &["x"]),
    ("grad", &["outputs", "inputs"]),
    ("l1_loss", &["input", "target"]),
    ("load", &["f"]),
    ("load_state_dict", &["state_dict"]),
    ("log_softmax", &["input", "dim"]),
    ("mse_loss", &["input", "target"]),
    ("nll_loss", &["input", "target"]),
    ("pad", &["input", "pad"]),
    ("register_forward_hook", &["hook"]),
    ("scale", &["outputs"]),
    ("set_grad_enabled", &["mode"]),
    ("softmax", &["input", "dim"]),
    ("stack", &["tensors", "dim"]),
    ("unscale_", &["optimizer"]),
    ("zero_grad", &["set_to_none"]),
];

/// Positional arguments of known functions are given by name.
pub(crate) fn by_keyword(program: &Program) -> Option<String> {
    let mut edits = Edits::default();
    for expr in expressions(program.body()) {
        let Some(call) = expr.as_call_expr() else { continue };
        let (name, is_method) = match &*call.func {
            Expr::Name(name) => (name.id.as_str(), false),
            Expr::Attribute(attribute) => (attribute.attr.as_str(), is_method(program, &attribute.value)),
            _ => continue,
        };
        let Some((_, parameters)) = PARAMETERS.iter().find(|(known, _)| *known == name) else { continue };
        // `x.softmax(1)` has no `input`.
        let parameters = match (name, is_method) {
            ("softmax" | "log_softmax", true) => &parameters[1..],
            _ => parameters,
        };
        for (argument, parameter) in call.arguments.args.iter().zip(parameters) {
            if matches!(argument, Expr::Starred(_)) {
                break;
            }
            edits.replace_node(argument, format!("{parameter}={}", program.of(argument)));
        }
        if call.arguments.args.len() > parameters.len()
            || call.arguments.args.iter().any(|argument| matches!(argument, Expr::Starred(_)))
        {
            // A positional argument would follow.
            return None;
        }
    }
    let text = nested(program, edits)?;
    Program::read(text.clone()).map(|_| text)
}

/// Returns `true` if the receiver of a call is not a module.
fn is_method(program: &Program, receiver: &Expr) -> bool {
    let text = program.of(receiver);
    !["torch", "F", "nn", "nn.functional", "torch.nn.functional", "functional"].contains(&text)
}

/// Applies insertions before arguments, which may be nested.
fn nested(program: &Program, edits: Edits) -> Option<String> {
    edits.into_insertions().apply(&program.text)
}

/// Numbers in divisions and remainders come from an object of arguments.
pub(crate) fn numbers_of_args(program: &Program) -> Option<String> {
    numbers(program, |value| format!("args.value_{value}"))
}

/// Numbers in divisions and remainders come from a dictionary.
pub(crate) fn numbers_of_dictionary(program: &Program) -> Option<String> {
    numbers(program, |value| format!("cfg[\"value_{value}\"]"))
}

fn numbers(program: &Program, of: impl Fn(&str) -> String) -> Option<String> {
    if read(program.body()).contains("args") || read(program.body()).contains("cfg") {
        return None;
    }
    let mut edits = Edits::default();
    for expr in expressions(program.body()) {
        let Expr::BinOp(node) = expr else { continue };
        if !matches!(node.op, Operator::Div | Operator::Mod | Operator::FloorDiv) {
            continue;
        }
        if let Expr::NumberLiteral(number) = &*node.right {
            let text = program.of(number);
            if text.chars().all(|character| character.is_ascii_digit()) && text != "1" {
                edits.replace_node(number, of(text));
            }
        }
    }
    edits.apply(&program.text)
}
