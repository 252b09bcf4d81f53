//! Functions, classes and imports of a text, collected before the walk.

use std::sync::Arc;

use ruff_python_ast::{Expr, Stmt, StmtClassDef, StmtFunctionDef};
use ruff_text_size::Ranged as _;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::facts::{ClassId, FunctionId, Kind, Value};
use crate::project::Imports;

/// Maximum nesting of statements that is searched.
const MAX_DEPTH: usize = 120;

pub(super) struct FunctionNode<'a> {
    pub(super) node: Option<&'a StmtFunctionDef>,
    pub(super) class: Option<ClassId>,
    pub(super) parent: FunctionId,
}

pub(super) struct ClassNode<'a> {
    pub(super) node: &'a StmtClassDef,
    pub(super) methods: FxHashMap<&'a str, FunctionId>,
}

/// All definitions.
pub(super) struct Definitions<'a> {
    pub(super) functions: Vec<FunctionNode<'a>>,
    pub(super) classes: Vec<ClassNode<'a>>,
    /// Function ids by the start of the definition.
    pub(super) function_at: FxHashMap<u32, FunctionId>,
    pub(super) class_at: FxHashMap<u32, ClassId>,
    /// Functions of the module's top level by name.
    pub(super) top_functions: FxHashMap<&'a str, FunctionId>,
    pub(super) top_classes: FxHashMap<&'a str, ClassId>,
    /// Names bound by imports, anywhere in the text.
    pub(super) imports: FxHashMap<&'a str, Arc<str>>,
    /// `true` if names may come from `from x import *`.
    pub(super) starred: bool,
    /// Modules from which all names are imported.
    pub(super) starred_modules: Vec<Arc<str>>,
    /// Names that are bound to an element of a container, each with the container.
    elements: Vec<(&'a str, &'a str)>,
    /// Containers of models: the mode of an element is switched.
    model_lists: FxHashSet<&'a str>,
    /// Names of optimizers that the text gives to options.
    options: FxHashSet<&'a str>,
    text: &'a str,
}

impl<'a> Definitions<'a> {
    pub(super) fn collect(body: &'a [Stmt], text: &'a str) -> Self {
        let mut found = Self {
            functions: vec![FunctionNode { node: None, class: None, parent: FunctionId(0) }],
            classes: Vec::new(),
            function_at: FxHashMap::default(),
            class_at: FxHashMap::default(),
            top_functions: FxHashMap::default(),
            top_classes: FxHashMap::default(),
            imports: FxHashMap::default(),
            starred: false,
            starred_modules: Vec::new(),
            elements: Vec::new(),
            model_lists: FxHashSet::default(),
            options: options(text),
            text,
        };
        found.body(body, None, FunctionId(0), 0);
        found
    }

    /// Adds the names that `from module import *` brings along from the project, as far as the text uses
    /// them.
    pub(super) fn bring_starred(&mut self, text: &'a str, imports: &dyn Imports) {
        for module in &self.starred_modules {
            for name in imports.names(module) {
                let own = self.top_functions.contains_key(name.as_str())
                    || self.top_classes.contains_key(name.as_str())
                    || self.imports.contains_key(name.as_str());
                let Some(at) = text.find(&name).filter(|_| !own) else { continue };
                let between = if module.chars().all(|c| c == '.') { "" } else { "." };
                self.imports.insert(&text[at..at + name.len()], format!("{module}{between}{name}").into());
            }
        }
    }

    /// Returns `true` for a name that is bound to an element of a container of models, as the mode of another
    /// element shows.
    pub(super) fn is_one_of_models(&self, name: &str) -> bool {
        self.elements.iter().any(|(bound, container)| *bound == name && self.model_lists.contains(container))
    }

    /// Value that a name suggests, as far as the text does not use it for something else.
    pub(super) fn suggested(&self, name: &str) -> Value {
        let last = name.rsplit('.').next().unwrap_or(name).trim_start_matches('_');
        if self.options.contains(&last) { Value::unknown() } else { crate::names::value_by_name(name) }
    }

