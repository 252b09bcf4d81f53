//! The mathematics and communication libraries, driven through C's calls as PyTorch drives them.
//!
//! What the real libraries answer can only be asked where they are: in the Python environments that
//! `MEMFIT_TEST_SITE_PACKAGES` lists. Without one, those tests have nothing to ask, and say so.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]
#![allow(non_snake_case, reason = "the libraries' names")]
#![allow(clippy::print_stdout, reason = "for whoever wonders what a test asked")]

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
