//! Rewrites of names: other names, other imports, annotations.

use ruff_python_ast::visitor::{self, Visitor};
use ruff_python_ast::{Expr, Parameter, Stmt};

use crate::source::{Edits, Program, bound, expressions, read, span, statements};

/// Other usual names.
const SYNONYMS: &[(&str, &str)] = &[
    ("acc", "accuracy_sum"),
    ("all_preds", "pred_list"),
    ("batch", "data"),
    ("criterion", "loss_fn"),
    ("feats", "representations"),
    ("features", "embeds"),
    ("grad_scaler", "amp_scaler"),
    ("h", "state"),
    ("hidden", "memory"),
    ("i", "step_idx"),
    ("img", "picture"),
    ("kept", "stash"),
    ("loader", "dl"),
    ("logits", "class_scores"),
    ("loss", "objective"),
    ("losses", "loss_log"),
    ("model", "network"),
    ("net", "backbone"),
    ("opt", "optim_g"),
    ("optimizer", "opt"),
    ("out", "y_hat"),
    ("output", "result_t"),
    ("outputs", "results_l"),
    ("pred", "guess"),
    ("preds", "guesses"),
    ("running", "epoch_sum"),
    ("scaler", "grad_scaler"),
    ("scheduler", "lr_sched"),
    ("step", "it"),
    ("steps", "grad_acc"),
    ("student", "student_net"),
    ("target", "gt"),
    ("targets", "gts"),
    ("teacher", "teacher_net"),
    ("total", "tot"),
    ("trainer", "runner"),
    ("val_loader", "val_dl"),
    ("x", "inputs"),
    ("xs", "collected"),
    ("y", "labels"),
];

fn synonym(name: &str) -> Option<&'static str> {
    SYNONYMS.iter().find(|(old, _)| *old == name).map(|(_, new)| *new)
}

/// Names of variables and parameters become other ones.
pub(crate) fn renamed(program: &Program) -> Option<String> {
    struct All<'a>(Edits, &'a dyn Fn(&str) -> Option<&'static str>);
    impl<'a> Visitor<'a> for All<'a> {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if let Expr::Name(name) = expr
                && let Some(new) = self.1(name.id.as_str())
            {
                self.0.replace_node(expr, new);
            }
            visitor::walk_expr(self, expr);
        }
        fn visit_parameter(&mut self, parameter: &'a Parameter) {
            if let Some(new) = self.1(parameter.name.as_str()) {
                self.0.replace_node(&parameter.name, new);
            }
            visitor::walk_parameter(self, parameter);
        }
    }
    let names = (read(program.body()), bound(program.body()));
    let keywords: Vec<&str> = expressions(program.body())
        .into_iter()
        .filter_map(|expr| expr.as_call_expr())
        .flat_map(|call| call.arguments.keywords.iter().filter_map(|keyword| keyword.arg.as_ref()))
        .map(ruff_python_ast::Identifier::as_str)
        .collect();
    let defined: Vec<&str> = statements(program.body())
        .into_iter()
        .filter_map(|stmt| match stmt {
            Stmt::FunctionDef(def) => Some(def.name.as_str()),
            Stmt::ClassDef(class) => Some(class.name.as_str()),
            _ => None,
        })
        .collect();
    let free = |name: &str| {
        synonym(name).filter(|new| {
            // Not where the name is also one of an argument, of a function, or of something imported.
            !keywords.contains(&name)
                && !defined.contains(&name)
                && !names.0.contains(*new)
                && !names.1.contains(*new)
                && !program.text.contains(&format!("import {name}\n"))
                && !program.text.contains(&format!("nonlocal {name}"))
                && !program.text.contains(&format!("global {name}"))
        })
    };
    let mut all = All(Edits::default(), &free);
    for stmt in program.body() {
        all.visit_stmt(stmt);
    }
    all.0.apply(&program.text)
}

/// Attributes of objects become other ones.
pub(crate) fn renamed_attributes(program: &Program) -> Option<String> {
    let mut edits = Edits::default();
    for expr in expressions(program.body()) {
        if let Expr::Attribute(node) = expr
            && node.value.as_name_expr().is_some_and(|name| name.id.as_str() == "self")
            && let Some(new) = synonym(node.attr.as_str())
            && !program.text.contains(&format!("self.{new}"))
            && !program.text.contains(&format!("def {}(", node.attr))
        {
            edits.replace_node(&node.attr, new);
        }
    }
    edits.apply(&program.text)
}

/// Returns `true` if a module is imported by its own name, at the top.
fn imports_torch(program: &Program) -> bool {
    program.body().iter().any(|stmt| {
        stmt.as_import_stmt().is_some_and(|import| {
            import.names.iter().any(|alias| alias.name.as_str() == "torch" && alias.asname.is_none())
        })
    })
}

/// `import torch as th`.
pub(crate) fn torch_as_th(program: &Program) -> Option<String> {
    if !imports_torch(program) || program.text.contains("import torch.") {
        return None;
    }
    let mut edits = Edits::default();
    for stmt in program.body() {
        let Stmt::Import(import) = stmt else { continue };
        for alias in &import.names {
            if alias.name.as_str() == "torch" {
                edits.replace_node(alias, "torch as th");
            }
        }
    }
    for expr in expressions(program.body()) {
        if expr.as_name_expr().is_some_and(|name| name.id.as_str() == "torch") {
            edits.replace_node(expr, "th");
        }
    }
    edits.apply(&program.text)
}

