//! Prototype lists of the device libraries: their format, and the entry points generated from them.
//!
//! This crate owns the format of the lists (the folders `api/` of the device crates), the generator that
//! their build scripts call, and, behind the feature `testing`, callers for each listed name by its
//! prototype. It does not know the effect of any call.
//!
//! # The format
//!
//! A list begins with settings: `library`, `soname` and `prefix` (of the names that belong to it), `status`
//! (the type that its calls return), `invalid` (the status for a missing out-parameter) and `refusal` (the
//! status of a refused call). After the settings, each line is one call:
//!
//! ```text
//! modelled cudaMalloc(out ptr, size)
//! harmless cudaFuncSetCacheConfig(ptr, int)
//! refused  cudaGraphicsMapResources(int, ptr, stream)
//! alias    pncclAllReduce = ncclAllReduce
//! ```
//!
//! A parameter is a [`Kind`], preceded by `out` or `inout` if the call writes through a pointer and by `opt`
//! if that pointer may be null, and followed by `=value` if a harmless call writes another value than zero. A
//! call without a status states its result: `-> cstr`, or `-> int=-1` if a refusal is not zero. A line ends
//! with `@12` if only that CUDA release has the name, with `>=12040` if `cuGetProcAddress` returns it since
//! that release, and with `#` before a remark.

mod emit;
mod list;
mod shapes;
#[cfg(feature = "testing")]
pub mod testing;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;

pub use list::{Class, Entry, Flow, Kind, Library, Parameter, Problem, read, read_folder};

/// Generates entry points from a build script: reads the lists in `api/` and writes `stubs.rs` to `OUT_DIR`.
///
/// # Panics
/// Panics if a list cannot be read or two lists contain the same name; the message says where.
pub fn generate() {
    let libraries = lists(&["api"]);
    write("stubs.rs", &emit::stubs(&libraries));
}

/// Generates callers for tests from a build script: reads the lists in folders next to the script and writes
/// `shapes.rs`, which [`testing`] uses, to `OUT_DIR`.
///
/// # Panics
/// Panics in the same cases as [`generate`].
pub fn generate_callers(folders: &[&str]) {
    write("shapes.rs", &shapes::shapes(&lists(folders)));
}

/// Reads the lists of several folders; panics if two of them contain the same name.
fn lists(folders: &[&str]) -> Vec<Library> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let mut libraries = Vec::new();
    for folder in folders {
        libraries.extend(read_folder(&root.join(folder)).unwrap_or_else(|problem| panic!("{problem}")));
    }
    let mut owner: BTreeMap<&str, &str> = BTreeMap::new();
    for library in &libraries {
        for entry in &library.entries {
            if let Some(other) = owner.insert(&entry.name, &library.name) {
                panic!("{} is listed for {other} and for {}", entry.name, library.name);
            }
        }
    }
    libraries
}

fn write(file: &str, text: &str) {
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(folder.join(file), text).expect("OUT_DIR can be written");
}
