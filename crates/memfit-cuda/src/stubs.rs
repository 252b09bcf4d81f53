//! The entry points that are generated from the prototype lists: all that are harmless, refused or another's
//! alias.

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

/// One version of a call of the driver, as `cuGetProcAddress` hands it out.
pub(crate) struct EntryPoint {
    /// The name without its version; with `_ptsz` or `_ptds` if it means each thread's own default stream.
    pub(crate) name: &'static str,
    /// The CUDA release from which it is the version meant, as 12040 is 12.4.
    pub(crate) since: u32,
    /// Where it is.
    pub(crate) address: unsafe extern "C" fn(),
}

/// The versions of a call of the driver, the oldest first; none if there is no such call.
pub(crate) fn entry_points(name: &str) -> &'static [EntryPoint] {
    let first = ENTRY_POINTS.partition_point(|each| each.name < name);
    let count = ENTRY_POINTS[first..].partition_point(|each| each.name == name);
    &ENTRY_POINTS[first..first + count]
}
