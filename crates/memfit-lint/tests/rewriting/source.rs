//! A parsed text, its edits, and the names in it.

use std::collections::BTreeSet;
use std::ops::Range;

use ruff_python_ast::visitor::{self, Visitor};
use ruff_python_ast::{Expr, ModModule, Stmt};
use ruff_python_parser::parse_module;
use ruff_text_size::{Ranged, TextRange};

/// Names by which a rewrite asks for a text.
pub(crate) type Names = BTreeSet<String>;

pub(crate) struct Program {
    pub(crate) text: String,
    pub(crate) module: ModModule,
}

impl Program {
    /// Returns `None` for a text that does not parse.
    pub(crate) fn read(text: String) -> Option<Self> {
        let module = parse_module(&text).ok()?.into_syntax();
        Some(Self { text, module })
    }

    pub(crate) fn body(&self) -> &[Stmt] {
        &self.module.body
    }

    pub(crate) fn slice(&self, range: TextRange) -> &str {
        &self.text[range]
    }

    pub(crate) fn of(&self, node: &impl Ranged) -> &str {
        self.slice(node.range())
    }

    /// Offset of the first character of a line.
    pub(crate) fn line_start(&self, offset: usize) -> usize {
        self.text[..offset].rfind('\n').map_or(0, |newline| newline + 1)
    }

    /// Offset after the newline of a line.
    pub(crate) fn line_end(&self, offset: usize) -> usize {
        self.text[offset..].find('\n').map_or(self.text.len(), |newline| offset + newline + 1)
    }

    /// Returns the indentation of a statement that begins its line.
    pub(crate) fn indent(&self, stmt: &Stmt) -> Option<String> {
        let start = stmt.start().to_usize();
        let indent = &self.text[self.line_start(start)..start];
        indent.trim().is_empty().then(|| indent.to_owned())
    }

    /// Lines of consecutive statements of one block.
    pub(crate) fn lines(&self, stmts: &[Stmt]) -> Option<Range<usize>> {
        self.indent(stmts.first()?)?;
        let begin = self.line_start(stmts.first()?.start().to_usize());
        Some(begin..self.line_end(stmts.last()?.end().to_usize()))
    }

    /// Text of each statement of the module, with the comments before it.
    pub(crate) fn segments(&self) -> Vec<(&Stmt, &str)> {
        let mut begin = 0;
        let mut segments = Vec::new();
        for stmt in self.body() {
            let end = self.line_end(stmt.end().to_usize());
            segments.push((stmt, &self.text[begin..end.max(begin)]));
            begin = end.max(begin);
        }
        segments
    }

    /// Returns `true` if lines can be indented without a change of a string.
    pub(crate) fn has_plain_lines(&self) -> bool {
        !self.text.contains("\"\"\"") && !self.text.contains("'''") && !self.text.contains("\\\n")
    }
}

/// Replacements of ranges of a text.
#[derive(Default)]
pub(crate) struct Edits(Vec<(Range<usize>, String)>);

impl Edits {
    pub(crate) fn replace(&mut self, range: Range<usize>, by: impl Into<String>) {
        self.0.push((range, by.into()));
    }

    pub(crate) fn replace_node(&mut self, node: &impl Ranged, by: impl Into<String>) {
        self.replace(span(node), by);
    }

    pub(crate) fn insert(&mut self, at: usize, what: impl Into<String>) {
        self.replace(at..at, what);
    }

    /// Keeps what replacements put before the text that they replace, which they must keep as it is.
    pub(crate) fn into_insertions(self) -> Self {
        Self(
            self.0
                .into_iter()
                .map(|(range, by)| {
                    let own = by.len() - range.len();
                    (range.start..range.start, by[..own].to_owned())
                })
                .collect(),
        )
    }

    /// Returns the changed text, or `None` if nothing changes or replacements overlap.
    pub(crate) fn apply(mut self, text: &str) -> Option<String> {
        self.0.sort_by_key(|(range, _)| (range.start, range.end));
        if self.0.is_empty() || self.0.windows(2).any(|pair| pair[1].0.start < pair[0].0.end) {
            return None;
        }
        let mut changed = String::new();
        let mut from = 0;
        for (range, by) in &self.0 {
            changed.push_str(&text[from..range.start]);
            changed.push_str(by);
            from = range.end;
        }
        changed.push_str(&text[from..]);
        (changed != text).then_some(changed)
    }
}

pub(crate) fn span(node: &impl Ranged) -> Range<usize> {
    node.start().to_usize()..node.end().to_usize()
}

/// Indents all lines that are not empty.
pub(crate) fn indented(text: &str, by: &str) -> String {
    text.lines()
        .map(|line| if line.trim().is_empty() { "\n".to_owned() } else { format!("{by}{line}\n") })
        .collect()
}

