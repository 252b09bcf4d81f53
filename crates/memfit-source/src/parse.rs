//! From text to facts. What the parser cannot read is a problem, and the rest of the text is read all the
//! same.

use std::sync::Arc;

use ruff_python_ast::token::TokenKind;
use ruff_python_ast::{Mod, ModModule};
use ruff_python_parser::{Mode, ParseOptions, Parsed, parse_unchecked};

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
    Ok(Module::read(text.clone(), dialect)?.facts(modules))
}

/// A text that was parsed: asked for its own facts, and for what its functions do by those who import them.
#[derive(Debug)]
pub struct Module {
    text: Arc<str>,
    /// Nothing where it is no module at all.
    syntax: Option<ModModule>,
    problems: Vec<Problem>,
    comments: Vec<Comment>,
}

impl Module {
    /// Parses a text.
    pub fn read(text: Arc<str>, dialect: Dialect) -> Result<Self, TooMuch> {
        measure(&text)?;
        let parsed = parse_unchecked(&text, options(dialect));
        let (problems, comments) = (problems(&parsed), comments(&parsed, &text));
        let syntax = parsed.try_into_module().map(Parsed::into_syntax);
        Ok(Self { text, syntax, problems, comments })
    }

    /// What was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its facts.
    pub fn facts(&self, modules: &dyn Modules) -> Facts {
        let Some(syntax) = &self.syntax else { return Facts::default() };
        let mut facts = walk::walk(syntax, &self.text, &modules);
        facts.text = self.text.clone();
        facts.problems.clone_from(&self.problems);
        facts.comments.clone_from(&self.comments);
        facts
    }

    /// What it defines.
    pub fn index(&self) -> Index {
        self.syntax.as_ref().map(|syntax| walk::index(syntax, &self.text, &&Alone)).unwrap_or_default()
    }

    /// What one function of it does, or a method: `Trainer.step`.
    pub fn function(&self, name: &str, modules: &dyn Modules) -> Option<ImportedFunction> {
        walk::summary_of(self.syntax.as_ref()?, &self.text, &modules, name).map(ImportedFunction)
    }
}

/// Whether a text can be parsed as it is: for those who changed it.
pub fn is_valid(text: &str, dialect: Dialect) -> bool {
    measure(text).is_ok() && parse_unchecked(text, options(dialect)).has_valid_syntax()
}

/// Whether a text may have anything to do with training. Most files of most projects have not.
pub fn is_relevant(text: &str) -> bool {
    const SIGNS: &[&str] =
        &["torch", "backward", "zero_grad", "DataLoader", "cuda", "optimizer", "CUDA_ALLOC", "transformers"];
    // What only others' names stand for is no business of these rules.
    const OTHERS: &[&str] = &["mxnet", "tensorflow", "keras", "jax", "paddle", "mindspore", "tinygrad"];
    let imports = |name: &str| {
        text.lines().any(|line| {
            // In a notebook, lines stand in strings.
            let line = line.trim_start_matches([' ', '"', '\t']);
            line.strip_prefix("import ")
                .or_else(|| line.strip_prefix("from "))
                .is_some_and(|rest| rest.starts_with(name))
        })
    };
    let is_of_another =
        || !text.contains("torch") && !text.contains("lightning") && OTHERS.iter().any(|name| imports(name));
    SIGNS.iter().any(|sign| text.contains(sign)) && !is_of_another()
}

pub(crate) fn options(dialect: Dialect) -> ParseOptions {
    ParseOptions::from(match dialect {
        Dialect::Python => Mode::Module,
        Dialect::IPython => Mode::Ipython,
    })
}

fn problems(parsed: &Parsed<Mod>) -> Vec<Problem> {
    parsed
        .errors()
        .iter()
        .take(MOST_PROBLEMS)
        .map(|error| Problem {
            span: Span::new(error.location.start().to_u32(), error.location.end().to_u32()),
            message: error.error.to_string(),
        })
        .collect()
}

/// The comments that speak to memfit.
fn comments(parsed: &Parsed<Mod>, text: &str) -> Vec<Comment> {
    if !text.contains("memfit") {
        return Vec::new();
    }
    parsed
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
        .collect()
}

#[cfg(test)]
mod tests {
    use super::is_relevant;

    #[test]
    fn what_another_framework_trains_is_left_alone() {
        assert!(is_relevant("import torch\nmodel.backward()\n"));
        assert!(is_relevant("loss.backward()\n"));
        assert!(is_relevant("import jax\nimport torch\nloss.backward()\n"));
        assert!(!is_relevant("from mxnet import gluon\nloss.backward()\n"));
        assert!(!is_relevant("import tensorflow as tf\noptimizer = tf.keras.optimizers.Adam()\n"));
        assert!(!is_relevant("print(1)\n"));
    }
}
