//! Tests of the exported symbols: the library exports exactly the listed names, and all that the real
//! libraries export.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use memfit_prototypes::Library;
use memfit_prototypes::testing::{self, dynamic_symbols, environments, nvidia_libraries, shared_objects};

/// Names of the library itself, for its tests and other memfit libraries.
const OWN_PREFIX: &str = "memfit_";

fn lists() -> Vec<Library> {
    testing::lists(&["memfit-cuda", "memfit-cuda-libraries"])
}

fn library_path() -> PathBuf {
    testing::library_path("libmemfit_vgpu.so")
}

fn listed(lists: &[Library]) -> BTreeSet<String> {
    lists.iter().flat_map(|library| &library.entries).map(|entry| entry.name.clone()).collect()
}

#[test]
fn exported_names_equal_the_list() {
    let mut exported = dynamic_symbols(&library_path(), true);
    exported.retain(|name| !name.starts_with(OWN_PREFIX));
    let listed = listed(&lists());
    let missing: Vec<_> = listed.difference(&exported).collect();
    let extra: Vec<_> = exported.difference(&listed).collect();
    assert!(missing.is_empty(), "listed, but not exported (modelled, and not written?): {missing:?}");
    assert!(extra.is_empty(), "exported, but in no list: {extra:?}");
}

#[test]
fn no_name_is_listed_twice() {
    let mut seen = BTreeMap::new();
    for library in lists() {
        for entry in &library.entries {
            if let Some(other) = seen.insert(entry.name.clone(), library.name.clone()) {
                panic!("{} is listed for {other} and for {}", entry.name, library.name);
            }
        }
    }
}

#[test]
fn aliases_lead_to_listed_calls() {
    let lists = lists();
    let names = listed(&lists);
    for entry in lists.iter().flat_map(|library| &library.entries) {
        if let Some(target) = &entry.target {
            assert!(names.contains(target), "{} is an alias of {target}, which is not listed", entry.name);
        }
    }
}

#[test]
fn the_loader_finds_it_as_the_driver() {
    let soname = testing::soname(&library_path());
    assert_eq!(soname.as_deref(), Some("libcuda.so.1"));
}

/// Every name that an installed library of the lists' sonames exports is listed.
#[test]
fn installed_libraries_export_nothing_more() {
    let lists = lists();
    let names = listed(&lists);
    for environment in environments() {
        let mut compared = 0;
        for path in nvidia_libraries(&environment) {
            let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(library) =
                lists.iter().find(|library| library.sonames.iter().any(|name| same_library(name, file)))
            else {
                continue;
            };
            if library.name == "nvshmem" {
                continue; // Only what PyTorch imports is listed; the list says why.
            }
            let exported = dynamic_symbols(&path, true);
            let missing: Vec<_> = exported
                .iter()
                .filter(|name| library.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str())))
                .filter(|name| !names.contains(*name))
                .collect();
            assert!(
                missing.is_empty(),
                "{file} exports what no list has; run scripts/prototypes/extract.py: {missing:?}"
            );
            compared += 1;
        }
        assert!(compared >= 10, "only {compared} of the shadowed libraries are in {}", environment.display());
    }
}

/// Every name that PyTorch's own libraries import from CUDA's is listed: the minimum for the device to work.
#[test]
fn pytorch_imports_nothing_more() {
    let lists = lists();
    let names = listed(&lists);
    let prefixes: BTreeSet<&str> =
        lists.iter().flat_map(|library| &library.prefixes).map(String::as_str).collect();
    for environment in environments() {
        let folder = environment.join("torch/lib");
        let own: BTreeSet<String> =
            shared_objects(&folder).iter().flat_map(|path| dynamic_symbols(path, true)).collect();
        let mut imported = 0;
        for path in shared_objects(&folder) {
            for name in dynamic_symbols(&path, false) {
                let known = prefixes.iter().any(|prefix| name.starts_with(prefix)) && !own.contains(&name);
                // `cu` alone would match `curl_…`: the driver's names continue with a capital.
                if !known
                    || (name.starts_with("cu")
                        && name.chars().nth(2).is_some_and(|c| c == 'r' && !name.starts_with("curand")))
                {
                    continue;
                }
                imported += 1;
                assert!(names.contains(&name), "{} imports {name}, which no list has", path.display());
            }
        }
        assert!(imported > 300, "{} imports only {imported} names", folder.display());
    }
}

/// Returns `true` if a file is some release of a library: `libcudart.so.12` and `libcudart.so.13`.
fn same_library(soname: &str, file: &str) -> bool {
    let stem = |name: &str| name.split_once(".so").map(|(stem, _)| stem.to_owned());
    stem(soname) == stem(file)
}
