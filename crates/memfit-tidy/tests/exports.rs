//! Checks that every modelled call of the device libraries has exactly one definition, so that an editor's
//! "go to definition" and a text search find it.

mod common;

use std::collections::BTreeMap;

/// Crates that export calls, and have lists of their exports.
const CRATES: &[&str] = &["memfit-cuda", "memfit-cuda-libraries", "memfit-nvml"];

/// Modelled names in a list.
fn modelled(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.strip_prefix("modelled")?.trim_start().split('(').next())
}

/// Counts the declarations of each function in a text: `fn NAME(`.
fn declared(text: &str, count: &mut BTreeMap<String, usize>) {
    for (start, _) in text.match_indices("fn ") {
        let before = text[..start].chars().next_back();
        let rest = &text[start + 3..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        if rest[end..].starts_with('(') && !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
            *count.entry(rest[..end].to_owned()).or_default() += 1;
        }
    }
}

#[test]
fn each_modelled_call_stands_in_the_source_once() {
    let mut wrong = Vec::new();
    for name in CRATES {
        let mut count = BTreeMap::new();
        for (_, text) in common::sources(&format!("crates/{name}/src"), "rs") {
            declared(&text, &mut count);
        }
        let mut seen = 0;
        for (list, text) in common::sources(&format!("crates/{name}/api"), "api") {
            for call in modelled(&text) {
                seen += 1;
                match count.get(call) {
                    Some(1) => {}
                    found => {
                        wrong.push(format!("{}: {call}: {} times", list.display(), found.unwrap_or(&0)));
                    }
                }
            }
        }
        assert!(seen > 40, "{name}: only {seen} modelled calls found: this test looks in the wrong place");
    }
    assert!(wrong.is_empty(), "`fn NAME(` is not there exactly once:\n{}", wrong.join("\n"));
}
