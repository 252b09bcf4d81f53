//! Facts of function and class definitions.

use ruff_python_ast::{Expr, ModModule, Stmt, StmtClassDef};

use super::statement::assignment;
use super::{Walker, span, turns_off};
use crate::facts::{Function, Grad, Graph};
use crate::position::Span;

impl<'a> Walker<'a> {
    /// Adds facts for the function and class definitions.
    pub(super) fn describe(&mut self, module: &'a ModModule) {
        for index in 0..self.definitions.classes.len() {
            let node = self.definitions.classes[index].node;
            let bases: Vec<String> = node
                .arguments
                .iter()
                .flat_map(|arguments| arguments.args.iter())
                .filter_map(|base| self.full_name(base))
                .collect();
            let known = |found: fn(&crate::facts::Class) -> bool| {
                bases.iter().any(|base| {
                    self.definitions
                        .top_classes
                        .get(base.as_str())
                        .and_then(|id| self.facts.classes.get(id.index()))
                        .is_some_and(found)
                })
            };
            let ends =
                |endings: &[&str]| bases.iter().any(|base| endings.iter().any(|end| base.ends_with(end)));
            // Properties of an imported base class are known in its own module.
            let imported: Vec<_> = bases
                .iter()
                .filter(|base| !self.definitions.top_classes.contains_key(base.as_str()))
                .filter_map(|base| Some((base.clone(), self.imports.class(base)?)))
                .collect();
            // A class of the project, or of PyTorch itself, has steps that the project calls.
            let is_of_library = imported.is_empty()
                && bases.iter().all(|base| {
                    !base.starts_with("torch.") && !self.definitions.top_classes.contains_key(base.as_str())
                });
            let managed = known(|class| class.is_managed)
                || imported.iter().any(|(_, class)| class.is_managed)
                || ends(&["LightningModule", "ComposerModel", "Trainer", "LightningLite", "PLModule"])
                || is_of_library && has_steps_of_lightning(node);
            let text = span(node).slice(self.text);
            let class = crate::facts::Class {
                name: node.name.id.to_string(),
                is_module: known(|class| class.is_module)
                    || imported.iter().any(|(_, class)| class.is_module)
                    || managed
                    || ends(&["nn.Module", "Module", "PreTrainedModel", "nn.Sequential"]),
                is_dataset: known(|class| class.is_dataset)
                    || imported.iter().any(|(_, class)| class.is_dataset)
                    || ends(&["data.Dataset", "data.IterableDataset", ".VisionDataset", "Dataset"]),
                is_managed: managed,
                has_batch_norm: text.contains("BatchNorm")
                    || imported.iter().any(|(_, class)| class.has_batch_norm),
                parts: self.parts(node),
                carries: self.carried(node),
                detaches: self.detaches(node),
                is_frozen: self.freezes_itself(node),
                is_parameterless: bases.len() == 1
                    && bases[0].ends_with("nn.Module")
                    && method(node, "forward").is_some()
                    && self.computes_only(node),
                only_parameters: super::weights::keeps_only_parameters(text),
                bases: bases.clone(),
            };
            self.facts.classes.push(class);
            self.bases.push(imported);
        }
        for index in 0..self.definitions.functions.len() {
            let node = &self.definitions.functions[index];
            let class = node.class;
            let Some(def) = node.node else {
                let end = self.text.len() as u32;
                let body = module.body.first().map_or(Span::empty(end), span);
                self.facts.functions.push(Function {
                    name: String::new(),
                    span: Span::new(0, end),
                    class: None,
                    parameters: Vec::new(),
                    inputs: Vec::new(),
                    binds: Vec::new(),
                    hands_on: false,
                    returned: Graph::none(),
                    returns: Vec::new(),
                    decorators: Vec::new(),
                    grad: Grad::On,
                    called: true,
                    body,
                });
                continue;
            };
            let name = match class {
                Some(class) => format!("{}.{}", self.facts.class(class).name, def.name.id),
                None => def.name.id.to_string(),
            };
            let parameters = def.parameters.iter().map(|parameter| parameter.name().id.to_string()).collect();
            let decorators: Vec<String> = def
                .decorator_list
                .iter()
                .filter_map(|decorator| match &decorator.expression {
                    Expr::Call(call) => self.full_name(&call.func),
                    other => self.full_name(other),
                })
                .collect();
            let opaque =
                decorators.len() < def.decorator_list.len() || decorators.iter().any(|name| !is_plain(name));
            let grad = if decorators.iter().any(|name| turns_off(name)) {
                Grad::Off
            } else if decorators.iter().any(|name| name.ends_with("enable_grad")) {
                Grad::On
            } else if self.framework_runs(class, def.name.id.as_str()) {
                Grad::Off
            } else if class.is_some_and(|class| self.facts.class(class).is_module)
                && def.name.id.as_str() == "forward"
            {
                Grad::Unknown
            } else if opaque {
                // An unknown decorator may change the autograd mode.
                Grad::Unknown
            } else {
                Grad::On
            };
            let body = def.body.first().map_or(Span::empty(span(def).end), span);
            self.facts.functions.push(Function {
                name,
                span: span(def),
                class,
                parameters,
                inputs: Vec::new(),
                binds: Vec::new(),
                hands_on: false,
                returned: Graph::none(),
                returns: Vec::new(),
                decorators,
                grad,
                called: false,
                body,
            });
        }
    }
}

