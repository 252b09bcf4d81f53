//! Tests that every listed call keeps the promises of its class; each is made in a child process.
//!
//! One test, since it forks: a second test's thread would interfere with the children.

#![allow(unsafe_code, reason = "the tests call as C callers do")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::path::Path;

use memfit_channel::{CardSetup, Ledger, RunDir, Setup};
use memfit_devices::{Bytes, Catalogue, Interval, Overhead};
use memfit_prototypes::testing::fork::in_child;
use memfit_prototypes::testing::recipe::{RecipeRunner, Recipes};
use memfit_prototypes::testing::{
    Loaded, dynamic_symbols, environments, library_path, lists, nvidia_libraries, promises,
};
use memfit_prototypes::{Class, Entry, Library};

const CARDS: usize = 2;
const CAPACITY: u64 = 8 << 30;

#[test]
fn every_call_keeps_its_promise() {
    let lists = lists(&["memfit-cuda", "memfit-cuda-libraries"]);
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
            check(&entry.name, in_child(|| promises::check_harmless(&library, &callers, entry)));
        }
        let outcome = in_child(|| promises::check_refused(&library, &callers, list, "memfit_vgpu_refused"));
        check(&list.name, outcome);
    }

    let folder = run_directory();
    // SAFETY: no other thread of this process reads the environment now.
    unsafe { std::env::set_var(memfit_channel::env::RUN_DIR, &folder) };
    let release = Release::load(&lists);
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recipes.txt")).unwrap();
    let recipes = Recipes::read(&text);
    for name in recipes.names() {
        let listed = lists.iter().flat_map(|list| &list.entries).find(|entry| entry.name == name);
        let class = listed.map(|entry| entry.class);
        let modelled = class == Some(Class::Modelled);
        check(name, modelled.then_some(()).ok_or(format!("a recipe, but {class:?}")));
    }
    let mut passed_over: BTreeMap<&str, usize> = BTreeMap::new();
    for list in &lists {
        for entry in list.entries.iter().filter(|entry| meant(&lists, entry).class == Class::Modelled) {
            match absent(release.as_ref(), list, entry, meant(&lists, entry)) {
                Some(why) => *passed_over.entry(why).or_default() += 1,
                None => {
                    check(
                        &entry.name,
                        in_child(|| RecipeRunner::new(&library, &callers, &lists, &recipes).run(entry)),
                    );
                }
            }
        }
    }
    println!("modelled calls that were not made: {passed_over:?}");
    let _ = fs::remove_dir_all(&folder);
    assert!(
        failures.is_empty(),
        "{} calls do not keep their promise:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Creates a run with two devices.
fn run_directory() -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("memfit-calls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let catalogue = Catalogue::builtin().unwrap();
    let device = catalogue.find("h100").unwrap().clone().with_memory(Bytes::new(CAPACITY));
    let (low, typical) = (Bytes::from_mib(1), Bytes::from_mib(2));
    let small = Interval { low, typical, high: Bytes::from_mib(3) };
    let overhead =
        Overhead { context: small, libraries: small, per_communicator: small, ..Overhead::default() };
    let card = CardSetup::new(device, overhead);
    let setup = Setup::new(vec![card; CARDS]);
    let run_dir = RunDir::new(&folder);
    setup.write(&run_dir).unwrap();
    Ledger::create(&run_dir, &setup).unwrap();
    folder
}

/// The call itself, or the call that it is an alias of.
fn meant<'a>(lists: &'a [Library], entry: &'a Entry) -> &'a Entry {
    let mut all = lists.iter().flat_map(|list| &list.entries);
    entry.target.as_ref().and_then(|target| all.find(|each| each.name == *target)).unwrap_or(entry)
}

/// Reason why a modelled call cannot be tested here; `None` if it can: many need the real library as well.
fn absent(release: Option<&Release>, list: &Library, entry: &Entry, meant: &Entry) -> Option<&'static str> {
    if release.is_some_and(|release| release.major < 13) && meant.varies {
        return Some("it has other parameters in this release than in the newest");
    }
    if ["cudart", "driver"].contains(&list.name.as_str()) {
        return None;
    }
    match release.map(|release| release.exported.get(&list.name)) {
        None => Some("MEMFIT_TEST_SITE_PACKAGES is not set"),
        Some(None) => Some("the environment does not have its library"),
        Some(Some(names)) if !names.contains(&entry.name) => {
            Some("the environment's library does not have it")
        }
        Some(Some(_)) => None,
    }
}

/// Real libraries of the last environment, loaded as PyTorch loads them.
struct Release {
    /// CUDA major version.
    major: u32,
    /// Exported names, by the name of the list.
    exported: BTreeMap<String, BTreeSet<String>>,
}

impl Release {
    fn load(lists: &[Library]) -> Option<Self> {
        let environment = environments().pop()?;
        let libraries = nvidia_libraries(&environment);
        let mut release = Self { major: 0, exported: BTreeMap::new() };
        let named = |path: &Path, start: &str| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(start))
        };
        // NVRTC looks for it by its bare name; PyTorch has it loaded by then.
        for path in libraries.iter().filter(|path| named(path, "libnvrtc-builtins.so")) {
            open(path);
        }
        for list in lists {
            for path in
                libraries.iter().filter(|path| list.sonames.iter().any(|soname| path.ends_with(soname)))
            {
                open(path);
                release.exported.entry(list.name.clone()).or_default().extend(dynamic_symbols(path, true));
                if named(path, "libcudart.so.13") {
                    release.major = 13;
                } else if named(path, "libcudart.so.12") {
                    release.major = 12;
                }
            }
        }
        Some(release)
    }
}

fn open(path: &Path) {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the path ends with NUL; loading one of these libraries starts nothing.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{} cannot be loaded", path.display());
}
