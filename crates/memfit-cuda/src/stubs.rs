//! Entry points generated from the prototype lists: all harmless and refused ones, and all aliases.

#![allow(
    dead_code,
    non_snake_case,
    unsafe_code,
    clippy::pedantic,
    clippy::missing_safety_doc,
    clippy::used_underscore_binding,
    improper_ctypes_definitions,
    reason = "generated: names and signatures are CUDA's"
)]

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

/// One version of a driver call, as `cuGetProcAddress` returns it.
pub(crate) struct EntryPoint {
    /// Name without its version, with `_ptsz` or `_ptds` if it uses the per-thread default stream.
    pub(crate) name: &'static str,
    /// First CUDA release for which this version is returned; 12040 is 12.4.
    pub(crate) since: u32,
    /// Address of the function.
    pub(crate) address: unsafe extern "C" fn(),
}

/// Versions of a driver call, oldest first; empty if there is no such call.
pub(crate) fn entry_points(name: &str) -> &'static [EntryPoint] {
    let first = ENTRY_POINTS.partition_point(|each| each.name < name);
    let count = ENTRY_POINTS[first..].partition_point(|each| each.name == name);
    &ENTRY_POINTS[first..first + count]
}
