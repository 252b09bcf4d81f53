//! Changes of source text, line by line, and what a line of Python says as far as a remedy has to know it.

mod diff;
mod python;

pub(crate) use python::{
    assigned, call_in, contexts_around, enclosing_def, ends_statement, indent_of, is_word, loop_end,
    replace_word, statement_at, statement_end,
};

use std::collections::BTreeMap;

use crate::explanation::Apply;

/// A source file that is being changed. Lines count from 1.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    file: String,
    lines: Vec<String>,
    replaced: BTreeMap<usize, Vec<String>>,
    before: BTreeMap<usize, Vec<String>>,
}

impl Source {
    pub(crate) fn new(file: &str, text: &str) -> Self {
        let lines = text.lines().map(str::to_owned).collect();
        Self { file: file.to_owned(), lines, replaced: BTreeMap::new(), before: BTreeMap::new() }
    }

    /// Whether it is the text of this file.
    pub(crate) fn is_of(&self, file: &str) -> bool {
        self.file == file
    }

    /// The text of a line; empty beyond the end.
    pub(crate) fn line(&self, number: u32) -> &str {
        (number as usize).checked_sub(1).and_then(|index| self.lines.get(index)).map_or("", String::as_str)
    }

    pub(crate) fn len(&self) -> u32 {
        self.lines.len() as u32
    }

    /// The lines with their numbers.
    pub(crate) fn lines(&self) -> impl DoubleEndedIterator<Item = (u32, &str)> {
        (1..).zip(self.lines.iter().map(String::as_str)).collect::<Vec<_>>().into_iter()
    }

    /// Another line in the place of one.
    pub(crate) fn replace(&mut self, number: u32, text: String) {
        self.replaced.insert(number as usize, vec![text]);
    }

    /// Several lines, or none, in the place of one.
    pub(crate) fn replace_by(&mut self, number: u32, lines: Vec<String>) {
        self.replaced.insert(number as usize, lines);
    }

    /// A new line in front of one; behind the last where the number is beyond it.
    pub(crate) fn insert_before(&mut self, number: u32, text: String) {
        self.before.entry(number as usize).or_default().push(text);
    }

    /// `import NAME` behind the first import of torch, unless it is there.
    pub(crate) fn import(&mut self, statement: &str) {
        let name = statement.strip_prefix("import ").unwrap_or(statement);
        // One line may import several.
        let names = |line: &str| {
            line.strip_prefix("import ").is_some_and(|all| all.split(',').any(|one| one.trim() == name))
        };
        if self.lines.iter().any(|line| line.trim() == statement || names(line)) {
            return;
        }
        let first = self
            .lines
            .iter()
            .position(|line| line.starts_with("import torch") || line.starts_with("from torch"));
        if let Some(first) = first {
            self.insert_before(first as u32 + 2, statement.to_owned());
        }
    }

    /// The change; nothing where there is none.
    pub(crate) fn edit(&self) -> Option<Apply> {
        let mut after: Vec<diff::Line<'_>> = Vec::new();
        for number in 1..=self.lines.len() + 1 {
            for new in self.before.get(&number).into_iter().flatten() {
                after.push(diff::Line::New(new));
            }
            let Some(old) = self.lines.get(number - 1) else { break };
            match self.replaced.get(&number) {
                None => after.push(diff::Line::Same(old)),
                Some(new) => {
                    after.push(diff::Line::Gone(old));
                    after.extend(new.iter().map(|new| diff::Line::New(new)));
                }
            }
        }
        let (diff, line) = diff::unified(&self.file, &after)?;
        let text = after.iter().filter_map(diff::Line::after).flat_map(|line| [line, "\n"]).collect();
        Some(Apply::Edit { file: self.file.clone(), line, diff, after: text })
    }
}