/// `torch.nn.Linear` becomes `nn.Linear`, and `torch.no_grad()` becomes `no_grad()`.
pub(crate) fn imported_parts(program: &Program) -> Option<String> {
    from_modules(program, &|path| {
        let parts: Vec<&str> = path.split('.').collect();
        (parts.len() == 2 && parts[0] == "torch").then(|| ("torch".to_owned(), parts[1].to_owned()))
    })
}

/// `torch.nn.Linear` becomes `Linear`, and `torch.optim.SGD` becomes `SGD`.
pub(crate) fn imported_names(program: &Program) -> Option<String> {
    from_modules(program, &|path| {
        let (module, name) = path.rsplit_once('.')?;
        let known = [
            "torch.nn",
            "torch.optim",
            "torch.nn.functional",
            "torch.utils.data",
            "torch.utils.checkpoint",
            "torch.cuda.amp",
            "torch.amp",
            "torch.nn.utils",
            "torch.optim.lr_scheduler",
            "torch.nn.parallel",
            "torch.cuda",
        ];
        known.contains(&module).then(|| (module.to_owned(), name.to_owned()))
    })
}

/// `import torch.nn as nn`, `import torch.nn.functional as F`, `import torch.optim as optim`.
pub(crate) fn imported_modules(program: &Program) -> Option<String> {
    const ALIASES: &[(&str, &str)] = &[
        ("torch.nn.functional", "F"),
        ("torch.nn", "nn"),
        ("torch.optim", "optim"),
        ("torch.cuda.amp", "amp"),
        ("torch.utils.data", "data_utils"),
        ("torch.utils.checkpoint", "cp"),
    ];
    if !imports_torch(program) {
        return None;
    }
    let alias_of = |expr: &Expr| {
        let path = path(expr)?;
        let (module, alias) = ALIASES.iter().find(|(module, _)| *module == path)?;
        (!is_inside_longer(program, expr, ALIASES))
            .then(|| ((*alias).to_owned(), format!("import {module} as {alias}\n")))
    };
    imported(program, &alias_of)
}

/// Replaces expressions by a free name, which a line at the beginning imports.
fn imported(program: &Program, name_of: &dyn Fn(&Expr) -> Option<(String, String)>) -> Option<String> {
    let taken = (read(program.body()), bound(program.body()));
    let mut edits = Edits::default();
    let mut head = String::new();
    for expr in expressions(program.body()) {
        let Some((name, line)) = name_of(expr) else { continue };
        if taken.0.contains(&name) || taken.1.contains(&name) {
            continue;
        }
        edits.replace_node(expr, name);
        if !head.contains(&line) {
            head.push_str(&line);
        }
    }
    edits.insert(0, head);
    edits.apply(&program.text)
}

fn is_inside_longer(program: &Program, expr: &Expr, aliases: &[(&str, &str)]) -> bool {
    expressions(program.body()).into_iter().any(|other| {
        let (outer, inner) = (span(other), span(expr));
        outer.start == inner.start
            && outer.end > inner.end
            && path(other).is_some_and(|path| aliases.iter().any(|(module, _)| *module == path))
    })
}

/// Dotted path of an expression.
fn path(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Name(name) => Some(name.id.to_string()),
        Expr::Attribute(node) => Some(format!("{}.{}", path(&node.value)?, node.attr)),
        _ => None,
    }
}

fn from_modules(program: &Program, split: &dyn Fn(&str) -> Option<(String, String)>) -> Option<String> {
    if !imports_torch(program) {
        return None;
    }
    let name_of = |expr: &Expr| {
        let (module, name) = path(expr).as_deref().and_then(split)?;
        let line = format!("from {module} import {name}\n");
        (name != "Tensor" && expr.is_attribute_expr()).then_some((name, line))
    };
    imported(program, &name_of).filter(|text| text.contains("from torch"))
}

/// Variables and parameters have types.
pub(crate) fn annotated(program: &Program) -> Option<String> {
    let mut edits = Edits::default();
    for stmt in statements(program.body()) {
        match stmt {
            Stmt::Assign(node) => {
                let [target @ (Expr::Name(_) | Expr::Attribute(_))] = &node.targets[..] else { continue };
                let annotation = match &*node.value {
                    Expr::List(_) => "List[Any]",
                    Expr::Dict(_) => "Dict[str, Any]",
                    Expr::NumberLiteral(_) => "float",
                    Expr::Call(call) if program.of(call).contains("Linear(") => "nn.Module",
                    Expr::Call(_) | Expr::BinOp(_) => "Any",
                    _ => continue,
                };
                edits.insert(span(target).end, format!(": {annotation}"));
            }
            Stmt::FunctionDef(def) => {
                for parameter in &def.parameters.args {
                    let name = parameter.parameter.name.as_str();
                    if parameter.parameter.annotation.is_some()
                        || name == "self"
                        || name == "cls"
                        || parameter.default.is_some()
                    {
                        continue;
                    }
                    let annotation = match name {
                        "model" | "net" | "teacher" | "student" => "nn.Module",
                        "loader" | "train_loader" | "val_loader" | "test_loader" => "DataLoader",
                        "optimizer" | "opt" => "torch.optim.Optimizer",
                        "x" | "y" | "loss" | "output" | "target" => "torch.Tensor",
                        _ => continue,
                    };
                    edits.insert(span(&parameter.parameter.name).end, format!(": {annotation}"));
                }
            }
            _ => {}
        }
    }
    let text = edits.apply(&program.text)?;
    Some(format!(
        "from typing import Any, Dict, List\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n{text}"
    ))
}
