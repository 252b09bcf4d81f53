//! Generates the entry points that the prototype lists (`api/*.api`) call harmless or refused.

mod api;
mod emit;
mod shapes;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo:rerun-if-changed=api");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // What this library looks up is its own, wherever in the process the real libraries stand.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");

    let libraries = api::read_folder(&root.join("api")).unwrap_or_else(|problem| panic!("{problem}"));
    let mut owner: BTreeMap<&str, &str> = BTreeMap::new();
    for library in &libraries {
        for entry in &library.entries {
            if let Some(other) = owner.insert(&entry.name, &library.name) {
                panic!("{} is listed for {other} and for {}", entry.name, library.name);
            }
        }
    }
    fs::write(out.join("stubs.rs"), emit::stubs(&libraries)).expect("OUT_DIR can be written");
    fs::write(out.join("shapes.rs"), shapes::shapes(&libraries)).expect("OUT_DIR can be written");
}
