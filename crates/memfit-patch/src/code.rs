//! Parsed source files, each parsed once when it is first needed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use crate::Why;
use memfit_source::{
    Dialect, Facts, LineIndex, NoModules, STACK, Span, Statement, StatementKind, facts, is_deep, statements,
};

/// Parsed source file.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: Arc<str>,
    pub(crate) lines: LineIndex,
    pub(crate) facts: Facts,
    pub(crate) statements: Vec<Statement>,
    /// Full names of imported callees, by call.
    called: HashMap<Span, Arc<str>>,
}

impl Script {
    /// Parses a text. The error is a sentence without a final full stop.
    pub(crate) fn read(text: &str) -> Result<Self, &'static str> {
        // Deep expressions need a large stack.
        std::thread::scope(|scope| {
            let reader = std::thread::Builder::new().stack_size(STACK);
            let reading = reader.spawn_scoped(scope, || Self::parse(text));
            let read = reading.map_err(|_| "cannot start a thread to parse the script")?;
            read.join().unwrap_or(Err("the script could not be read as Python"))
        })
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        const TOO_LARGE: &str = "the script is too large to be changed";
        let text: Arc<str> = Arc::from(text);
        let facts = facts(&text, Dialect::Python, &NoModules).map_err(|_| TOO_LARGE)?;
        if !facts.problems.is_empty() {
            return Err("the script could not be read as Python");
        }
        let statements = statements(&text, Dialect::Python).map_err(|_| TOO_LARGE)?;
        if is_deep(&statements) {
            return Err(TOO_LARGE);
        }
        let named = facts.calls.iter().filter_map(|call| Some((call.span, call.path.clone()?)));
        let called = named.collect();
        Ok(Self { lines: LineIndex::new(&text), text, facts, statements, called })
    }

    /// Text of a span.
    pub(crate) fn slice(&self, span: Span) -> &str {
        span.slice(&self.text)
    }

    /// Line of an offset, from 1.
    pub(crate) fn line_of(&self, offset: u32) -> u32 {
        self.lines.line_of(offset) as u32 + 1
    }

    /// First and last line of a span, from 1.
    pub(crate) fn lines_of(&self, span: Span) -> (u32, u32) {
        (self.line_of(span.start), self.line_of(span.end.max(span.start + 1) - 1))
    }

    /// Returns `true` if a span covers a line (from 1).
    pub(crate) fn is_on(&self, span: Span, line: u32) -> bool {
        let (first, last) = self.lines_of(span);
        (first..=last).contains(&line)
    }

    /// Full name of an imported callee.
    pub(crate) fn called(&self, call: Span) -> Option<&str> {
        self.called.get(&call).map(|path| &**path)
    }

    /// Innermost statement on a line.
    pub(crate) fn statement_at_line(&self, line: u32) -> Option<Path<'_>> {
        self.path(|span| self.is_on(span, line))
    }

    /// Innermost statement that contains a span.
    pub(crate) fn statement_around(&self, inner: Span) -> Option<Path<'_>> {
        self.path(|span| span.contains(inner))
    }

    fn path(&self, is_in: impl Fn(Span) -> bool) -> Option<Path<'_>> {
        let mut path = Vec::new();
        let mut suites: Vec<&[Statement]> = vec![&self.statements];
        while let Some((suite, index)) = suites
            .iter()
            .find_map(|suite| Some((*suite, suite.iter().position(|statement| is_in(statement.span))?)))
        {
            path.push((suite, index));
            suites = suite[index].suites().collect();
        }
        (!path.is_empty()).then_some(Path { steps: path })
    }
}

/// Path from the module to a statement, the outermost first.
#[derive(Clone, Debug)]
pub(crate) struct Path<'s> {
    /// Lists of statements, each with the index of the next step.
    steps: Vec<(&'s [Statement], usize)>,
}

impl<'s> Path<'s> {
    /// The statement itself.
    pub(crate) fn statement(&self) -> &'s Statement {
        let (suite, index) = self.steps[self.steps.len() - 1];
        &suite[index]
    }

    /// List that contains the statement, and its index there.
    pub(crate) fn suite(&self) -> (&'s [Statement], usize) {
        self.steps[self.steps.len() - 1]
    }

    /// Lists on the way to the statement with the index of the next step, the innermost first.
    pub(crate) fn levels(&self) -> impl Iterator<Item = (&'s [Statement], usize)> + '_ {
        self.steps.iter().rev().copied()
    }

    /// Enclosing statements, the innermost first.
    pub(crate) fn above(&self) -> impl Iterator<Item = &'s Statement> + '_ {
        self.steps[..self.steps.len() - 1].iter().rev().map(|(suite, index)| &suite[*index])
    }

    /// Enclosing function.
    pub(crate) fn function(&self) -> Option<&'s Statement> {
        self.above().find(|statement| statement.kind == StatementKind::Function)
    }

    /// Statements of the enclosing function, or of the module.
    pub(crate) fn scope(&self) -> &'s [Statement] {
        self.function().map_or(self.steps[0].0, |function| &function.body)
    }

    /// Enclosing loops within the function, the innermost first.
    pub(crate) fn loops(&self) -> impl Iterator<Item = &'s Statement> + '_ {
        self.above()
            .take_while(|statement| !matches!(statement.kind, StatementKind::Function | StatementKind::Class))
            .filter(|statement| statement.kind == StatementKind::Loop)
    }

    /// Returns `true` if every iteration of a loop runs the statement: only `with` statements are between.
    pub(crate) fn is_in_each_round(&self, looped: &Statement) -> bool {
        let between = self.above().take_while(|statement| statement.span != looped.span);
        let first = self.steps.iter().position(|(suite, index)| suite[*index].span == looped.span);
        let in_body = first.is_some_and(|at| {
            self.steps.get(at + 1).is_some_and(|(suite, _)| std::ptr::eq(*suite, looped.body.as_slice()))
        });
        in_body && between.into_iter().all(|statement| statement.kind == StatementKind::With)
    }
}

