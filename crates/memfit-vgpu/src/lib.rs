//! The virtual CUDA device: one shared object, `libcuda.so.1`, that stands in front of CUDA's libraries.
//!
//! It owns what a CUDA device means to a process: memory, streams, events, kernels, and the libraries above them as
//! PyTorch calls them. Every name that those libraries export is in the prototype lists (`api/*.api`), and each of them is
//! *modelled* (written here by hand), *harmless* or *refused* (both generated from the lists).
//!
//! It must not know Recordings or Python.

mod libraries;
mod stubs;
mod tally;
