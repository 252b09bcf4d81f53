//! Tests of the device through C calls, as a program makes them: CUDA's promises, and its refusals.
//!
//! All tests share one machine of two devices in one process, as libraries in a program do; tests that
//! measure a device's memory reserve it for themselves.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]
#![allow(clippy::items_after_statements, reason = "a constant is declared where it is used")]
#![allow(non_snake_case, reason = "CUDA's names")]

mod attributes;
mod contexts;
mod copies;
mod cuda;
mod errors;
mod graphs;
mod host;
mod load;
mod machine;
mod memory;
mod pools;
mod processes;
mod streams;
mod virtual_memory;