    fn body(&mut self, body: &'a [Stmt], class: Option<ClassId>, parent: FunctionId, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        for statement in body {
            self.statement(statement, class, parent, depth);
        }
    }

    fn statement(&mut self, statement: &'a Stmt, class: Option<ClassId>, parent: FunctionId, depth: usize) {
        match statement {
            Stmt::FunctionDef(node) => {
                let id = FunctionId(self.functions.len() as u32);
                self.functions.push(FunctionNode { node: Some(node), class, parent });
                self.function_at.insert(node.range.start().to_u32(), id);
                let name = node.name.id.as_str();
                if let Some(class) = class {
                    self.classes[class.index()].methods.insert(name, id);
                } else if parent == FunctionId(0) {
                    self.top_functions.insert(name, id);
                }
                self.body(&node.body, None, id, depth + 1);
            }
            Stmt::ClassDef(node) => {
                let id = ClassId(self.classes.len() as u32);
                self.classes.push(ClassNode { node, methods: FxHashMap::default() });
                self.class_at.insert(node.range.start().to_u32(), id);
                if class.is_none() && parent == FunctionId(0) {
                    self.top_classes.insert(node.name.id.as_str(), id);
                }
                self.body(&node.body, Some(id), parent, depth + 1);
            }
            Stmt::Import(node) => {
                for alias in &node.names {
                    let full = alias.name.id.as_str();
                    if let Some(name) = &alias.asname {
                        self.imports.insert(name.id.as_str(), full.into());
                    } else {
                        let root = full.split('.').next().unwrap_or(full);
                        self.imports.insert(root, root.into());
                    }
                }
            }
            Stmt::ImportFrom(node) => {
                let dots = ".".repeat(node.level as usize);
                let module = node.module.as_ref().map_or("", |module| module.id.as_str());
                for alias in &node.names {
                    let name = alias.name.id.as_str();
                    if name == "*" {
                        self.starred = true;
                        self.starred_modules.push(format!("{dots}{module}").into());
                        continue;
                    }
                    let bound = alias.asname.as_ref().map_or(name, |asname| asname.id.as_str());
                    let between = if module.is_empty() { "" } else { "." };
                    self.imports.insert(bound, format!("{dots}{module}{between}{name}").into());
                }
            }
            Stmt::If(node) => {
                self.body(&node.body, class, parent, depth + 1);
                for clause in &node.elif_else_clauses {
                    self.body(&clause.body, class, parent, depth + 1);
                }
            }
            Stmt::For(node) => {
                self.body(&node.body, class, parent, depth + 1);
                self.body(&node.orelse, class, parent, depth + 1);
            }
            Stmt::While(node) => {
                self.body(&node.body, class, parent, depth + 1);
                self.body(&node.orelse, class, parent, depth + 1);
            }
            Stmt::With(node) => self.body(&node.body, class, parent, depth + 1),
            Stmt::Try(node) => {
                self.body(&node.body, class, parent, depth + 1);
                for handler in &node.handlers {
                    let ruff_python_ast::ExceptHandler::ExceptHandler(handler) = handler;
                    self.body(&handler.body, class, parent, depth + 1);
                }
                self.body(&node.orelse, class, parent, depth + 1);
                self.body(&node.finalbody, class, parent, depth + 1);
            }
            // `teacher = models[-1]`
            Stmt::Assign(_) | Stmt::AnnAssign(_) => {
                if let Some(([target], Expr::Subscript(element))) = super::statement::assignment(statement)
                    && let Some(name) = dotted(target, self.text)
                    && let Some(container) = dotted(&element.value, self.text)
                {
                    self.elements.push((name, container));
                }
            }
            // `models[0].eval()`
            Stmt::Expr(node) => {
                if let Expr::Call(call) = &*node.value
                    && let Expr::Attribute(switch) = &*call.func
                    && ["eval", "train"].contains(&switch.attr.id.as_str())
                    && let Expr::Subscript(element) = &*switch.value
                    && let Some(container) = dotted(&element.value, self.text)
                {
                    self.model_lists.insert(container);
                }
            }
            Stmt::Match(node) => {
                for case in &node.cases {
                    self.body(&case.body, class, parent, depth + 1);
                }
            }
            _ => {}
        }
    }
}

/// Attributes of PyTorch's optimizers.
const OF_OPTIMIZERS: &[&str] = &[
    "step",
    "zero_grad",
    "param_groups",
    "state",
    "state_dict",
    "load_state_dict",
    "defaults",
    "add_param_group",
];

/// Names of optimizers of which a text reads attributes that optimizers do not have, and none that they have:
/// `opt.batch_size`.
fn options(text: &str) -> FxHashSet<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut names: FxHashMap<&str, (bool, bool)> = FxHashMap::default();
    for (at, _) in text.match_indices('.') {
        let (before, after) = (&text[..at], &text[at + 1..]);
        let name = before.rsplit(|c: char| !is_word(c)).next().unwrap_or_default().trim_start_matches('_');
        let attribute = after.split(|c: char| !is_word(c)).next().unwrap_or_default();
        // `optim.Adam`, `optim.lr_scheduler`
        let is_module = attribute.starts_with(char::is_uppercase) || attribute == "lr_scheduler";
        if attribute.is_empty() || is_module || !name.starts_with(['o', 'O']) {
            continue;
        }
        let (has_others, has_own) = names.entry(name).or_default();
        let is_own = OF_OPTIMIZERS.contains(&attribute);
        *has_own |= is_own;
        *has_others |= !is_own;
    }
    let are_options = |name: &&str, (has_others, has_own): (bool, bool)| {
        has_others && !has_own && matches!(crate::names::value_by_name(name).kind, Kind::Optimizer)
    };
    names.into_iter().filter(|(name, uses)| are_options(name, *uses)).map(|(name, _)| name).collect()
}

/// Source text of a dotted name, or of its item with a literal key: `state["step"]`.
pub(super) fn dotted_item<'a>(expression: &'a Expr, text: &'a str) -> Option<&'a str> {
    let Expr::Subscript(subscript) = expression else { return dotted(expression, text) };
    let literal = matches!(&*subscript.slice, Expr::StringLiteral(_));
    dotted(&subscript.value, text).filter(|_| literal)?;
    let range = expression.range();
    text.get(range.start().to_usize()..range.end().to_usize())
}

/// Source text of a dotted name `a.b.c` without spaces; `None` for other expressions.
pub(super) fn dotted<'a>(expression: &'a Expr, text: &'a str) -> Option<&'a str> {
    let mut inner = expression;
    let mut depth = 0;
    loop {
        match inner {
            Expr::Name(name) if depth == 0 => return Some(name.id.as_str()),
            Expr::Name(_) => break,
            Expr::Attribute(attribute) => inner = &attribute.value,
            _ => return None,
        }
        depth += 1;
        if depth > 12 {
            return None;
        }
    }
    let range = expression.range();
    let slice = text.get(range.start().to_usize()..range.end().to_usize())?;
    (!slice.contains(|c: char| c.is_whitespace() || c == '(' || c == '\\')).then_some(slice)
}
