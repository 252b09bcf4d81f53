//! The levers: each file of this folder declares one, and `build.rs` lists the files here.

use std::fmt;

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Declaration, Harm, Label, Moved, Script, Sentence, Stage};

include!(concat!(env!("OUT_DIR"), "/levers.rs"));

impl Lever {
    /// The name in plan files, in JSON and on the command line.
    pub const fn name(self) -> &'static str {
        self.declaration().name
    }

    /// Label, provided that splitting a batch was verified.
    pub const fn label(self) -> Label {
        self.declaration().label
    }

    /// Its label if splitting a batch was not verified: with batch normalisation, and with losses that
    /// compare samples, gradient accumulation changes training results.
    pub const fn label_unverified(self) -> Label {
        match self {
            Self::MicroBatch => Label::ChangesTraining,
            other => other.label(),
        }
    }

    /// Degree of harm to the training results.
    pub const fn harm(self) -> Harm {
        self.declaration().harm
    }

    /// Stage at which it is applied.
    pub const fn stage(self) -> Stage {
        self.declaration().stage
    }

    /// The line of a report that describes it in a plan.
    pub fn sentence(self, moved: Moved<'_>) -> String {
        let declaration = self.declaration();
        match declaration.sentence {
            Sentence::NameAndValue => format!("{self}: {}", moved.value),
            Sentence::Brief => declaration.brief.to_owned(),
            Sentence::Words(words) => words.to_owned(),
            Sentence::With(words) => words(moved),
        }
    }

    /// Reason why it cannot be combined with another lever; `None` if it can.
    pub fn excludes(self, other: Self) -> Option<&'static str> {
        let stated = |by: Self, about: Self| {
            let excluded = by.declaration().excludes.iter().find(|(lever, _)| *lever == about);
            excluded.map(|(_, why)| *why)
        };
        stated(self, other).or_else(|| stated(other, self))
    }

    /// The lever that it requires.
    pub const fn needs(self) -> Option<Self> {
        self.declaration().needs
    }

    /// Environment variable that applies it, set before the script starts, and its value.
    pub const fn environment(self) -> Option<(&'static str, &'static str)> {
        match self.declaration().script {
            Script::Environment { name, value, .. } => Some((name, value)),
            _ => None,
        }
    }

    /// The lever with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|lever| lever.name() == name)
    }

    /// Conflict in a set of levers: two that exclude each other, or one without a lever that it requires.
    pub fn conflict(chosen: &[Self]) -> Option<String> {
        for (index, one) in chosen.iter().enumerate() {
            if let Some(needed) = one.needs()
                && !chosen.contains(&needed)
            {
                return Some(format!("`{one}` needs `{needed}`"));
            }
            for two in &chosen[index + 1..] {
                if one == two {
                    return Some(format!("`{one}` is named twice"));
                }
                if let Some(why) = one.excludes(*two) {
                    return Some(format!("`{one}` and `{two}` cannot be combined: {why}"));
                }
            }
        }
        None
    }
}

impl fmt::Display for Lever {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl Serialize for Lever {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Lever {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let unknown = || D::Error::invalid_value(Unexpected::Str(&name), &"the name of a lever");
        Self::from_name(&name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests;
