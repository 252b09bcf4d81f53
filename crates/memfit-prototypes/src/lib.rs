//! The prototype lists of the device libraries: what a line means, and the entry points made from it.
//!
//! It owns the format of the lists (`crates/memfit-vgpu/api/`, `crates/memfit-nvml/api/`), the generator that the build
//! scripts of the device libraries call, and, behind the feature `testing`, the means to call each listed name as its
//! prototype says. It must not know what any of the calls does.
//!
//! # The format
//!
//! A list begins with settings: `library`, `soname` and `prefix` (which names belong to it), `status` (the type that its
//! calls return), `invalid` (the status for a missing out-parameter) and `refusal` (the status of a refused call). After
//! them each line is one call:
//!
//! ```text
//! modelled cudaMalloc(out ptr, size)
//! harmless cudaFuncSetCacheConfig(ptr, int)
//! refused  cudaGraphicsMapResources(int, ptr, stream)
//! alias    pncclAllReduce = ncclAllReduce
//! ```
//!
//! A parameter is a [`Kind`], with `out` or `inout` before it where the call writes through a pointer, `opt` where that
//! pointer may be null, and `=value` where a harmless call writes something else than zero. A call without a status says
//! what it returns: `-> cstr`, or `-> int=-1` where a refusal is not zero. A line ends with `@12` if only that CUDA release
//! has the name, `>=12040` if `cuGetProcAddress` hands it out from that release on, and `#` before a remark.

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

/// The body of a device library's build script: reads `api/` and writes `stubs.rs` and `shapes.rs` to `OUT_DIR`.
///
/// # Panics
/// If a list cannot be read or two lists have the same name: the message says where.
pub fn generate() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let libraries = read_folder(&root.join("api")).unwrap_or_else(|problem| panic!("{problem}"));
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
