//! The device's behaviour, driven through C's calls as a program would: what CUDA promises, and what it
//! refuses.
//!
//! All tests share one machine of two cards in one process, as libraries in a program do; those that look at
//! how much of a card is taken hold it for themselves.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]
#![allow(clippy::items_after_statements, reason = "a constant stands where it is used")]
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
