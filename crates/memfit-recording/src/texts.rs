//! Interned texts.

use std::collections::HashMap;

/// The number of a text in a track; 0 is the empty text, which stands for "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(pub u32);

impl TextId {
    /// No text.
    pub const NONE: Self = Self(0);
}

/// Texts, each kept once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Texts {
    texts: Vec<Box<str>>,
    numbers: HashMap<Box<str>, TextId>,
}

impl Default for Texts {
    fn default() -> Self {
        let mut texts = Self { texts: Vec::new(), numbers: HashMap::new() };
        texts.intern("");
        texts
    }
}

impl Texts {
    /// The number of a text, which is kept if it is new.
    pub fn intern(&mut self, text: &str) -> TextId {
        if let Some(&id) = self.numbers.get(text) {
            return id;
        }
        let id = TextId(self.texts.len() as u32);
        self.texts.push(text.into());
        self.numbers.insert(text.into(), id);
        id
    }

    /// The text with this number; empty where there is none.
    pub fn get(&self, id: TextId) -> &str {
        self.texts.get(id.0 as usize).map_or("", AsRef::as_ref)
    }

    /// How many texts there are, the empty one included.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there is no text but the empty one.
    pub fn is_empty(&self) -> bool {
        self.texts.len() <= 1
    }

    /// The texts in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(AsRef::as_ref)
    }
}
