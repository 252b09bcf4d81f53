//! Interned texts.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// Id of a text in a track; 0 is the empty text, which stands for "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(pub u32);

impl TextId {
    /// The empty text.
    pub const NONE: Self = Self(0);
}

/// Table of texts, each stored once.
#[derive(Clone, Debug)]
pub struct Texts {
    /// All texts, concatenated.
    bytes: String,
    /// End offset of each text.
    ends: Vec<usize>,
    /// Ids of texts by their hashes.
    numbers: HashTable<u32>,
    /// Randomly keyed, so that a hostile file cannot cause collisions.
    hasher: DefaultHashBuilder,
}

impl Default for Texts {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl PartialEq for Texts {
    fn eq(&self, other: &Self) -> bool {
        // The other fields are lookup tables.
        self.bytes == other.bytes && self.ends == other.ends
    }
}

impl Eq for Texts {}

impl Texts {
    /// Creates a table of the empty text alone, with capacity for about `count` texts.
    pub(crate) fn with_capacity(count: usize) -> Self {
        let mut texts = Self {
            bytes: String::new(),
            ends: Vec::new(),
            numbers: HashTable::with_capacity(count),
            hasher: DefaultHashBuilder::default(),
        };
        texts.intern("");
        texts
    }

    /// Interns a text.
    pub fn intern(&mut self, text: &str) -> TextId {
        let Self { bytes, ends, numbers, hasher } = self;
        let hash = hasher.hash_one(text);
        if let Some(&number) = numbers.find(hash, |number| text_at(bytes, ends, *number) == text) {
            return TextId(number);
        }
        let number = ends.len() as u32;
        bytes.push_str(text);
        ends.push(bytes.len());
        numbers.insert_unique(hash, number, |number| hasher.hash_one(text_at(bytes, ends, *number)));
        TextId(number)
    }

    /// Text with this id; empty if there is none.
    pub fn get(&self, id: TextId) -> &str {
        text_at(&self.bytes, &self.ends, id.0)
    }

    /// Number of texts, including the empty one.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns `true` if there is no text but the empty one.
    pub fn is_empty(&self) -> bool {
        self.ends.len() <= 1
    }

    /// Texts in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len() as u32).map(|number| self.get(TextId(number)))
    }

    /// Approximate memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        (self.bytes.len() + self.ends.len() * (size_of::<usize>() + 2 * size_of::<u32>())) as u64
    }
}

fn text_at<'a>(bytes: &'a str, ends: &[usize], number: u32) -> &'a str {
    let number = number as usize;
    let start = number.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
    ends.get(number).and_then(|end| bytes.get(start..*end)).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_kept_once() {
        let mut texts = Texts::default();
        let words = ["train.py", "", "forward", "é", "train"];
        let numbers: Vec<TextId> = words.iter().map(|word| texts.intern(word)).collect();
        assert_eq!(numbers, [TextId(1), TextId::NONE, TextId(2), TextId(3), TextId(4)]);
        assert_eq!(texts.iter().collect::<Vec<_>>(), ["", "train.py", "forward", "é", "train"]);
        let many: Vec<String> = (0..1000).map(|number| format!("layer_{number}")).collect();
        let numbers: Vec<TextId> = many.iter().map(|word| texts.intern(word)).collect();
        for (word, number) in many.iter().zip(&numbers) {
            assert_eq!((texts.intern(word), texts.get(*number)), (*number, word.as_str()));
        }
        assert_eq!(texts.get(TextId(9999)), "");
        assert!(texts == texts.clone() && texts != Texts::default());
    }
}
