//! Parsing of a text and collection of its facts. After a syntax error, the rest of the text is analysed.

use std::sync::Arc;

use ruff_python_ast::token::TokenKind;
use ruff_python_ast::{Mod, ModModule};
use ruff_python_parser::{Mode, ParseOptions, Parsed, parse_unchecked};

use crate::facts::{Comment, Facts, Problem};
use crate::limits::{TooMuch, measure};
use crate::position::Span;
use crate::project::{ImportedFunction, Index, Modules, NoModules};
use crate::walk;

/// Python dialect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Plain Python, as in a file.
    #[default]
    Python,
    /// IPython, with magic commands, as in a notebook's cell.
    IPython,
}

/// Maximum number of syntax errors reported for a text.
const MAX_PROBLEMS: usize = 20;

/// Collects the facts of a text.
pub fn facts(text: &Arc<str>, dialect: Dialect, modules: &dyn Modules) -> Result<Facts, TooMuch> {
    Ok(Module::read(text.clone(), dialect)?.facts(modules))
}

/// Parsed text. It provides its own facts, and summaries of its functions to modules that import them.
#[derive(Debug)]
pub struct Module {
    text: Arc<str>,
    /// `None` if the text is not a module.
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

    /// Source text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Collects the facts.
    pub fn facts(&self, modules: &dyn Modules) -> Facts {
        let Some(syntax) = &self.syntax else { return Facts::default() };
        let mut facts = walk::walk(syntax, &self.text, &modules);
        facts.text = self.text.clone();
        facts.problems.clone_from(&self.problems);
        facts.comments.clone_from(&self.comments);
        facts
    }

    /// Names that it defines.
    pub fn index(&self) -> Index {
        self.syntax.as_ref().map(|syntax| walk::index(syntax, &self.text, &&NoModules)).unwrap_or_default()
    }

    /// Summary of a function or a method (`Trainer.step`).
    pub fn function(&self, name: &str, modules: &dyn Modules) -> Option<ImportedFunction> {
        walk::summary_of(self.syntax.as_ref()?, &self.text, &modules, name).map(ImportedFunction)
    }
}

/// Returns `true` if a text has no syntax errors.
pub fn is_valid(text: &str, dialect: Dialect) -> bool {
    measure(text).is_ok() && parse_unchecked(text, options(dialect)).has_valid_syntax()
}

/// Returns `true` if a text may concern training with PyTorch. Most files of most projects do not.
pub fn is_relevant(text: &str) -> bool {
    const KEYWORDS: &[&str] =
        &["torch", "backward", "zero_grad", "DataLoader", "cuda", "optimizer", "CUDA_ALLOC", "transformers"];
    // Texts for other frameworks are outside the scope of the rules.
    const OTHER_FRAMEWORKS: &[&str] =
        &["mxnet", "mlx", "tensorflow", "keras", "jax", "paddle", "mindspore", "tinygrad", "jittor"];
    let imports = |name: &str| {
        text.lines().any(|line| {
            // In a notebook, lines are inside JSON strings.
            let line = line.trim_start_matches([' ', '"', '\t']);
            line.strip_prefix("import ")
                .or_else(|| line.strip_prefix("from "))
                .is_some_and(|rest| rest.starts_with(name))
        })
    };
    let is_of_another = || {
        // A file that imports none may still name its functions, as one that gets them by a star does.
        !imports("torch")
            && !text.contains("torch.")
            && !text.contains("lightning")
            && OTHER_FRAMEWORKS.iter().any(|name| imports(name))
    };
    // A script whose models and losses are those of other modules.
    let trains = || text.contains("loss") && (text.contains("train") || text.contains(".update("));
    (KEYWORDS.iter().any(|sign| text.contains(sign)) || trains()) && !is_of_another()
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
        .take(MAX_PROBLEMS)
        .map(|error| Problem {
            span: Span::new(error.location.start().to_u32(), error.location.end().to_u32()),
            message: error.error.to_string(),
        })
        .collect()
}

/// Collects comments that mention memfit.
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
        .filter(|span| span.slice(text).contains("memfit"))
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
    fn trainings_of_other_frameworks_are_skipped() {
        assert!(is_relevant("import torch\nmodel.backward()\n"));
        assert!(is_relevant("loss.backward()\n"));
        assert!(is_relevant("import jax\nimport torch\nloss.backward()\n"));
        assert!(!is_relevant("from mxnet import gluon\nloss.backward()\n"));
        assert!(!is_relevant("import tensorflow as tf\noptimizer = tf.keras.optimizers.Adam()\n"));
        assert!(!is_relevant("print(1)\n"));
    }
}