/// Applies a rewrite of one place until it finds none.
pub(crate) fn repeat(program: &Program, once: impl Fn(&Program) -> Option<String>) -> Option<String> {
    const MAX_PLACES: usize = 40;
    let mut changed = once(program)?;
    for _ in 1..MAX_PLACES {
        let Some(next) = once(&Program::read(changed.clone())?) else { break };
        changed = next;
    }
    Some(changed)
}

/// All statements, each before those inside it.
pub(crate) fn statements(body: &[Stmt]) -> Vec<&Stmt> {
    struct All<'a>(Vec<&'a Stmt>);
    impl<'a> Visitor<'a> for All<'a> {
        fn visit_stmt(&mut self, stmt: &'a Stmt) {
            self.0.push(stmt);
            visitor::walk_stmt(self, stmt);
        }
    }
    let mut all = All(Vec::new());
    for stmt in body {
        all.visit_stmt(stmt);
    }
    all.0
}

/// All expressions, each before those inside it.
pub(crate) fn expressions(body: &[Stmt]) -> Vec<&Expr> {
    struct All<'a>(Vec<&'a Expr>);
    impl<'a> Visitor<'a> for All<'a> {
        fn visit_expr(&mut self, expr: &'a Expr) {
            self.0.push(expr);
            visitor::walk_expr(self, expr);
        }
    }
    let mut all = All(Vec::new());
    for stmt in body {
        all.visit_stmt(stmt);
    }
    all.0
}

/// Blocks of statements, each with the function around it, and the class if that is a method.
pub(crate) struct Scoped<'a> {
    pub(crate) block: &'a [Stmt],
    pub(crate) function: Option<&'a Stmt>,
    pub(crate) is_method: bool,
}

pub(crate) fn blocks(body: &[Stmt]) -> Vec<Scoped<'_>> {
    fn add<'a>(
        block: &'a [Stmt],
        function: Option<&'a Stmt>,
        is_method: bool,
        in_class: bool,
        to: &mut Vec<Scoped<'a>>,
    ) {
        to.push(Scoped { block, function, is_method });
        for stmt in block {
            match stmt {
                Stmt::FunctionDef(def) => add(&def.body, Some(stmt), in_class, false, to),
                Stmt::ClassDef(class) => add(&class.body, None, false, true, to),
                _ => {
                    for inner in children(stmt) {
                        add(inner, function, is_method, false, to);
                    }
                }
            }
        }
    }
    let mut all = Vec::new();
    add(body, None, false, false, &mut all);
    all
}

/// Blocks of a compound statement that is neither a function nor a class.
fn children(stmt: &Stmt) -> Vec<&[Stmt]> {
    match stmt {
        Stmt::For(node) => vec![&node.body, &node.orelse],
        Stmt::While(node) => vec![&node.body, &node.orelse],
        Stmt::With(node) => vec![&node.body],
        Stmt::If(node) => {
            let mut blocks: Vec<&[Stmt]> = vec![&node.body];
            blocks.extend(node.elif_else_clauses.iter().map(|clause| &clause.body[..]));
            blocks
        }
        Stmt::Try(node) => {
            let mut blocks: Vec<&[Stmt]> = vec![&node.body, &node.orelse, &node.finalbody];
            for ruff_python_ast::ExceptHandler::ExceptHandler(handler) in &node.handlers {
                blocks.push(&handler.body);
            }
            blocks
        }
        _ => Vec::new(),
    }
}

/// Names read in statements, also in functions that they define.
pub(crate) fn read(body: &[Stmt]) -> Names {
    names(body, |expr| matches!(expr, Expr::Name(name) if name.ctx.is_load()))
}

/// Names that a definition takes from around it.
pub(crate) fn free(definition: &Stmt) -> Names {
    let own = |body: &[Stmt]| -> Names { body.iter().flat_map(free).collect() };
    match definition {
        Stmt::FunctionDef(def) => {
            let mut inside: Names = own(&def.body);
            for name in bound(&def.body).into_iter().chain(bound_inside(std::slice::from_ref(definition))) {
                inside.remove(&name);
            }
            inside
        }
        Stmt::ClassDef(class) => own(&class.body),
        other => read(std::slice::from_ref(other)),
    }
}

