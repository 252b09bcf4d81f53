//! cuDNN: the real library's answers, asked without a device.
//!
//! Descriptors are the real library's own, sizes and heuristics are asked of it, and only what would run on a
//! device does nothing, for as long as it would take ([`problem`], [`work`]). Two ways make it answer:
//!
//! * the graph interface has a documented mode without a device: heuristics, engines and plans take a
//!   descriptor of the device's properties ([`backend`]);
//! * the older interface takes a handle, of which its size queries read nothing but the device's properties.
//!   So the handles given out here begin with them, in the layout that the library tells itself ([`image`]).
//!
//! Libraries before 9.8 tell no layout, and have no such mode. They are given such a handle in the layout
//! that was found for their release, which also makes their graph interface answer, and a note in the tally
//! says so.

mod backend;
mod find;
mod forward;
mod handle;
mod image;
mod problem;
mod rnn;
mod work;

/// `cudnnStatus_t`, as far as it is said here.
pub(super) mod status {
    /// It worked.
    pub(crate) const SUCCESS: i32 = 0;
    /// There is no such card, or no library.
    pub(crate) const NOT_INITIALIZED: i32 = 1001;
    /// A parameter is wrong.
    pub(crate) const BAD_PARAM: i32 = 2000;
    /// The library has no such call.
    pub(crate) const NOT_SUPPORTED: i32 = 3000;
    /// Something went wrong here.
    pub(crate) const INTERNAL_ERROR: i32 = 4000;
}
