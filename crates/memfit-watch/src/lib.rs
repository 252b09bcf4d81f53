//! The watcher in a process: logs every block that PyTorch's caching allocator hands out or takes back, with
//! its category.
//!
//! Loaded before PyTorch, on a virtual or a real device, it interposes two functions of libc10 that the
//! allocator calls on each of its events ([`interpose`]), logs them with the phase and the module that the
//! probe last set on that thread ([`labels`]), and passes the call on. The probe and a virtual device use a
//! small C interface ([`api`]).
//!
//! In a process that belongs to no run, it only passes calls on. It knows neither the device, nor how a log
//! is judged; of Python it knows the start (`start`) and the shutdown ([`farewell`]).

// Linked for the functions that it exports to the process.
extern crate memfit_overlay;

pub mod api;
pub mod farewell;
pub mod interpose;
pub mod labels;
mod start;
mod watch;

pub use watch::{DEVICES, Stats, Watch};
