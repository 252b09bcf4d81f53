//! cuDNN: the real library's answers, obtained without a device.
//!
//! Descriptors belong to the real library, which also answers queries for sizes and heuristics. Only work
//! that would run on a device is replaced: it does nothing, for as long as it would take ([`problem`],
//! [`work`]). Two mechanisms make the library answer:
//!
//! * the graph interface has a documented mode without a device: heuristics, engines and plans take a
//!   descriptor of the device's properties ([`backend`]);
//! * the older interface takes a handle, of which its size queries read only the device's properties. So the
//!   handles created here begin with them, in the layout that the library itself reports ([`image`]).
//!
//! Libraries before 9.8 report no layout and have no such mode. They get such a handle in the layout that was
//! found for their release, which also makes their graph interface answer, and the tally records a note.
//! Hopper devices get such a handle with any library: it has tables that the mode without a device lacks.
//!
//! Engines that multiply with cuBLASLt need its functions of this crate ([`multiplications`]).

mod backend;
mod find;
mod forward;
mod handle;
mod image;
mod multiplications;
mod problem;
mod rnn;
mod work;

/// The part of `cudnnStatus_t` that is returned here.
pub(super) mod status {
    /// Success.
    pub(crate) const SUCCESS: i32 = 0;
    /// There is no such device, or no library.
    pub(crate) const NOT_INITIALIZED: i32 = 1001;
    /// A parameter is invalid.
    pub(crate) const BAD_PARAM: i32 = 2000;
    /// The library has no such call.
    pub(crate) const NOT_SUPPORTED: i32 = 3000;
    /// An error inside memfit.
    pub(crate) const INTERNAL_ERROR: i32 = 4000;
}
