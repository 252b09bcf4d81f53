//! Checks that modules of a crate depend on each other in one direction.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

/// Dependencies between the top-level modules of a crate, each with a file that has it.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// Module path of a source file: `[a, b]` for `src/a/b.rs`, `[]` for the root. `None` for tests.
fn module_path(file: &Path) -> Option<Vec<String>> {
    let parts: Vec<&str> = file
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    let below = parts.iter().position(|part| *part == "src")? + 1;
    let mut path: Vec<String> =
        parts[below..].iter().map(|part| part.trim_end_matches(".rs").to_owned()).collect();
    if path.iter().any(|part| part == "tests" || part == "testing") {
        return None;
    }
    if path == ["lib"] {
        path.clear();
    }
    Some(path)
}

/// Code of a file without comments, strings and inline unit tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = raw_string(rest) {
            length
        } else if first == '"' {
            string(rest)
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        rest = &rest[skipped..];
        code.push(' ');
    }
    code
}

/// Length of the raw string at the start, if one begins there.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.strip_prefix('r')?.bytes().take_while(|byte| *byte == b'#').count();
    let inside = text.get(1 + hashes..)?.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(2 + hashes + inside.find(&end)? + end.len())
}

/// Length of the string at the start.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            '\\' if !escaped => escaped = true,
            '"' if !escaped => return at + 1,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Top-level modules in the paths that a file of a module names.
fn named(code: &str, module: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let is_word = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    for (start, _) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let before = &code.as_bytes()[..start];
        // A later `super` of a chain belongs to the first one.
        if is_word(before.last()) || before.ends_with(b"super::") {
            continue;
        }
        let (mut base, mut rest) = (module.len(), &code[start..]);
        if let Some(after) = rest.strip_prefix("crate::") {
            (base, rest) = (0, after);
        }
        while let Some(after) = rest.strip_prefix("super::") {
            (base, rest) = (base.saturating_sub(1), after);
        }
        if base == 0 {
            first_parts(rest, &mut found);
        }
    }
    found
}

/// Collects the first component of a path, or of every path in a group.
fn first_parts(text: &str, found: &mut BTreeSet<String>) {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let Some(group) = text.strip_prefix('{') else {
        found.insert(word(text));
        return;
    };
    let (mut depth, mut start) = (0_usize, 0);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                found.insert(word(group[start..at].trim_start()));
                start = at + 1;
                if character == '}' {
                    return;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
}

fn graph(name: &str) -> Graph {
    let sources = common::sources(&format!("crates/{name}/src"), "rs");
    let files: Vec<_> =
        sources.iter().filter_map(|(file, text)| Some((file, module_path(file)?, text))).collect();
    let modules: BTreeSet<&String> = files.iter().filter_map(|(_, path, _)| path.first()).collect();
    let mut graph = Graph::new();
    for (file, path, text) in &files {
        // Re-exports of the root are not a dependency of any module.
        let Some(own) = path.first() else { continue };
        for other in named(&code(text), path) {
            if other != *own && modules.contains(&other) {
                let edges = graph.entry(own.clone()).or_default();
                edges.entry(other).or_insert_with(|| file.display().to_string());
            }
        }
    }
    graph
}

/// Finds a cycle: its modules in order, the first repeated at the end.
fn cycle(graph: &Graph) -> Option<Vec<&str>> {
    fn visit<'g>(
        graph: &'g Graph,
        module: &'g str,
        path: &mut Vec<&'g str>,
        done: &mut BTreeSet<&'g str>,
    ) -> Option<Vec<&'g str>> {
        if let Some(start) = path.iter().position(|each| *each == module) {
            return Some(path[start..].iter().copied().chain([module]).collect());
        }
        if !done.insert(module) {
            return None;
        }
        path.push(module);
        let found =
            graph.get(module).into_iter().flatten().find_map(|(other, _)| visit(graph, other, path, done));
        path.pop();
        found
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|module| visit(graph, module, &mut Vec::new(), &mut done))
}

#[test]
fn modules_of_a_crate_form_no_cycle() {
    let files = common::files();
    let crates: BTreeSet<&str> = files
        .iter()
        .filter_map(|file| file.strip_prefix("crates").ok()?.components().next()?.as_os_str().to_str())
        .collect();
    assert!(crates.len() > 20, "only {} crates found", crates.len());
    for name in crates {
        let graph = graph(name);
        let Some(cycle) = cycle(&graph) else { continue };
        let edges: Vec<String> = cycle
            .windows(2)
            .map(|pair| format!("{} -> {} ({})", pair[0], pair[1], graph[pair[0]][pair[1]]))
            .collect();
        panic!("modules of {name} depend on each other in a cycle:\n{}", edges.join("\n"));
    }
}

#[test]
fn dependencies_are_found_in_every_form() {
    let text = "//! crate::comment\nuse crate::{a, b::{self, c}, d as e};\nuse super::f::g;\n\
                fn h() { let _ = \"crate::string\"; crate::i::j(); super::super::k(); }\n\
                #[cfg(test)]\nmod tests { use crate::only_in_tests; }";
    let module = |path: &[&str]| path.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
    let found = |path: &[&str]| named(&code(text), &module(path)).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(found(&["m"]), "a b d f i k");
    assert_eq!(found(&["m", "n"]), "a b d i k");
    assert_eq!(found(&["m", "n", "o"]), "a b d i");
}

#[test]
fn a_cycle_is_found_with_its_modules() {
    let edges = [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")];
    let mut graph = Graph::new();
    for (from, to) in edges {
        graph.entry(from.to_owned()).or_default().insert(to.to_owned(), String::new());
    }
    assert_eq!(cycle(&graph), Some(vec!["b", "c", "b"]));
    graph.get_mut("c").map(|others| others.remove("b"));
    assert_eq!(cycle(&graph), None);
}
