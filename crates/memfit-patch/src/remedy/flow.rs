//! Conservative data flow in a file: whether a backward pass may go through a value, or code outside may use
//! it.
//!
//! The analysis ignores the order of statements, so it over-approximates: it may refuse a correct edit, but
//! never accepts a value that flows elsewhere.

use std::collections::BTreeSet;

use memfit_source::{CallArgument, Expression, ExpressionKind as Kind, Span, Statement, StatementKind};

use crate::code::Scene;

/// Methods whose result has no autograd graph.
pub(super) const GRAPHLESS_METHODS: &[&str] = &[
    "item",
    "detach",
    "tolist",
    "numpy",
    "size",
    "dim",
    "numel",
    "nelement",
    "element_size",
    "data_ptr",
    "keys",
    "count",
    "index",
];
/// Attributes that are not part of an autograd graph.
pub(super) const METADATA: &[&str] =
    &["shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "data", "layout", "itemsize", "nbytes"];
/// Methods that store their argument in the receiver.
pub(super) const STORING_METHODS: &[&str] =
    &["append", "appendleft", "extend", "add", "insert", "put", "setdefault", "update", "clear"];
/// Methods that only print or log their argument.
const REPORTING_METHODS: &[&str] = &[
    "info",
    "debug",
    "warning",
    "error",
    "write",
    "add_scalar",
    "add_scalars",
    "set_postfix",
    "set_description",
];
/// Functions whose result has no autograd graph.
const GRAPHLESS_FUNCTIONS: &[&str] = &[
    "print",
    "len",
    "str",
    "repr",
    "float",
    "int",
    "bool",
    "isinstance",
    "type",
    "range",
    "id",
    "round",
    "hasattr",
];
/// Functions whose result keeps the autograd graph of their argument.
const PASSTHROUGH_FUNCTIONS: &[&str] = &[
    "sum",
    "max",
    "min",
    "list",
    "tuple",
    "sorted",
    "zip",
    "enumerate",
    "reversed",
    "abs",
    "dict",
    "set",
    "iter",
    "next",
    "filter",
];
/// Modules that only print or log their arguments.
const REPORTING_MODULES: &[&str] = &["logging.", "wandb.", "mlflow.", "warnings.", "json.", "pprint."];
/// Modules whose functions compute and store nothing.
const PURE_MODULES: &[&str] = &["torch.", "numpy.", "math.", "torchvision.", "statistics."];

/// Origin of a value.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// Name in a function, or in the module.
    Name {
        name: String,
        /// Body of the function; `None` for a name of the module.
        scope: Option<Span>,
    },
    /// Attribute of any object.
    Attribute(String),
    /// Results of these calls.
    Calls(Vec<Span>),
}

/// Flow that forbids detaching a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hazard {
    /// `true` if a backward pass goes through it, `false` if code outside may use it.
    pub(super) backward: bool,
    /// Description as a sentence without a final full stop.
    pub(super) why: String,
}

/// Summary of a value's harmless uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// `true` if it is combined with other values, which may be on the GPU.
    pub(super) is_mixed: bool,
}

/// Follows a value from its origin.
pub(super) fn uses(scene: &Scene<'_>, origin: &Origin) -> Result<Uses, Hazard> {
    let script = &*scene.script;
    let mut scopes = vec![Scope { body: &script.statements, span: None, names: BTreeSet::new() }];
    for statement in &script.statements {
        statement.visit(&mut |each| {
            if each.kind == StatementKind::Function {
                scopes.push(Scope { body: &each.body, span: body_of(each), names: BTreeSet::new() });
            }
        });
    }
    let mut flow = Flow {
        scene,
        attributes: BTreeSet::new(),
        calls: Vec::new(),
        of_module: None,
        uses: Uses::default(),
        hazard: None,
        changed: true,
    };
    match origin {
        Origin::Name { name, scope: Some(span) } => {
            for scope in scopes.iter_mut().filter(|scope| scope.span == Some(*span)) {
                scope.names.insert(name.clone());
            }
        }
        Origin::Name { name, scope: None } => {
            flow.of_module = Some(name.clone());
            for scope in &mut scopes {
                let own = scope.span.is_some() && binds(scope.body, name);
                if !own {
                    scope.names.insert(name.clone());
                }
            }
        }
        Origin::Attribute(name) => {
            flow.attributes.insert(name.clone());
        }
        Origin::Calls(calls) => flow.calls.clone_from(calls),
    }
    while flow.changed && flow.hazard.is_none() {
        flow.changed = false;
        for scope in &mut scopes {
            let before = (scope.names.len(), flow.attributes.len());
            for statement in scope.body {
                flow.statement(statement, &mut scope.names);
            }
            flow.changed |= before != (scope.names.len(), flow.attributes.len());
        }
    }
    let leaves = !scene.is_main && (!flow.attributes.is_empty() || flow.of_module.is_some());
    match flow.hazard {
        Some(hazard) => Err(hazard),
        None if leaves => Err(Hazard {
            backward: false,
            why: "it is kept where other files of the program may use it".to_owned(),
        }),
        None => Ok(flow.uses),
    }
}

