//! Draft of a change: collects the edits of each lever and renders the resulting text.

use std::fmt::Write as _;

use memfit_source::edit::{apply_checked, apply_within};
use memfit_source::{Dialect, Edit, Facts, Span, Statement, StatementKind};
use memfit_vocabulary::Lever;

use crate::round::{Placement, Round};
use crate::training::{Training, is_name};
use crate::{Left, Why};

/// Loop over micro-batches within an iteration of the training loop.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    /// Statements that belong to the micro-batch.
    pub(crate) round: Round,
    /// Header of the loop, without its colon.
    pub(crate) header: String,
    /// Weight of a micro-batch in the batch, as an expression.
    pub(crate) share: String,
    /// Statements that save values before the loop.
    pub(crate) before: Vec<String>,
    /// Statements after each micro-batch's backward pass.
    pub(crate) after_each: Vec<String>,
    /// Statements after the loop.
    pub(crate) after: Vec<String>,
    /// Names that are reset to the whole batch after the loop.
    pub(crate) restored: Vec<String>,
}

impl Pieces {
    /// Creates a loop without additional statements.
    pub(crate) fn new(round: Round, header: String, share: String) -> Self {
        Self {
            round,
            header,
            share,
            before: Vec::new(),
            after_each: Vec::new(),
            after: Vec::new(),
            restored: Vec::new(),
        }
    }

    /// Multiplies an expression by the weight of a micro-batch.
    pub(crate) fn weighted(&self, value: &str) -> String {
        match self.share.strip_prefix("1 / ") {
            Some(count) => format!("{value} / {count}"),
            None => format!("{value} * {}", self.share),
        }
    }
}

