//! The modules that hold most memory at the peak; repeated blocks share a line.

use std::fmt::Write as _;

use anstyle::Style;

use super::canvas::{BOLD, Canvas, paint};
use super::explain::in_function;
use super::{module_name, size};
use crate::wire::{AtPeak, ModuleBytes};

/// Maximum lines of modules.
const MAX_LINES: usize = 6;
/// Maximum numbers that a name lists, unless they follow one another.
const MAX_NUMBERS: usize = 4;

/// Writes the largest modules, each without its submodules. `column` is the width of the sizes.
pub(super) fn largest(out: &mut String, peak: Option<&AtPeak>, column: usize, canvas: Canvas) {
    let Some(peak) = peak.filter(|peak| !peak.modules.is_empty()) else { return };
    let _ = writeln!(out, "\n  {}", paint(BOLD, "Largest modules at the peak, without their submodules"));
    let largest = peak.modules.first().map_or(0, |module| module.bytes);
    if let Some(outside) = peak.outside_modules.as_ref().filter(|outside| outside.bytes > largest) {
        let line = outside.line.as_ref();
        let place = line.map_or(String::new(), |line| format!(", most of it at {}", in_function(line)));
        let first = format!("  {:>column$}  ", size(outside.bytes));
        out.push_str(&canvas.wrapped(&first, Style::new(), &format!("outside of modules{place}")));
    }
    let room = canvas.columns() - 2 - column - 2;
    for alike in repeated(&peak.modules).iter().take(MAX_LINES) {
        let Some(first) = alike.first() else { continue };
        let names = canvas.shortened(&names(alike), room);
        let _ = writeln!(out, "  {:>column$}  {names}", size(first.bytes));
    }
}

/// Modules whose names differ in numbers alone, such as those of repeated blocks, and whose sizes read alike
/// are together.
fn repeated(modules: &[ModuleBytes]) -> Vec<Vec<&ModuleBytes>> {
    let mut groups: Vec<Vec<&ModuleBytes>> = Vec::new();
    for module in modules {
        let same = |group: &&mut Vec<&ModuleBytes>| {
            let first = group[0];
            size(first.bytes) == size(module.bytes)
                && Pattern::of_name(&first.name).texts == Pattern::of_name(&module.name).texts
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(module),
            None => groups.push(vec![module]),
        }
    }
    groups
}

/// A module's name, taken apart at its numbers: `layers.3.norm1` has the texts `layers.`, `.norm` and an
/// empty one.
struct Pattern<'a> {
    texts: Vec<&'a str>,
    numbers: Vec<&'a str>,
}

impl<'a> Pattern<'a> {
    fn of_name(name: &'a str) -> Self {
        let (mut texts, mut numbers) = (Vec::new(), Vec::new());
        let mut rest = name;
        while let Some(start) = rest.find(|character: char| character.is_ascii_digit()) {
            let (text, tail) = rest.split_at(start);
            let digits = tail.find(|character: char| !character.is_ascii_digit()).unwrap_or(tail.len());
            let (number, tail) = tail.split_at(digits);
            texts.push(text);
            numbers.push(number);
            rest = tail;
        }
        texts.push(rest);
        Self { texts, numbers }
    }
}

/// The modules of a group in one name: `each of 12: layers.{0..11}.norm`. If they differ in more than one
/// number, the first and the last are named.
fn names(modules: &[&ModuleBytes]) -> String {
    let patterns: Vec<_> = modules.iter().map(|module| Pattern::of_name(&module.name)).collect();
    let (first, last) = match modules {
        [] => return String::new(),
        [only] => return module_name(&only.name),
        [first, .., last] => (module_name(&first.name), module_name(&last.name)),
    };
    let numbers = |place: usize| patterns.iter().map(move |pattern| pattern.numbers[place]);
    let varying: Vec<_> = (0..patterns[0].numbers.len())
        .filter(|place| numbers(*place).any(|n| n != patterns[0].numbers[*place]))
        .collect();
    let ([place], Some(listed)) =
        (varying.as_slice(), varying.first().and_then(|place| listed(numbers(*place))))
    else {
        return match modules.len() {
            2 => format!("each of {first} and {last}"),
            count => format!("each of {count} modules, {first} to {last}"),
        };
    };
    let mut name = String::new();
    for (index, text) in patterns[0].texts.iter().enumerate() {
        name.push_str(text);
        match patterns[0].numbers.get(index) {
            Some(_) if index == *place => name.push_str(&listed),
            Some(number) => name.push_str(number),
            None => {}
        }
    }
    let name = if name.starts_with('{') { format!("model.{name}") } else { module_name(&name) };
    format!("each of {name}")
}

/// Numbers in braces: `{0..11}` if they follow one another, `{1, 4, 7}` if they are few.
fn listed<'a>(numbers: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut numbers: Vec<u64> = numbers.map(|number| number.parse().ok()).collect::<Option<_>>()?;
    numbers.sort_unstable();
    numbers.dedup();
    let (first, last) = (*numbers.first()?, *numbers.last()?);
    let in_a_row = usize::try_from(last - first).is_ok_and(|length| length == numbers.len() - 1);
    if in_a_row && numbers.len() > 2 {
        return Some(format!("{{{first}..{last}}}"));
    }
    let each: Vec<_> = numbers.iter().map(u64::to_string).collect();
    (numbers.len() <= MAX_NUMBERS).then(|| format!("{{{}}}", each.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names_of_modules: &[&str]) -> Vec<String> {
        let modules: Vec<_> = names_of_modules
            .iter()
            .map(|name| ModuleBytes { name: (*name).to_owned(), bytes: 1 << 20 })
            .collect();
        repeated(&modules).iter().map(|group| names(group)).collect()
    }

    #[test]
    fn repeated_blocks_are_one_name() {
        let cases: &[(&[&str], &[&str])] = &[
            (&["head"], &["head"]),
            (&["", "head"], &["(the model itself)", "head"]),
            (&["layers.0.norm", "layers.1.norm", "layers.2.norm"], &["each of layers.{0..2}.norm"]),
            (&["layers.10.norm", "layers.2.norm"], &["each of layers.{2, 10}.norm"]),
            // The number of a submodule is not that of a block.
            (
                &["layers.0.norm", "layers.0.norm1", "layers.1.norm1"],
                &["layers.0.norm", "each of layers.{0, 1}.norm1"],
            ),
            (&["layer1.0.conv1", "layer1.1.conv2"], &["each of layer1.0.conv1 and layer1.1.conv2"]),
            (&["a1.b1", "a1.b2", "a2.b1"], &["each of 3 modules, a1.b1 to a2.b1"]),
            (&["0", "1", "2"], &["each of model.{0..2}"]),
            (&["0.norm", "4.norm"], &["each of model.{0, 4}.norm"]),
            (&["h.1", "h.3", "h.5", "h.7", "h.9"], &["each of 5 modules, h.1 to h.9"]),
        ];
        for (modules, expected) in cases {
            assert_eq!(named(modules), *expected, "{modules:?}");
        }
    }
}
