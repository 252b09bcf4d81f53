//! Launches as PyTorch makes them, end to end: a mangled name and the bytes of the arguments.

mod contents;
mod durations;
mod symbols;