/// Returns `true` for the text of a method that cuts values from their graphs.
fn cuts(text: &str) -> bool {
    ["detach", "no_grad", ".data", "stop_gradient", "repackage"].iter().any(|word| text.contains(word))
}

impl Walker<'_> {
    /// Returns `true` if a method of a class cuts values from their graphs, but to set the first weights.
    fn detaches(&self, class: &StmtClassDef) -> bool {
        class.body.iter().any(|statement| match statement {
            Stmt::FunctionDef(method) => {
                !method.name.id.as_str().contains("init") && cuts(self.slice(span(method)))
            }
            _ => false,
        })
    }

    /// Attribute that the forward pass of a class computes from its own value: `out, self.h = self.rnn(x,
    /// self.h)`.
    fn carried(&self, class: &StmtClassDef) -> Option<String> {
        let forward = class.body.iter().find_map(|statement| match statement {
            Stmt::FunctionDef(method) if method.name.id.as_str() == "forward" => Some(method),
            _ => None,
        })?;
        let text = self.slice(span(forward));
        if cuts(text) {
            return None;
        }
        // What it assigns in another statement as well is set anew.
        let assigned = |name: &str| {
            text.lines().filter(|line| line.trim_start().starts_with(&format!("{name} ="))).count()
        };
        forward.body.iter().find_map(|statement| {
            let ([target], value) = assignment(statement)? else { return None };
            if !matches!(value, Expr::Call(_)) {
                return None;
            }
            let parts = match target {
                Expr::Tuple(tuple) => tuple.elts.as_slice(),
                one => std::slice::from_ref(one),
            };
            parts.iter().find_map(|part| {
                let Expr::Attribute(attribute) = part else { return None };
                let name = self.slice(span(part));
                let own = name.starts_with("self.") && assigned(name) <= usize::from(parts.len() == 1);
                let value = self.slice(span(value));
                let mut words = value.split(|c: char| !(c.is_alphanumeric() || "_.".contains(c)));
                (own && words.any(|word| word == name)).then(|| attribute.attr.id.to_string())
            })
        })
    }

    /// Attributes to which a class's `__init__` assigns layers.
    fn parts(&self, class: &StmtClassDef) -> Vec<String> {
        let text = self.slice(span(class));
        if ["no_grad", "detach", "requires_grad_", "requires_grad ="].iter().any(|word| text.contains(word)) {
            return Vec::new();
        }
        let init = method(class, "__init__");
        let assigned =
            init.into_iter().flat_map(|init| &init.body).filter_map(|statement| {
                match assignment(statement)? {
                    ([Expr::Attribute(target)], value) if self.slice(span(&*target.value)) == "self" => {
                        Some((target.attr.id.as_str(), value))
                    }
                    _ => None,
                }
            });
        let layered = |made: &Expr| {
            let containers = ["Sequential(", "ModuleList(", "ModuleDict("];
            let text = self.slice(span(made));
            super::weights::makes_layers(text)
                || containers.iter().any(|layer| text.contains(layer))
                || self.makes_model(made)
        };
        assigned.filter(|(_, made)| layered(made)).map(|(name, _)| name.to_owned()).collect()
    }

    /// Returns `true` for a call that makes a model of a library.
    fn makes_model(&self, made: &Expr) -> bool {
        let Expr::Call(call) = made else { return false };
        let path = self.full_name(&call.func).unwrap_or_default();
        matches!(
            super::library_calls::known_call(&path),
            Some(super::library_calls::CallResult::Made(crate::facts::Kind::Module, _))
        ) && !path.starts_with("torch.nn.")
    }

    /// Returns `true` if a class's `__init__` ends with all parameters set to require no gradients.
    fn freezes_itself(&self, class: &StmtClassDef) -> bool {
        let text = |statement: &Stmt| self.slice(span(statement));
        let Some(init) = method(class, "__init__") else { return false };
        // `param.requires_grad = requires_grad`, of a parameter that is false by default
        let is_off = |name: &str| {
            let mut all = init.parameters.iter_non_variadic_params();
            let own = all.find(|own| own.parameter.name.id.as_str() == name.trim_end_matches(')'));
            own.and_then(|own| own.default()).is_some_and(|value| self.slice(span(value)) == "False")
        };
        let freezes = |statement: &Stmt| {
            let line = text(statement);
            let each = line.starts_with("for ") && line.contains(" in self.parameters():");
            line == "self.requires_grad_(False)"
                || each
                    && [".requires_grad = ", ".requires_grad_("].iter().any(|way| {
                        let set = line.split_once(way).map(|(_, value)| value.trim_end());
                        set.is_some_and(|value| value.starts_with("False") || is_off(value))
                    })
        };
        // `self.freeze()`
        let calls = |statement: &Stmt| {
            let name = text(statement).strip_prefix("self.").and_then(|line| line.strip_suffix("()"));
            name.and_then(|name| method(class, name)).is_some_and(|own| own.body.iter().any(freezes))
        };
        let Some(at) = init.body.iter().position(|line| freezes(line) || calls(line)) else { return false };
        let layered = |line: &Stmt| super::weights::makes_layers(text(line));
        let thaws = ["requires_grad = True", "requires_grad_(True)", "requires_grad_()"];
        let whole = self.slice(span(class));
        !init.body[at..].iter().any(layered) && !thaws.iter().any(|word| whole.contains(word))
    }
}

