//! From text to facts. What the parser cannot read is a problem, and the rest of the text is read all the same.

use std::sync::Arc;

use ruff_python_ast::ModModule;
use ruff_python_ast::token::TokenKind;
use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};

use crate::facts::{Comment, Facts, Problem};
use crate::limits::{TooMuch, measure};
use crate::position::Span;
use crate::project::{Alone, ImportedFunction, Index, Modules};
use crate::walk;

/// Which Python it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// As in a file.
    #[default]
    Python,
    /// As in a notebook's cell, with magic commands.
    IPython,
}

/// The most problems that are told of one text.
const MOST_PROBLEMS: usize = 20;

/// The facts of a text.
pub fn facts(text: &Arc<str>, dialect: Dialect, modules: &dyn Modules) -> Result<Facts, TooMuch> {
    read(text, dialect, modules)
}

/// A module that others import: read once, and walked for each function of it that is called.
#[derive(Debug)]
pub struct Module {
    text: String,
    syntax: ModModule,
}

impl Module {
    /// Reads a module; nothing comes of what is none.
    pub fn read(text: String) -> Result<Option<Self>, TooMuch> {
        measure(&text)?;
        let parsed = parse_unchecked(&text, options(Dialect::Python));
        let syntax = parsed.try_into_module().map(ruff_python_parser::Parsed::into_syntax);
        Ok(syntax.map(|syntax| Self { text, syntax }))
    }

    /// What it defines.
    pub fn index(&self) -> Index {
        walk::index(&self.syntax, &self.text, &&Alone)
    }

    /// What one function of it does, or a method: `Trainer.step`.
    pub fn function(&self, name: &str, modules: &dyn Modules) -> Option<ImportedFunction> {
        walk::summary_of(&self.syntax, &self.text, &modules, name).map(ImportedFunction)
    }
}

/// Whether a text can be parsed as it is: for those who changed it.
pub fn is_valid(text: &str, dialect: Dialect) -> bool {
    measure(text).is_ok() && parse_unchecked(text, options(dialect)).has_valid_syntax()
}

/// Whether a text may have anything to do with training. Most files of most projects have not.
pub fn is_relevant(text: &str) -> bool {
    const SIGNS: &[&str] =
        &["torch", "backward", "zero_grad", "DataLoader", "cuda", "optimizer", "CUDA_ALLOC"];
    SIGNS.iter().any(|sign| text.contains(sign))
}

pub(crate) fn options(dialect: Dialect) -> ParseOptions {
    ParseOptions::from(match dialect {
        Dialect::Python => Mode::Module,
        Dialect::IPython => Mode::Ipython,
    })
}

fn read(text: &Arc<str>, dialect: Dialect, modules: &dyn Modules) -> Result<Facts, TooMuch> {
    measure(text)?;
    let parsed = parse_unchecked(text, options(dialect));
    let problems = parsed
        .errors()
        .iter()
        .take(MOST_PROBLEMS)
        .map(|error| Problem {
            span: Span::new(error.location.start().to_u32(), error.location.end().to_u32()),
            message: error.error.to_string(),
        })
        .collect();
    let comments = parsed
        .tokens()
        .iter()
        .filter(|token| token.kind() == TokenKind::Comment)
        .map(|token| {
            use ruff_text_size::Ranged as _;
            let range = token.range();
            Span::new(range.start().to_u32(), range.end().to_u32())
        })
        .filter(|span| span.of(text).contains("memfit"))
        .map(|span| {
            let before = text.get(..span.start as usize).unwrap_or_default();
            let line = before.rsplit(['\n', '\r']).next().unwrap_or_default();
            Comment { span, own_line: line.trim().is_empty() }
        })
        .collect();
    let Some(parsed) = parsed.try_into_module() else {
        return Ok(Facts::default());
    };
    let mut facts = walk::walk(parsed.syntax(), text, &modules);
    facts.text = text.clone();
    facts.problems = problems;
    facts.comments = comments;
    Ok(facts)
}
