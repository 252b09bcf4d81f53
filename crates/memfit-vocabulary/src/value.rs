//! The setting of a lever.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The setting of a lever.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// On, or explicitly off.
    Switch(bool),
    /// A number.
    Count(u64),
    /// In this way.
    Word(String),
    /// For these modules.
    Names(Vec<String>),
}

impl Default for Value {
    fn default() -> Self {
        Self::Switch(true)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(on) => write!(formatter, "{}", if *on { "on" } else { "off" }),
            Self::Count(count) => write!(formatter, "{count}"),
            Self::Word(word) => formatter.write_str(word),
            Self::Names(names) => formatter.write_str(&in_short(names)),
        }
    }
}

impl Value {
    /// The module names; empty for other values.
    pub fn names(&self) -> &[String] {
        if let Self::Names(names) = self { names } else { &[] }
    }

    /// The number; 0 for other values.
    pub const fn count(&self) -> u64 {
        if let Self::Count(count) = self { *count } else { 0 }
    }
}

/// A count with its noun: `1 block`, `2 blocks`.
pub fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Names in short form: names that differ only in a number become a range.
pub fn in_short(names: &[String]) -> String {
    let mut parts: Vec<(String, Vec<u64>)> = Vec::new();
    for name in names {
        let (stem, number) = split_number(name);
        match (number, parts.last_mut()) {
            (Some(number), Some((last, numbers)))
                if *last == stem && numbers.last().is_some_and(|before| before + 1 == number) =>
            {
                numbers.push(number);
            }
            (Some(number), _) => parts.push((stem, vec![number])),
            (None, _) => parts.push((stem, Vec::new())),
        }
    }
    let ranges = parts.into_iter().map(|(stem, numbers)| match numbers.as_slice() {
        [] => stem,
        [one] => stem.replace('#', &one.to_string()),
        [first, .., last] => stem.replace('#', &format!("{first}-{last}")),
    });
    ranges.collect::<Vec<_>>().join(", ")
}

/// A name with its last number replaced by a placeholder, and the number.
fn split_number(name: &str) -> (String, Option<u64>) {
    let parts: Vec<&str> = name.split('.').collect();
    let at =
        parts.iter().rposition(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    match at.and_then(|at| Some((at, parts[at].parse().ok()?))) {
        Some((at, number)) => {
            let mut marked = parts;
            marked[at] = "#";
            (marked.join("."), Some(number))
        }
        None => (name.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_modules_are_told_as_ranges() {
        let check = |names: &[&str], ranges: &str| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(in_short(&names), ranges);
        };
        check(&[], "");
        check(&["head"], "head");
        check(&["layers.0", "layers.1", "layers.2"], "layers.0-2");
        check(&["layers.0", "layers.2", "layers.3"], "layers.0, layers.2-3");
        check(&["h.0.mlp", "h.1.mlp", "stem"], "h.0-1.mlp, stem");
        check(&["a.0", "b.1"], "a.0, b.1");
    }
}