/// Span of a function's body.
pub(super) fn body_of(function: &Statement) -> Option<Span> {
    Some(Span::new(function.body.first()?.span.start, function.body.last()?.span.end))
}

/// Returns `true` if a function binds a local name.
fn binds(body: &[Statement], name: &str) -> bool {
    let mut found = (false, false);
    for statement in body {
        statement.visit(&mut |each| {
            let here = each.targets.iter().any(|target| target.any(&|part| part.name() == Some(name)));
            match each.kind {
                StatementKind::Global => found.1 |= here,
                StatementKind::Delete => {}
                _ => found.0 |= here && each.targets.iter().any(|target| target.root() == Some(name)),
            }
        });
    }
    found.0 && !found.1
}

struct Scope<'s> {
    body: &'s [Statement],
    /// Body of the function; `None` for the module.
    span: Option<Span>,
    /// Names that refer to the value.
    names: BTreeSet<String>,
}

struct Flow<'a> {
    scene: &'a Scene<'a>,
    attributes: BTreeSet<String>,
    calls: Vec<Span>,
    /// Module-level name that refers to it.
    of_module: Option<String>,
    uses: Uses,
    hazard: Option<Hazard>,
    changed: bool,
}

impl Flow<'_> {
    fn hazard(&mut self, backward: bool, why: String) {
        // A backward pass takes precedence.
        if self.hazard.as_ref().is_none_or(|known| backward && !known.backward) {
            self.hazard = Some(Hazard { backward, why });
        }
    }

    fn statement(&mut self, statement: &Statement, names: &mut BTreeSet<String>) {
        match statement.kind {
            StatementKind::Function | StatementKind::Class => {
                let used = names
                    .iter()
                    .find(|name| self.of_module.as_ref() != Some(*name) && statement.mentions(name));
                if let Some(name) = used {
                    let inner = statement.name.as_deref().unwrap_or_default();
                    self.hazard(false, format!("`{inner}` uses `{name}` as well"));
                }
                return;
            }
            StatementKind::Global => {
                let global = statement.targets.iter().filter_map(Expression::name);
                let own = global
                    .into_iter()
                    .find(|name| names.contains(*name) && self.of_module.as_deref() != Some(*name));
                if let Some(name) = own {
                    self.hazard(
                        false,
                        format!("`{name}` is a global variable, which other functions may use"),
                    );
                }
            }
            _ => {}
        }
        let mut carried = false;
        for value in &statement.values {
            carried |= self.carries(value, names);
        }
        match statement.kind {
            StatementKind::Assign | StatementKind::Augment(_) | StatementKind::Loop | StatementKind::With
                if carried =>
            {
                for target in &statement.targets {
                    self.bind(target, names);
                }
            }
            StatementKind::Return if carried => {
                self.hazard(
                    false,
                    "the function returns it, and its caller may backpropagate through it".to_owned(),
                );
            }
            _ => {}
        }
        for inner in statement.suites().flatten() {
            self.statement(inner, names);
        }
    }

    fn bind(&mut self, target: &Expression, names: &mut BTreeSet<String>) {
        match &target.kind {
            Kind::Name(name) => {
                names.insert(name.clone());
            }
            Kind::Attribute { name, .. } => {
                self.attributes.insert(name.clone());
            }
            Kind::Item { of, .. } => self.bind(of, names),
            _ => {
                for part in target.parts() {
                    self.bind(part, names);
                }
            }
        }
    }

    /// Returns `true` if an expression's value depends on the followed one.
    fn carries(&mut self, expression: &Expression, names: &mut BTreeSet<String>) -> bool {
        match &expression.kind {
            Kind::Name(name) => names.contains(name),
            Kind::Number | Kind::Text(_) | Kind::Constant(_) => false,
            Kind::Attribute { of, name } => {
                let carried = self.carries(of, names);
                self.attributes.contains(name) || carried && !METADATA.contains(&name.as_str())
            }
            Kind::Item { of, index } => {
                self.carries(index, names);
                self.carries(of, names)
            }
            Kind::Binary { left, right, .. } => {
                let (one, other) = (self.carries(left, names), self.carries(right, names));
                let operand = if one { right } else { left };
                if one != other && !is_number(operand) {
                    self.uses.is_mixed = true;
                }
                one || other
            }
            Kind::Call { callee, arguments } => self.call(expression, callee, arguments, names),
            Kind::Named { target, value } => {
                let carried = self.carries(value, names);
                if carried {
                    self.bind(target, names);
                }
                carried
            }
            Kind::Formatted(parts) => {
                for part in parts {
                    self.carries(part, names);
                }
                false
            }
            Kind::Comprehension { elements, targets, iterables, conditions } => {
                let mut carried = false;
                for iterable in iterables {
                    carried |= self.carries(iterable, names);
                }
                if carried {
                    for target in targets {
                        self.bind(target, names);
                    }
                }
                for condition in conditions {
                    self.carries(condition, names);
                }
                self.any_carries(elements.iter(), names)
            }
            Kind::Lambda(parts) | Kind::Yield(parts) => {
                if self.any_carries(parts.iter(), names) {
                    self.hazard(false, "a lambda or `yield` hands it to other code".to_owned());
                }
                false
            }
            Kind::Several(parts) | Kind::Other(parts) => self.any_carries(parts.iter(), names),
        }
    }

    fn any_carries<'e>(
        &mut self,
        parts: impl Iterator<Item = &'e Expression>,
        names: &mut BTreeSet<String>,
    ) -> bool {
        let mut carried = false;
        for part in parts {
            carried |= self.carries(part, names);
        }
        carried
    }

    fn call(
        &mut self,
        call: &Expression,
        callee: &Expression,
        arguments: &[CallArgument],
        names: &mut BTreeSet<String>,
    ) -> bool {
        let given = self.any_carries(arguments.iter().map(|argument| &argument.value), names);
        let receiver = match &callee.kind {
            Kind::Attribute { of, .. } => self.carries(of, names),
            Kind::Name(_) => false,
            _ => self.carries(callee, names),
        };
        // `getattr(self, "history")` counts as an attribute.
        let by_name = |argument: &CallArgument| matches!(&argument.value.kind, Kind::Text(name) if self.attributes.contains(name));
        if called_by_name(callee) && arguments.iter().any(by_name) {
            return true;
        }
        if self.calls.contains(&call.span) {
            return true;
        }
        if !given && !receiver {
            return false;
        }
        let called = callee.last_name().unwrap_or_default();
        let text = self.scene.script.slice(callee.span);
        let path = self.scene.script.called(call.span).map(str::to_owned);
        let path = path.as_deref().unwrap_or_default();
        if called.contains("backward") || path.starts_with("torch.autograd.") && called == "grad" {
            self.hazard(true, format!("a backward pass goes through it, at `{text}(…)`"));
            return false;
        }
        if PURE_MODULES.iter().any(|module| path.starts_with(module)) {
            let others = arguments.iter().filter(|argument| !is_number(&argument.value)).count();
            self.uses.is_mixed |= others > 1;
            return path != "torch.save";
        }
        if REPORTING_MODULES.iter().any(|module| path.starts_with(module)) {
            return false;
        }
        match &callee.kind {
            Kind::Attribute { .. } if receiver => {
                self.uses.is_mixed |= arguments.iter().any(|argument| !is_number(&argument.value))
                    && !STORING_METHODS.contains(&called)
                    && !matches!(called, "get" | "pop" | "to" | "cpu");
                !GRAPHLESS_METHODS.contains(&called) && !STORING_METHODS.contains(&called)
            }
            Kind::Attribute { of, .. } if STORING_METHODS.contains(&called) => {
                self.bind(of, names);
                false
            }
            Kind::Attribute { .. } if REPORTING_METHODS.contains(&called) => false,
            // `scale` of a gradient scaler returns a value that is backpropagated.
            Kind::Attribute { .. } if called == "scale" => true,
            Kind::Name(_) if GRAPHLESS_FUNCTIONS.contains(&called) => false,
            Kind::Name(_) if called == "getattr" => true,
            Kind::Name(_) if PASSTHROUGH_FUNCTIONS.contains(&called) => true,
            _ => {
                self.hazard(
                    false,
                    format!("it is passed to `{text}(…)`, which may backpropagate through it"),
                );
                true
            }
        }
    }
}

/// Returns `true` if a callee takes an attribute's name as an argument.
fn called_by_name(callee: &Expression) -> bool {
    matches!(callee.last_name(), Some("getattr" | "setattr" | "attrgetter"))
}

/// Returns `true` if an expression looks like a number, which is on no GPU.
pub(super) fn is_number(expression: &Expression) -> bool {
    match &expression.kind {
        Kind::Number | Kind::Text(_) | Kind::Constant(_) => true,
        Kind::Call { callee, .. } => {
            matches!(callee.last_name(), Some("len" | "float" | "int" | "item" | "size" | "numel"))
        }
        Kind::Other(parts) => parts.iter().all(is_number),
        _ => false,
    }
}
