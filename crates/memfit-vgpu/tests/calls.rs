//! Every listed call does what its class says: each is made in a child process of its own.
//!
//! One test, since it forks: a second test's thread would be in the children's way.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::ffi::CString;
use std::fs;
use std::path::Path;

use memfit_devices::Catalogue;
use memfit_link::{CardSetup, Ledger, PROTOCOL, RunDir, Setup, SizedInterval, ValuePolicy};
use memfit_prototypes::testing::fork::in_child;
use memfit_prototypes::testing::recipe::{Kitchen, Recipes};
use memfit_prototypes::testing::{Loaded, environments, library_path, nvidia_libraries, promises};
use memfit_prototypes::{Class, Library, read_folder};

const CARDS: usize = 2;
const CAPACITY: u64 = 8 << 30;

#[test]
fn every_call_keeps_its_promise() {
    let lists = read_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("api"))
        .unwrap_or_else(|problem| panic!("{problem}"));
    let library = Loaded::new(&library_path("libmemfit_vgpu.so"));
    let callers = memfit_prototypes::callers!();
    let mut failures = Vec::new();
    let mut check = |name: &str, outcome: Result<(), String>| {
        if let Err(what) = outcome {
            failures.push(format!("{name}: {what}"));
        }
    };

    for list in &lists {
        for entry in list.entries.iter().filter(|entry| entry.class == Class::Harmless) {
            check(&entry.name, in_child(|| promises::harmless(&library, &callers, entry)));
        }
        let outcome = in_child(|| promises::refused(&library, &callers, list, "memfit_vgpu_refused"));
        check(&list.name, outcome);
    }

    let folder = run_directory();
    // SAFETY: no other thread of this process reads the environment now.
    unsafe { std::env::set_var(memfit_link::env::RUN_DIR, &folder) };
    let real = load_real_libraries(&lists);
    let recipes = Recipes::read(
        &fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recipes.txt")).unwrap(),
    );
    for name in recipes.names() {
        let listed = lists.iter().flat_map(|list| &list.entries).find(|entry| entry.name == name);
        let class = listed.map(|entry| entry.class);
        check(
            name,
            if class == Some(Class::Modelled) { Ok(()) } else { Err(format!("a recipe, but {class:?}")) },
        );
    }
    for list in &lists {
        if list.name == "cudnn" && !real {
            println!(
                "cuDNN's modelled calls ask the real library: not called, MEMFIT_TEST_SITE_PACKAGES is not set"
            );
            continue;
        }
        for entry in list.entries.iter().filter(|entry| entry.class == Class::Modelled) {
            check(&entry.name, in_child(|| Kitchen::new(&library, &callers, &lists, &recipes).cook(entry)));
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

/// A run with two cards.
fn run_directory() -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("memfit-calls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let catalogue = Catalogue::builtin().unwrap();
    let device = serde_json::to_value(catalogue.find("rtx-4090").unwrap()).unwrap();
    let small = SizedInterval { low: 1 << 20, typical: 2 << 20, high: 3 << 20 };
    let card =
        CardSetup { device, capacity: CAPACITY, context: small, libraries: small, communicator: small };
    let setup = Setup {
        protocol: PROTOCOL,
        cards: vec![card; CARDS],
        steps: 0,
        forward_steps: 0,
        cover_full: false,
        stacks: false,
        values: ValuePolicy::UpperBound,
    };
    let run_dir = RunDir::new(&folder);
    setup.write(&run_dir).unwrap();
    Ledger::create(&run_dir, &setup).unwrap();
    folder
}

/// Loads the real libraries of the last environment beside the device, as PyTorch does; false if there is none.
fn load_real_libraries(lists: &[Library]) -> bool {
    let Some(environment) = environments().pop() else {
        return false;
    };
    let libraries = nvidia_libraries(&environment);
    for soname in lists.iter().flat_map(|list| &list.sonames) {
        let Some(path) = libraries.iter().find(|path| path.ends_with(soname)) else {
            continue; // Of another CUDA release.
        };
        let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the path ends with NUL; loading one of these libraries starts nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} cannot be loaded", path.display());
    }
    true
}
