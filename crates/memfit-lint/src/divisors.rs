//! Names by which a text divides: a loss that the analysis cannot follow may have been divided by the window.

use std::collections::HashSet;

use memfit_source::{Facts, OpKind};

use crate::query::words;

/// Adds the names by which a file divides. A file that trains divides its own losses.
pub(crate) fn add(facts: &Facts, names: &mut HashSet<String>) {
    if !facts.ops.iter().any(|op| matches!(op.kind, OpKind::Backward(_))) {
        names.extend(divisors(&facts.text).map(str::to_owned));
    }
}

/// Returns `true` if a file, or another one that does not train, divides by a name, or by one that is like
/// the name of a window.
pub(crate) fn divides_by(facts: &Facts, others: &HashSet<String>, name: &str) -> bool {
    let is_it = |word: &str| word == name || is_window(word);
    divisors(&facts.text).any(is_it) || others.iter().any(|word| is_it(word))
}

/// `accum_steps`, `gradient_accumulate_every`, `acc_iter`, `micro_batches`
pub(crate) fn is_window(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.contains("accum") || lower.contains("micro") || lower.split('_').any(|part| part == "acc")
}

/// Words after `/` and in `div(…)`, on lines that count no iterations.
fn divisors(text: &str) -> impl Iterator<Item = &str> {
    let counts = |line: &&str| ["len(", "ceil(", "//"].iter().any(|part| line.contains(part));
    text.lines().filter(move |line| !counts(line)).flat_map(|line| {
        let code = line.split('#').next().unwrap_or(line);
        let at = [code.find('/'), code.find("div(").or_else(|| code.find("div_("))];
        let from = at.into_iter().flatten().min().map_or("", |at| &code[at..]);
        words(from)
    })
}
