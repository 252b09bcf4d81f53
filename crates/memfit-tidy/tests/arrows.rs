//! Checks that dependencies between crates are those in ARCHITECTURE.md, and point in one direction.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The line of ARCHITECTURE.md before the list of arrows.
const HEADING: &str = "Each crate with the crates that it uses";
/// Separates a crate from those that it uses.
const ARROW: char = '◀';

/// Crates with the crates that they use, in order.
type Arrows = Vec<(String, BTreeSet<String>)>;

fn listed() -> Arrows {
    let text = common::text("ARCHITECTURE.md".as_ref()).expect("there is an ARCHITECTURE.md");
    let (_, rest) = text.split_once(HEADING).expect("the list has a heading");
    let block = rest.split("```").nth(1).expect("the list is a block");
    let names = |text: &str| -> Vec<String> {
        text.split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(|name| format!("memfit-{name}"))
            .collect()
    };
    block
        .lines()
        .flat_map(|line| match line.split_once(ARROW) {
            Some((name, used)) => {
                vec![(format!("memfit-{}", name.trim()), names(used).into_iter().collect())]
            }
            None => names(line).into_iter().map(|name| (name, BTreeSet::new())).collect(),
        })
        .collect()
}

fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(common::root().join("crates")).expect("there are crates") {
        let manifest = entry.expect("a crate can be listed").path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest).expect("each crate has a manifest");
        let manifest: toml::Table = text.parse().expect("each manifest is TOML");
        let name = manifest["package"]["name"].as_str().expect("each crate has a name").to_owned();
        let known = ["dependencies", "build-dependencies"]
            .iter()
            .filter_map(|section| manifest.get(*section)?.as_table())
            .flat_map(|section| section.keys())
            .filter(|name| name.starts_with("memfit"))
            .cloned()
            .collect();
        found.insert(name, known);
    }
    found
}

#[test]
fn the_crates_use_what_the_architecture_says() {
    let listed: BTreeMap<_, _> = listed().into_iter().collect();
    let found = dependencies();
    for (name, used) in &found {
        let named =
            listed.get(name).unwrap_or_else(|| panic!("{name} is not in the list of ARCHITECTURE.md"));
        assert_eq!(named, used, "{name}: ARCHITECTURE.md (left) and the manifest (right)");
    }
    for name in listed.keys() {
        assert!(found.contains_key(name), "{name} is in ARCHITECTURE.md and not in crates/");
    }
}

#[test]
fn a_crate_uses_only_crates_of_earlier_lines() {
    let mut before = BTreeSet::new();
    for (name, used) in listed() {
        for other in used {
            assert!(before.contains(&other), "{name} uses {other}, which comes later");
        }
        before.insert(name);
    }
    assert!(before.len() > 20, "{before:?}");
}

#[test]
fn the_architecture_describes_every_crate() {
    let architecture = common::text("ARCHITECTURE.md".as_ref()).expect("there is an ARCHITECTURE.md");
    for name in dependencies().keys() {
        assert!(architecture.contains(&format!("`{name}`")), "ARCHITECTURE.md does not name `{name}`");
    }
}