/// Draft of a change to a script.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) text: &'a str,
    pub(crate) facts: &'a Facts,
    pub(crate) statements: &'a [Statement],
    pub(crate) training: Option<&'a Training<'a>>,
    /// Small edits anywhere.
    pub(crate) edits: Vec<Edit>,
    /// Statements before the training, after the model was created.
    pub(crate) before: Vec<String>,
    /// Functions to be added after the imports.
    pub(crate) helpers: Vec<&'static str>,
    /// Modules that the added code needs.
    pub(crate) imports: Vec<&'static str>,
    /// Environment variables to be set before torch is imported.
    pub(crate) environment: Vec<(&'static str, &'static str, &'static str)>,
    /// Context manager for the forward pass and the loss.
    pub(crate) context: Option<String>,
    pub(crate) pieces: Option<Pieces>,
    /// Name of the gradient scaler for the loss.
    pub(crate) scaler: Option<String>,
    pub(crate) done: Vec<Lever>,
    pub(crate) left: Vec<Left>,
    pub(crate) remarks: Vec<String>,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        text: &'a str,
        facts: &'a Facts,
        statements: &'a [Statement],
        training: Option<&'a Training<'a>>,
    ) -> Self {
        Self {
            text,
            facts,
            statements,
            training,
            edits: Vec::new(),
            before: Vec::new(),
            helpers: Vec::new(),
            imports: Vec::new(),
            environment: Vec::new(),
            context: None,
            pieces: None,
            scaler: None,
            done: Vec::new(),
            left: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Training loop.
    pub(crate) fn round(&self) -> Result<&'a Training<'a>, Why> {
        self.training.ok_or_else(|| {
            "no loop was found in the script that computes a loss and calls `backward()`".to_owned()
        })
    }

    /// Unused name, as close to `name` as possible.
    pub(crate) fn unused_name(&self, name: &str) -> String {
        let used = |name: &str| words(self.text).any(|word| word == name);
        let mut fresh = name.to_owned();
        while used(&fresh) {
            fresh.insert(0, '_');
        }
        fresh
    }

    pub(crate) fn remark(&mut self, text: &str) {
        if !self.remarks.iter().any(|known| known == text) {
            self.remarks.push(text.to_owned());
        }
    }

    pub(crate) fn import(&mut self, module: &'static str) {
        if !self.imports.contains(&module) {
            self.imports.push(module);
        }
    }

    /// Renders the changed text.
    pub(crate) fn render(mut self) -> Result<String, Why> {
        self.edits.extend(self.backward_of());
        let round = self.wrap_iteration()?;
        let mut edits: Vec<Edit> = self
            .edits
            .iter()
            .filter(|edit| round.as_ref().is_none_or(|round| !round.span.contains(edit.span)))
            .cloned()
            .collect();
        edits.extend(round);
        edits.extend(self.insert_before_training()?);
        edits.extend(self.insert_at_top());
        apply_checked(self.text, &edits, Dialect::Python).map_err(|error| error.to_string())
    }

    /// Edit of the backward pass's operand: the loss, weighted and scaled.
    fn backward_of(&self) -> Option<Edit> {
        let training = self.training?;
        let loss = training.loss.slice(self.text);
        let product = self.pieces.as_ref().map(|pieces| pieces.weighted(&self.factor(training)));
        let text = match (product, &self.scaler) {
            (None, None) => return None,
            (product, Some(scaler)) => {
                format!("{scaler}.scale({})", product.unwrap_or_else(|| loss.to_owned()))
            }
            (Some(product), None) => {
                let before = self.text[..training.loss.start as usize].trim_end();
                let behind = self.text[training.loss.end as usize..].trim_start();
                let is_enclosed = before.ends_with('(') && behind.starts_with(')');
                if is_enclosed { product } else { format!("({product})") }
            }
        };
        Some(Edit { span: training.loss, text })
    }

    /// Loss as a factor of a product, in parentheses if necessary.
    fn factor(&self, training: &Training<'_>) -> String {
        let text = training.loss.slice(self.text);
        let mut binds_tightly = false;
        training.suite[training.backward].visit(&mut |statement| {
            for expression in statement.expressions() {
                expression.visit(&mut |part| {
                    use memfit_source::ExpressionKind::{Attribute, Call, Item, Name};
                    let tight = matches!(part.kind, Name(_) | Attribute { .. } | Call { .. } | Item { .. });
                    binds_tightly |= part.span == training.loss && tight;
                });
            }
        });
        if binds_tightly { text.to_owned() } else { format!("({text})") }
    }

    /// Moves the statements of an iteration into a context or a micro-batch loop.
    fn wrap_iteration(&self) -> Result<Option<Edit>, Why> {
        let Some(training) = self.training.filter(|_| self.context.is_some() || self.pieces.is_some()) else {
            return Ok(None);
        };
        let from = self.pieces.as_ref().map_or(training.forward, |pieces| pieces.round.from);
        let from = from.min(training.forward);
        let place = |index: usize| match &self.pieces {
            Some(pieces) => pieces.round.place(index),
            None if training.clears.contains(&index) => Placement::Before,
            None => Placement::Each,
        };
        let placed =
            |wanted: Placement| (from..=training.backward).filter(move |index| place(*index) == wanted);
        let mut lines = String::new();
        let indent = self.indent(&training.suite[from]);
        let unit = if indent.contains('\t') { "\t" } else { "    " };
        for index in placed(Placement::Before) {
            lines.push_str(&self.chunk(training.suite, index)?);
        }
        let mut inner = indent.to_owned();
        if let Some(pieces) = &self.pieces {
            for line in &pieces.before {
                let _ = writeln!(lines, "{indent}{line}");
            }
            let _ = writeln!(lines, "{indent}{}:", pieces.header);
            inner.push_str(unit);
        }
        let deeper = |text: &str, levels: usize| indented(text, &unit.repeat(levels));
        let piece_level = usize::from(self.pieces.is_some());
        let each: Vec<usize> = placed(Placement::Each).collect();
        // The forward pass and the loss: up to the statement before the backward pass if that is a statement
        // of its own.
        let before_backward =
            each.iter().rev().find(|index| (training.forward..training.backward).contains(index));
        let last = before_backward.copied().unwrap_or(training.backward);
        for index in each {
            let chunk = self.chunk(training.suite, index)?;
            in_lines_of_its_own(&chunk)?;
            let within = self.context.is_some() && (training.forward..=last).contains(&index);
            if let Some(context) = self.context.as_ref().filter(|_| index == training.forward) {
                let _ = writeln!(lines, "{inner}with {context}:");
            }
            lines.push_str(&deeper(&chunk, piece_level + usize::from(within)));
        }
        if let Some(pieces) = &self.pieces {
            for line in &pieces.after_each {
                let _ = writeln!(lines, "{inner}{line}");
            }
            for line in &pieces.after {
                let _ = writeln!(lines, "{indent}{line}");
            }
        }
        for index in placed(Placement::After) {
            lines.push_str(&self.chunk(training.suite, index)?);
        }
        let start = self.begins(training.suite, from);
        let end = self.line_end(training.suite[training.backward].span.end);
        Ok(Some(Edit { span: Span::new(start, end), text: lines }))
    }

    /// Text of a statement with its lines, the comments above it, and the small edits within.
    fn chunk(&self, suite: &[Statement], index: usize) -> Result<String, Why> {
        let span = Span::new(self.begins(suite, index), self.line_end(suite[index].span.end));
        let (start, end) = (suite[index].span.start, suite[index].span.end);
        let before = self.text.get(self.line_start(start) as usize..start as usize).unwrap_or("x");
        let behind = self.text.get(end as usize..span.end as usize).unwrap_or("x").trim();
        if !before.trim().is_empty() || !(behind.is_empty() || behind.starts_with('#')) {
            return Err("several statements of the loop are on one line".to_owned());
        }
        let mut text = apply_within(self.text, span, &self.edits).map_err(|error| error.to_string())?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }

    /// Start of a statement's lines: after the statement before it.
    fn begins(&self, suite: &[Statement], index: usize) -> u32 {
        match index.checked_sub(1) {
            Some(before) => self.line_end(suite[before].span.end),
            None => self.with_comments(self.line_start(suite[index].span.start)),
        }
    }

    /// Start of the comments directly above a line.
    fn with_comments(&self, mut start: u32) -> u32 {
        while let Some(above) = start.checked_sub(1).map(|end| self.line_start(end)) {
            let line = self.text[above as usize..start as usize].trim();
            if !line.starts_with('#') {
                break;
            }
            start = above;
        }
        start
    }

    pub(crate) fn line_start(&self, at: u32) -> u32 {
        self.text[..at as usize].rfind('\n').map_or(0, |newline| newline as u32 + 1)
    }

    /// Offset after the end of a line.
    pub(crate) fn line_end(&self, at: u32) -> u32 {
        self.text[at as usize..].find('\n').map_or(self.text.len() as u32, |newline| at + newline as u32 + 1)
    }

    /// Indentation of a statement.
    pub(crate) fn indent(&self, statement: &Statement) -> &'a str {
        let line = &self.text[self.line_start(statement.span.start) as usize..];
        &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
    }

    /// Edit that inserts the statements before the training.
    fn insert_before_training(&self) -> Result<Option<Edit>, Why> {
        if self.before.is_empty() {
            return Ok(None);
        }
        let training = self.round()?;
        // The model must exist by then; it may be created within the outermost loop.
        let root = training.model.as_deref().and_then(|model| model.split('.').next()).unwrap_or_default();
        let made_in = |looped: &Statement| {
            let text = &self.text[looped.span.start as usize..training.suite[0].span.start as usize];
            text.lines().any(|line| {
                line.trim_start().strip_prefix(root).is_some_and(|rest| {
                    let rest = rest.trim_start();
                    rest.starts_with('=') && !rest.starts_with("==")
                })
            })
        };
        let place = training.around.iter().find(|looped| root.is_empty() || !made_in(looped));
        let place = place.ok_or("the model is created again in every iteration")?;
        let indent = self.indent(place);
        let start = self.line_start(place.span.start);
        let mut text = String::new();
        for line in &self.before {
            let _ = writeln!(text, "{indent}{line}");
        }
        Ok(Some(Edit { span: Span::empty(start), text }))
    }

    /// Edits that insert environment variables, imports and functions at the top of the file.
    fn insert_at_top(&self) -> Vec<Edit> {
        let imported = |module: &str| self.statements.iter().any(|statement| statement.imports(module));
        let mut edits = Vec::new();
        let imports: Vec<&Statement> =
            self.statements.iter().filter(|each| each.kind == StatementKind::Import).collect();
        let torch = imports.iter().find(|each| {
            words(each.span.slice(self.text)).any(|word| word.starts_with("torch") || word == "transformers")
        });
        if !self.environment.is_empty() {
            let mut text = String::new();
            if !imported("os") {
                text.push_str("import os\n\n");
            }
            for (name, value, comment) in &self.environment {
                let _ = writeln!(text, "# {comment}");
                let _ = writeln!(text, "os.environ.setdefault(\"{name}\", \"{value}\")");
            }
            text.push('\n');
            let place = torch.or(imports.first()).map_or(0, |each| self.line_start(each.span.start));
            edits.push(Edit { span: Span::empty(place), text });
        }
        // The leading imports end where another statement follows.
        let last = self
            .statements
            .iter()
            .take_while(|each| matches!(each.kind, StatementKind::Import | StatementKind::Text))
            .last();
        let place = last.map_or(0, |each| self.line_end(each.span.end));
        let mut text = String::new();
        for module in self.imports.iter().filter(|module| !imported(module)) {
            let _ = writeln!(text, "import {module}");
        }
        for helper in &self.helpers {
            text.push_str("\n\n");
            text.push_str(helper);
        }
        if !self.helpers.is_empty() {
            let behind =
                self.text[place as usize..].lines().take_while(|line| line.trim().is_empty()).count();
            text.push_str(&"\n".repeat(2_usize.saturating_sub(behind)));
        }
        if !text.is_empty() {
            edits.push(Edit { span: Span::empty(place), text });
        }
        edits
    }
}

/// Identifiers in a text.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).filter(|word| is_name(word))
}

/// Indents lines.
fn indented(text: &str, by: &str) -> String {
    text.lines().fold(String::with_capacity(text.len() + 64), |mut out, line| {
        if !line.trim().is_empty() {
            out.push_str(by);
            out.push_str(line);
        }
        out.push('\n');
        out
    })
}

fn in_lines_of_its_own(chunk: &str) -> Result<(), Why> {
    if chunk.contains("\"\"\"") || chunk.contains("'''") {
        return Err("the loop contains a multi-line string, which indenting the loop would change".to_owned());
    }
    Ok(())
}
