//! Clock readings for the probe, taken at the end of each step.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use crate::{beside, clock, machine, streams};
use memfit_abi::Out;

/// Writes the completion time of all queued work, the nanoseconds of work queued so far by kind, and the
/// completion times on the GPUs with auxiliary clocks, as many numbers as `room` allows. Returns the number
/// written; 0 without a device.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_clock(target: Out<u64>, room: usize) -> usize {
    if machine::peek().is_none() || target.is_null() {
        return 0;
    }
    // A step ends when both the host and the device are done with it.
    let end = streams::all_end().max(clock::now());
    let numbers = std::iter::once(end).chain(clock::busy()).chain(beside::ends());
    let mut written = 0;
    for (index, number) in numbers.take(room).enumerate() {
        target.set_at(index, number);
        written = index + 1;
    }
    written
}
