//! The table of remarks and assumptions about a report's figures: the text of each, and its possible effect
//! on the peaks.
//!
//! The device, the probe and the command identify a remark by its id and pass values for its placeholders. An
//! unknown id is shown unchanged, and its possible effect is unbounded.

mod assumption;
mod remark;

use std::collections::BTreeMap;

use memfit_vocabulary::Remark;
use serde::{Deserialize, Serialize};

use crate::wire::{Fidelity, PossibleEffect};

pub use assumption::{Stake, assumption_text};
pub use remark::{Effect, RemarkText};

/// A remark with the values for its text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Note {
    /// The remark's id.
    pub id: String,
    /// Values for the placeholders of its text.
    pub values: BTreeMap<String, String>,
}

impl Note {
    /// A remark without values.
    pub fn new(remark: Remark) -> Self {
        Self::received(remark.id(), BTreeMap::new())
    }

    /// Creates a remark from a process's message.
    pub fn received(id: &str, values: BTreeMap<String, String>) -> Self {
        Self { id: id.to_owned(), values }
    }

    /// Sets the value of a placeholder.
    #[must_use]
    pub fn with_value(mut self, placeholder: &str, value: impl Into<String>) -> Self {
        self.values.insert(placeholder.to_owned(), value.into());
        self
    }

    /// The remark, if this build knows it.
    pub fn remark(&self) -> Option<Remark> {
        self.id.parse().ok()
    }

    /// The possible effect on the peaks. An unknown remark counts as the most severe.
    pub fn effect(&self) -> Effect {
        self.remark().map_or(Effect::Unbounded, |remark| RemarkText::for_remark(remark).effect)
    }

    /// The text for people.
    pub fn text(&self) -> String {
        match self.remark() {
            Some(remark) => fill(RemarkText::for_remark(remark).text, &self.values),
            None => self.unknown(),
        }
    }

    /// The entry in `fidelity.effects`: at most `bytes`; `None` if unbounded.
    pub fn possible_effect(&self, bytes: Option<u64>) -> PossibleEffect {
        PossibleEffect {
            id: self.id.clone(),
            what: self.text(),
            bytes,
            why: self.effect().words().to_owned(),
        }
    }

    fn unknown(&self) -> String {
        let values: Vec<String> =
            self.values.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        if values.is_empty() { self.id.clone() } else { format!("{} ({})", self.id, values.join(", ")) }
    }
}

impl Fidelity {
    /// Adds a remark whose possible effect is unbounded.
    pub fn add(&mut self, note: &Note) {
        self.notes.push(note.text());
        self.effects.push(note.possible_effect(None));
    }

    /// The remarks with their possible effects, without refused calls and assumed values.
    pub(crate) fn remarks(&self) -> impl Iterator<Item = &PossibleEffect> {
        self.effects[self.effects.len().saturating_sub(self.notes.len())..].iter()
    }
}

/// Replaces each `{placeholder}` with its value. A placeholder without a value is kept.
fn fill(template: &str, values: &BTreeMap<String, String>) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        let Some((name, after)) = after.split_once('}') else {
            text.push('{');
            rest = after;
            continue;
        };
        match values.get(name) {
            Some(value) => text.push_str(value),
            None => text.extend(["{", name, "}"]),
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests;
