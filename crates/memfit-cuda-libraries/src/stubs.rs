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
    reason = "generated: names and signatures are the libraries'"
)]

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
