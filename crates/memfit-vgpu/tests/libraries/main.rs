//! Tests of the mathematics and communication libraries, through C calls as PyTorch makes them.
//!
//! The real libraries can only be queried where they are installed: in the Python environments that
//! `MEMFIT_TEST_SITE_PACKAGES` lists. Without any, those tests are skipped with a message.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]
#![allow(non_snake_case, reason = "the libraries' names")]
#![allow(clippy::print_stdout, reason = "shown if a test fails")]

mod blas;
mod calls;
mod convolutions;
mod dnn;
mod fourier;
#[path = "../device/machine.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod machine;
mod nccl;
mod real;
mod solver;
mod sparse;
