//! Tests that every listed call keeps the promises of its class, and that the exports equal the list.
//!
//! The calls are one test, since it forks: a second test's thread would interfere with the children.

#![allow(unsafe_code, reason = "the tests call as C callers do")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use memfit_channel::{CardSetup, Ledger, RunDir, Setup};
use memfit_devices::{Bytes, Catalogue, Interval, Overhead};
use memfit_prototypes::testing::fork::in_child;
use memfit_prototypes::testing::recipe::{RecipeRunner, Recipes};
use memfit_prototypes::testing::{self, Loaded, dynamic_symbols, library_path, promises, soname};
use memfit_prototypes::{Class, Library};

fn lists() -> Vec<Library> {
    testing::lists(&["memfit-nvml"])
}

fn library() -> PathBuf {
    library_path("libmemfit_nvml.so")
}

#[test]
fn exported_names_equal_the_list() {
    let mut exported = dynamic_symbols(&library(), true);
    exported.retain(|name| !name.starts_with("memfit_"));
    let listed: BTreeSet<String> =
        lists().iter().flat_map(|list| &list.entries).map(|entry| entry.name.clone()).collect();
    assert_eq!(exported, listed);
    assert!(listed.len() > 400, "only {} names", listed.len());
}

#[test]
fn the_loader_finds_it_as_nvml() {
    assert_eq!(soname(&library()).as_deref(), Some("libnvidia-ml.so.1"));
}

#[test]
fn every_call_keeps_its_promise() {
    let lists = lists();
    let loaded = Loaded::new(&library());
    let callers = memfit_prototypes::callers!();
    let recipes = Recipes::read(include_str!("recipes.txt"));
    let folder = run_directory();
    // SAFETY: the other tests of this file read no environment.
    unsafe { std::env::set_var(memfit_channel::env::RUN_DIR, &folder) };
    let mut failures = Vec::new();
    let mut check = |name: &str, outcome: Result<(), String>| {
        if let Err(what) = outcome {
            failures.push(format!("{name}: {what}"));
        }
    };
    for list in &lists {
        check(
            &list.name,
            in_child(|| promises::check_refused(&loaded, &callers, list, "memfit_nvml_refused")),
        );
        for entry in &list.entries {
            match entry.class {
                Class::Modelled => check(
                    &entry.name,
                    in_child(|| RecipeRunner::new(&loaded, &callers, &lists, &recipes).run(entry)),
                ),
                Class::Harmless => {
                    check(&entry.name, in_child(|| promises::check_harmless(&loaded, &callers, entry)));
                }
                Class::Refused | Class::Alias => {}
            }
        }
    }
    let _ = fs::remove_dir_all(&folder);
    assert!(
        failures.is_empty(),
        "{} calls do not keep their promise:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Creates a run with two devices.
fn run_directory() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("memfit-nvml-calls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let catalogue = Catalogue::builtin().unwrap();
    let device = catalogue.find("h100").unwrap().clone().with_memory(Bytes::from_gib(8));
    let (low, typical) = (Bytes::from_mib(1), Bytes::from_mib(2));
    let small = Interval { low, typical, high: Bytes::from_mib(3) };
    let overhead =
        Overhead { context: small, libraries: small, per_communicator: small, ..Overhead::default() };
    let card = CardSetup::new(device, overhead);
    let setup = Setup::new(vec![card; 2]);
    let run_dir = RunDir::new(&folder);
    setup.write(&run_dir).unwrap();
    Ledger::create(&run_dir, &setup).unwrap();
    folder
}
