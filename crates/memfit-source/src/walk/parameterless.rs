//! Classes of modules without layers and parameters, such as one that computes spectrograms.

use ruff_python_ast::visitor::source_order::{self, SourceOrderVisitor};
use ruff_python_ast::{Expr, ExprCall, Stmt, StmtClassDef};

use super::Walker;
use super::definitions::dotted;
use super::describe::method;
use super::weights::LAYERS;

/// Methods and classes by which a module gets parameters or parts.
const MAKERS: &[&str] = &[
    "Parameter",
    "register_parameter",
    "add_module",
    "register_module",
    "ModuleList",
    "ModuleDict",
    "Sequential",
];

/// What a class calls.
struct Uses<'w, 'a> {
    walker: &'w Walker<'a>,
    class: &'a StmtClassDef,
    /// It calls functions of PyTorch, or keeps a buffer.
    computes: bool,
    /// It may make or call a layer.
    has_parts: bool,
}

impl<'a> Walker<'a> {
    /// Returns `true` for the class of a module that computes with functions, and makes and calls no layers:
    /// it has no parameters.
    pub(super) fn computes_only(&self, class: &'a StmtClassDef) -> bool {
        let mut uses = Uses { walker: self, class, computes: false, has_parts: false };
        uses.visit_body(&class.body);
        uses.computes && !uses.has_parts
    }
}

impl<'a> Uses<'_, 'a> {
    fn call(&mut self, call: &'a ExprCall) {
        let callee = &*call.func;
        let Some(own) = dotted(callee, self.walker.text) else {
            // `self.layers[0](x)`, `make()(x)`
            self.has_parts |= matches!(callee, Expr::Subscript(_) | Expr::Call(_));
            return;
        };
        let last = own.rsplit('.').next().unwrap_or(own);
        self.has_parts |= MAKERS.contains(&last) || LAYERS.iter().any(|layer| last.contains(layer));
        if let Some(attribute) = own.strip_prefix("self.") {
            let is_buffer = attribute == "register_buffer";
            self.computes |= is_buffer;
            self.has_parts |=
                !is_buffer && !attribute.contains('.') && method(self.class, attribute).is_none();
            return;
        }
        let Some(path) = self.walker.full_name(callee) else { return };
        let is_layer = path.strip_prefix("torch.nn.").is_some_and(|rest| !rest.contains('.'));
        let is_own_module =
            self.walker.definitions.top_classes.get(own).is_some_and(|id| {
                self.walker.facts.classes.get(id.index()).is_none_or(|class| class.is_module)
            });
        self.has_parts |= is_layer || is_own_module;
        let is_base = path.starts_with("torch.nn.Module");
        self.computes |= path.starts_with("torch.") && !is_layer && !is_base;
    }

    /// `for layer in self.layers:`
    fn iterable(&mut self, iterable: &Expr) {
        self.has_parts |= dotted(iterable, self.walker.text).is_some_and(|name| name.starts_with("self."));
    }
}

impl<'a> SourceOrderVisitor<'a> for Uses<'_, 'a> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Call(call) = expr {
            self.call(call);
        }
        source_order::walk_expr(self, expr);
    }

    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        if let Stmt::For(node) = stmt {
            self.iterable(&node.iter);
        }
        source_order::walk_stmt(self, stmt);
    }

    fn visit_comprehension(&mut self, comprehension: &'a ruff_python_ast::Comprehension) {
        self.iterable(&comprehension.iter);
        source_order::walk_comprehension(self, comprehension);
    }
}
