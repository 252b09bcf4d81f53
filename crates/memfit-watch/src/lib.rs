//! The watcher in a process: logs every block that PyTorch's caching allocator hands out or takes back, and
//! for whom.
//!
//! Loaded in front of PyTorch, on a virtual or a real device, it stands in for two functions of libc10 that
//! the allocator calls on each of its events ([`interpose`]), writes them down with the phase and the module
//! that the probe has last named on that thread ([`labels`]), and passes the call on. The probe, and a
//! virtual device, speak to it through a small C interface ([`api`]).
//!
//! In a process that belongs to no run it does nothing but pass calls on. It knows neither the device, nor
//! how a log is judged; of Python it knows how it begins (`start`) and how it ends ([`farewell`]).

// Linked for the functions that it exports to the process.
extern crate memfit_overlay;

pub mod api;
pub mod farewell;
pub mod interpose;
pub mod labels;
mod start;
mod watch;

pub use watch::{DEVICES, Stats, Watch};
