//! Entry points generated from the prototype lists: all harmless and refused ones, and all aliases.

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
