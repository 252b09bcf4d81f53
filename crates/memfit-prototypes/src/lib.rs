//! The prototype lists of the device libraries: what a line means, and the entry points made from it.
//!
//! It owns the format of the lists (the folders `api/` of the device crates), the generator that their build
//! scripts call, and, behind the feature `testing`, the means to call each
//! listed name as its prototype says. It must not know what any of the calls does.
//!
//! # The format
//!
//! A list begins with settings: `library`, `soname` and `prefix` (which names belong to it), `status` (the
//! type that its calls return), `invalid` (the status for a missing out-parameter) and `refusal` (the status
//! of a refused call). After them each line is one call:
//!
//! ```text
//! modelled cudaMalloc(out ptr, size)
//! harmless cudaFuncSetCacheConfig(ptr, int)
//! refused  cudaGraphicsMapResources(int, ptr, stream)
//! alias    pncclAllReduce = ncclAllReduce
//! ```
//!
//! A parameter is a [`Kind`], with `out` or `inout` before it where the call writes through a pointer, `opt`
//! where that pointer may be null, and `=value` where a harmless call writes something else than zero. A call
//! without a status says what it returns: `-> cstr`, or `-> int=-1` where a refusal is not zero. A line ends
//! with `@12` if only that CUDA release has the name, `>=12040` if `cuGetProcAddress` hands it out from that
//! release on, and `#` before a remark.

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

/// The body of a build script that has lists of its own: reads `api/` and writes their entry points,
/// `stubs.rs`, to `OUT_DIR`.
///
/// # Panics
/// If a list cannot be read or two lists have the same name: the message says where.
pub fn generate() {
    let libraries = lists(&["api"]);
    write("stubs.rs", &emit::stubs(&libraries));
}

/// The same for tests that call listed names: reads folders beside the build script and writes `shapes.rs`,
/// the callers that [`testing`] uses.
///
/// # Panics
/// As [`generate`].
pub fn generate_callers(folders: &[&str]) {
    write("shapes.rs", &shapes::shapes(&lists(folders)));
}

/// The lists of some folders, no name of which is in two of them.
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
