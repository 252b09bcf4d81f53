//! Values that a run assumed, and what further runs with other values showed.

use super::coverage::without_folder;
use super::{size, times};
use crate::wire::{AssumedValue, Fidelity};

/// Maximum lines that are named.
const MAX_LINES: usize = 3;
/// Ids of the effects that a further run with other values measures.
const TESTED: [&str; 2] = ["condition", "number"];

/// A value with the places where the script reads it.
pub(super) fn value(value: &AssumedValue) -> String {
    format!("{} ({}{})", value.call, times(value.count), at_lines(&value.lines))
}

/// Result of the runs with other values; `None` if there were none, or if they have not shown that the values
/// do not matter, which the verdict says.
pub(super) fn tested(fidelity: &Fidelity) -> Option<String> {
    let tested: Vec<Option<u64>> = (fidelity.effects.iter())
        .filter(|effect| TESTED.contains(&effect.id.as_str()))
        .map(|effect| effect.bytes)
        .collect();
    let most = *tested.iter().max()?;
    if tested.contains(&None) {
        return None;
    }
    Some(match most {
        Some(bytes) if bytes > 0 => {
            format!("with other values, at most {} more are needed, which are included", size(bytes))
        }
        _ => "with other values, the script needs no more memory".to_owned(),
    })
}

/// The first lines that read a value, without their folders, and the number of the others.
fn at_lines(lines: &[String]) -> String {
    let named: Vec<&str> = lines.iter().take(MAX_LINES).map(|line| without_folder(line)).collect();
    match (named.is_empty(), lines.len().saturating_sub(MAX_LINES)) {
        (true, _) => String::new(),
        (_, 0) => format!(", at {}", named.join(", ")),
        (_, 1) => format!(", at {} and 1 other line", named.join(", ")),
        (_, others) => format!(", at {} and {others} other lines", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PossibleEffect;

    #[test]
    fn three_lines_are_named_and_the_others_counted() {
        let lines = |count: usize| -> Vec<String> {
            (1..=count).map(|line| format!("/home/me/train.py:{line} in train")).collect()
        };
        assert_eq!(at_lines(&[]), "");
        assert_eq!(at_lines(&lines(1)), ", at train.py:1 in train");
        assert_eq!(at_lines(&lines(2)), ", at train.py:1 in train, train.py:2 in train");
        assert!(at_lines(&lines(4)).ends_with("train.py:3 in train and 1 other line"));
        assert!(at_lines(&lines(5)).ends_with("train.py:3 in train and 2 other lines"));
    }

    #[test]
    fn the_result_of_runs_with_other_values_is_told_once() {
        let effect = |id: &str, bytes| PossibleEffect {
            id: id.to_owned(),
            what: String::new(),
            bytes,
            why: String::new(),
        };
        let told = |effects: Vec<PossibleEffect>| tested(&Fidelity { effects, ..Fidelity::default() });
        assert_eq!(told(vec![effect("value", None), effect("size", Some(9))]), None);
        assert_eq!(told(vec![effect("number", Some(0)), effect("condition", None)]), None);
        let no_more =
            told(vec![effect("number", Some(0)), effect("condition", Some(0)), effect("value", None)]);
        assert_eq!(no_more.unwrap(), "with other values, the script needs no more memory");
        let more = told(vec![effect("number", Some(0)), effect("condition", Some(5 << 20))]);
        assert_eq!(more.unwrap(), "with other values, at most 5.0 MiB more are needed, which are included");
    }
}