/// Recorded source line.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// File.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
    /// Function.
    pub function: String,
}

/// Lines that a recording shows to have run.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    lines: BTreeMap<String, BTreeSet<u32>>,
    main: Option<String>,
}

impl Ran {
    /// Collects the lines; `main` is the script itself, which no other file imports.
    pub fn new(sites: impl IntoIterator<Item = Site>, main: Option<String>) -> Self {
        let mut lines: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        for site in sites {
            lines.entry(site.file).or_default().insert(site.line);
        }
        Self { lines, main }
    }
}

/// Empty set, for files without recorded lines.
static NO_LINES: BTreeSet<u32> = BTreeSet::new();

/// Returns the text of a source file, if it is available.
pub type Read<'given> = &'given dyn Fn(&str) -> Option<String>;

/// Source of a recorded program, as far as it is available, with queries and edits.
pub struct Code<'given> {
    read: Read<'given>,
    ran: Ran,
    texts: RefCell<HashMap<String, Option<Rc<str>>>>,
    scripts: RefCell<HashMap<String, Option<Rc<Script>>>>,
}

impl<'given> Code<'given> {
    /// Creates the source of a program of which these lines ran.
    pub fn new(read: Read<'given>, ran: Ran) -> Self {
        Self { read, ran, texts: RefCell::default(), scripts: RefCell::default() }
    }

    fn text(&self, file: &str) -> Option<Rc<str>> {
        if let Some(known) = self.texts.borrow().get(file) {
            return known.clone();
        }
        let text: Option<Rc<str>> = (self.read)(file).map(Rc::from);
        self.texts.borrow_mut().insert(file.to_owned(), text.clone());
        text
    }

    /// Text of a line (from 1) for people; `None` if it is not available or empty.
    pub fn line(&self, file: &str, line: u32) -> Option<String> {
        let text = self.text(file)?;
        let line = text.lines().nth(line.checked_sub(1)? as usize)?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// Parsed file with the facts about its run.
    pub(crate) fn scene<'c>(&'c self, file: &'c str) -> Option<Scene<'c>> {
        let known = self.scripts.borrow().get(file).cloned();
        let script = if let Some(known) = known {
            known?
        } else {
            let script = self.text(file).and_then(|text| Script::read(&text).ok()).map(Rc::new);
            self.scripts.borrow_mut().insert(file.to_owned(), script.clone());
            script?
        };
        let ran = self.ran.lines.get(file).unwrap_or(&NO_LINES);
        Some(Scene { file, script, ran, is_main: self.ran.main.as_deref() == Some(file) })
    }

    /// Recorded files that are available.
    pub(crate) fn scenes(&self) -> impl Iterator<Item = Scene<'_>> {
        self.ran.lines.keys().filter_map(|file| self.scene(file))
    }
}

/// Parsed file with the facts about its run.
#[derive(Clone, Debug)]
pub(crate) struct Scene<'c> {
    pub(crate) file: &'c str,
    pub(crate) script: Rc<Script>,
    /// Lines that ran.
    pub(crate) ran: &'c BTreeSet<u32>,
    /// `true` for the script itself, `false` for a module that others import.
    pub(crate) is_main: bool,
}

impl Scene<'_> {
    /// Checks that a recorded line still belongs to its function, since the file may have changed.
    pub(crate) fn is_current(&self, site: &Site) -> Result<(), Why> {
        let path = self.script.statement_at_line(site.line);
        let function = path.as_ref().and_then(Path::function).and_then(|function| function.name.as_deref());
        let recorded = site.function.rsplit('.').next().unwrap_or_default();
        // A lambda or comprehension is part of any function, and a class has a body of its own.
        let class =
            path.as_ref().and_then(|path| path.above().find(|each| each.kind == StatementKind::Class));
        let same = match recorded {
            "" => true,
            "<module>" => function.is_none(),
            name if name.starts_with('<') => true,
            name => function == Some(name) || class.is_some_and(|class| class.name.as_deref() == Some(name)),
        };
        if same && path.is_some() {
            return Ok(());
        }
        Err(format!(
            "line {} is no longer one of `{recorded}`: the file has changed since the recording",
            site.line
        ))
    }

    /// Returns `true` if the recording shows that a statement was reached: another one of its list, or a
    /// nested one, ran.
    pub(crate) fn was_reached(&self, path: &Path<'_>) -> bool {
        let mut owners = path.above();
        for (suite, _) in path.steps.iter().rev() {
            match owners.next().map(|owner| owner.kind) {
                // A module with recorded lines was executed.
                None => return !self.ran.is_empty(),
                // Its body is reached whenever it is.
                Some(StatementKind::With | StatementKind::Class) => {}
                Some(_) => {
                    let (first, last) = (suite[0].span.start, suite[suite.len() - 1].span.end);
                    let (first, last) = self.script.lines_of(Span::new(first, last));
                    return self.ran.range(first..=last).next().is_some();
                }
            }
        }
        false
    }
}