/// Names written in statements, with definitions and imports, and without those inside of functions.
pub(crate) fn bound(body: &[Stmt]) -> Names {
    struct Bound(Names);
    impl<'a> Visitor<'a> for Bound {
        fn visit_stmt(&mut self, stmt: &'a Stmt) {
            match stmt {
                Stmt::FunctionDef(def) => drop(self.0.insert(def.name.to_string())),
                Stmt::ClassDef(class) => drop(self.0.insert(class.name.to_string())),
                _ => visitor::walk_stmt(self, stmt),
            }
        }
        fn visit_expr(&mut self, expr: &'a Expr) {
            match expr {
                Expr::Name(name) if name.ctx.is_store() => drop(self.0.insert(name.id.to_string())),
                Expr::Lambda(_) => {}
                _ => visitor::walk_expr(self, expr),
            }
        }
        fn visit_comprehension(&mut self, comprehension: &'a ruff_python_ast::Comprehension) {
            self.visit_expr(&comprehension.iter);
        }
        fn visit_alias(&mut self, alias: &'a ruff_python_ast::Alias) {
            let name = alias.asname.as_ref().unwrap_or(&alias.name);
            self.0.insert(name.split('.').next().unwrap_or_default().to_owned());
        }
        fn visit_except_handler(&mut self, handler: &'a ruff_python_ast::ExceptHandler) {
            let ruff_python_ast::ExceptHandler::ExceptHandler(inner) = handler;
            self.0.extend(inner.name.as_ref().map(ToString::to_string));
            visitor::walk_except_handler(self, handler);
        }
    }
    let mut bound = Bound(Names::new());
    for stmt in body {
        bound.visit_stmt(stmt);
    }
    bound.0
}

/// Names that comprehensions, lambdas and nested functions bind for themselves.
pub(crate) fn bound_inside(body: &[Stmt]) -> Names {
    struct Inside(Names);
    impl<'a> Visitor<'a> for Inside {
        fn visit_comprehension(&mut self, comprehension: &'a ruff_python_ast::Comprehension) {
            let mut targets = Targets(Names::new());
            targets.visit_expr(&comprehension.target);
            self.0.append(&mut targets.0);
            visitor::walk_comprehension(self, comprehension);
        }
        fn visit_parameter(&mut self, parameter: &'a ruff_python_ast::Parameter) {
            self.0.insert(parameter.name.to_string());
        }
    }
    let mut inside = Inside(Names::new());
    for stmt in body {
        inside.visit_stmt(stmt);
    }
    inside.0
}

struct Targets(Names);

impl<'a> Visitor<'a> for Targets {
    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Name(name) = expr {
            self.0.insert(name.id.to_string());
        }
        visitor::walk_expr(self, expr);
    }
}

/// Names in a target.
pub(crate) fn targets(expr: &Expr) -> Names {
    let mut found = Targets(Names::new());
    found.visit_expr(expr);
    found.0
}

fn names(body: &[Stmt], which: impl Fn(&Expr) -> bool) -> Names {
    expressions(body)
        .into_iter()
        .filter(|expr| which(expr))
        .filter_map(|expr| expr.as_name_expr().map(|name| name.id.to_string()))
        .collect()
}

/// Occurrences of a name as an expression.
pub(crate) fn occurrences<'a>(body: &'a [Stmt], name: &str) -> Vec<&'a Expr> {
    expressions(body)
        .into_iter()
        .filter(|expr| expr.as_name_expr().is_some_and(|found| found.id.as_str() == name))
        .collect()
}

/// Names of functions, classes and modules that a module defines, and of Python itself.
pub(crate) fn known(body: &[Stmt]) -> Names {
    const BUILTINS: &[&str] = &[
        "AttributeError",
        "BaseException",
        "Exception",
        "False",
        "KeyError",
        "None",
        "RuntimeError",
        "StopIteration",
        "True",
        "ValueError",
        "__file__",
        "__name__",
        "abs",
        "all",
        "any",
        "bool",
        "bytes",
        "callable",
        "dict",
        "dir",
        "enumerate",
        "filter",
        "float",
        "frozenset",
        "getattr",
        "hasattr",
        "id",
        "int",
        "isinstance",
        "issubclass",
        "iter",
        "len",
        "list",
        "locals",
        "map",
        "max",
        "min",
        "next",
        "object",
        "open",
        "print",
        "property",
        "range",
        "repr",
        "reversed",
        "round",
        "self",
        "set",
        "setattr",
        "sorted",
        "staticmethod",
        "str",
        "sum",
        "super",
        "tuple",
        "type",
        "vars",
        "zip",
    ];
    let mut known: Names = BUILTINS.iter().map(|name| (*name).to_owned()).collect();
    for stmt in body {
        if matches!(stmt, Stmt::FunctionDef(_) | Stmt::ClassDef(_) | Stmt::Import(_) | Stmt::ImportFrom(_)) {
            known.append(&mut bound(std::slice::from_ref(stmt)));
        }
    }
    known
}