/// Method of a class by its name.
pub(super) fn method<'c>(
    class: &'c StmtClassDef,
    name: &str,
) -> Option<&'c ruff_python_ast::StmtFunctionDef> {
    class.body.iter().find_map(|statement| match statement {
        Stmt::FunctionDef(method) if method.name.id.as_str() == name => Some(method),
        _ => None,
    })
}

/// Returns `true` for decorators known to keep the autograd mode.
fn is_plain(name: &str) -> bool {
    const PLAIN: &[&str] = &[
        "property",
        "staticmethod",
        "classmethod",
        "wraps",
        "contextmanager",
        "lru_cache",
        "cache",
        "override",
        "abstractmethod",
        "overload",
        "setter",
        "getter",
        "dataclass",
        "command",
        "option",
        "argument",
        "main",
        "record",
        "fixture",
        "parametrize",
        "timeit",
        "compile",
        "cached_property",
    ];
    // Command lines, settings, tests, types, retries.
    const ROOTS: &[&str] = &[
        "pytest",
        "fastcore",
        "hydra",
        "click",
        "typer",
        "absl",
        "gin",
        "functools",
        "contextlib",
        "tenacity",
        "beartype",
        "jaxtyping",
        "typeguard",
        "loguru",
        "modal",
        "ray",
        "accelerate",
        "wandb",
        "typing",
        "sacred",
    ];
    // `@register_train("custom")`, `@MODELS.register_module()`
    let last = name.rsplit('.').next().unwrap_or(name);
    last.starts_with("register")
        || ROOTS.iter().any(|root| name.strip_prefix(root).is_some_and(|rest| rest.starts_with('.')))
        || PLAIN.contains(&name.rsplit('.').next().unwrap_or(name))
}

/// Returns `true` for a class with the methods by which Lightning trains: a library derives its base from
/// Lightning.
fn has_steps_of_lightning(node: &StmtClassDef) -> bool {
    let defines = |name: &str| {
        node.body.iter().any(|part| matches!(part, Stmt::FunctionDef(own) if own.name.id.as_str() == name))
    };
    !node.bases().is_empty() && defines("training_step") && defines("configure_optimizers")
}
