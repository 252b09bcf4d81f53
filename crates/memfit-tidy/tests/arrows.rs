//! Checks that dependencies between crates point in one direction.

mod common;

use std::{collections::BTreeMap, fs};

/// Each crate with the memfit crates that it may depend on. A crate that is missing here is an error.
const ARROWS: &[(&str, &[&str])] = &[
    ("memfit-devices", &[]),
    ("memfit-vocabulary", &[]),
    ("memfit-channel", &["memfit-devices"]),
    ("memfit-prototypes", &[]),
    ("memfit-abi", &[]),
    ("memfit-kernels", &["memfit-abi", "memfit-channel", "memfit-devices", "memfit-vocabulary"]),
    (
        "memfit-cuda",
        &[
            "memfit-abi",
            "memfit-kernels",
            "memfit-devices",
            "memfit-vocabulary",
            "memfit-channel",
            "memfit-prototypes",
        ],
    ),
    (
        "memfit-cuda-libraries",
        &[
            "memfit-abi",
            "memfit-cuda",
            "memfit-kernels",
            "memfit-devices",
            "memfit-channel",
            "memfit-prototypes",
            "memfit-vocabulary",
        ],
    ),
    ("memfit-vgpu", &["memfit-abi", "memfit-cuda", "memfit-cuda-libraries", "memfit-prototypes"]),
    ("memfit-nvml", &["memfit-abi", "memfit-devices", "memfit-channel", "memfit-prototypes"]),
    ("memfit-overlay", &["memfit-channel"]),
    ("memfit-watch", &["memfit-vocabulary", "memfit-channel", "memfit-overlay"]),
    ("memfit-recording", &["memfit-vocabulary", "memfit-channel"]),
    ("memfit-allocator", &["memfit-vocabulary", "memfit-recording"]),
    ("memfit-plan", &["memfit-vocabulary"]),
    ("memfit-source", &[]),
    ("memfit-patch", &["memfit-vocabulary", "memfit-plan", "memfit-source"]),
    ("memfit-explain", &["memfit-allocator", "memfit-patch", "memfit-vocabulary", "memfit-recording"]),
    ("memfit-lint", &["memfit-source"]),
    (
        "memfit-server",
        &[
            "memfit-explain",
            "memfit-lint",
            "memfit-recording",
            "memfit-report",
            "memfit-source",
            "memfit-vocabulary",
        ],
    ),
    (
        "memfit-report",
        &[
            "memfit-devices",
            "memfit-vocabulary",
            "memfit-lint",
            "memfit-plan",
            "memfit-recording",
            "memfit-explain",
        ],
    ),
    ("memfit-view", &["memfit-vocabulary", "memfit-recording", "memfit-explain"]),
    ("memfit-train", &["memfit-vocabulary"]),
    ("memfit-loader", &[]),
    (
        "memfit-run",
        &[
            "memfit-channel",
            "memfit-devices",
            "memfit-explain",
            "memfit-recording",
            "memfit-report",
            "memfit-vocabulary",
        ],
    ),
    (
        "memfit-cards",
        &[
            "memfit-allocator",
            "memfit-channel",
            "memfit-devices",
            "memfit-explain",
            "memfit-kernels",
            "memfit-recording",
            "memfit-report",
            "memfit-run",
            "memfit-vocabulary",
        ],
    ),
    ("memfit-shrink", &["memfit-report", "memfit-vocabulary"]),
    ("memfit-ci", &["memfit-devices", "memfit-explain", "memfit-recording", "memfit-report"]),
    ("memfit-container", &[]),
    (
        "memfit-cli",
        &[
            "memfit-allocator",
            "memfit-cards",
            "memfit-ci",
            "memfit-container",
            "memfit-view",
            "memfit-devices",
            "memfit-vocabulary",
            "memfit-channel",
            "memfit-lint",
            "memfit-patch",
            "memfit-plan",
            "memfit-loader",
            "memfit-recording",
            "memfit-explain",
            "memfit-report",
            "memfit-run",
            "memfit-server",
            "memfit-shrink",
        ],
    ),
    (
        "memfit-py",
        &[
            "memfit-allocator",
            "memfit-cli",
            "memfit-devices",
            "memfit-vocabulary",
            "memfit-loader",
            "memfit-plan",
            "memfit-recording",
            "memfit-report",
            "memfit-train",
        ],
    ),
    ("memfit-tidy", &[]),
];

fn dependencies() -> BTreeMap<String, Vec<String>> {
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
fn every_crate_knows_only_what_it_may() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    for (name, known) in dependencies() {
        let allowed =
            allowed.get(name.as_str()).unwrap_or_else(|| panic!("{name} is not in the list of arrows"));
        for dependency in known {
            assert!(allowed.contains(&dependency.as_str()), "{name} must not know {dependency}");
        }
    }
}

#[test]
fn the_list_names_no_crate_that_is_gone() {
    let found = dependencies();
    for (name, _) in ARROWS {
        assert!(found.contains_key(*name), "{name} is in the list of arrows and not in crates/");
    }
}

#[test]
fn the_architecture_names_every_crate() {
    let architecture = common::text("ARCHITECTURE.md".as_ref()).expect("there is an ARCHITECTURE.md");
    for name in dependencies().keys() {
        assert!(architecture.contains(&format!("`{name}`")), "ARCHITECTURE.md does not name `{name}`");
    }
}
